"""A bare training loop, for bench/python_faults.py: SqueezeNet on an ImageFolder.

    python bare.py FOLDER [--workers N]
"""

import argparse

import torch
import torchvision
from torchvision.transforms import v2

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--workers", type=int, default=2)
options = parser.parse_args()

augment = v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToImage(),
                      v2.ToDtype(torch.float32, scale=True)])
dataset = torchvision.datasets.ImageFolder(options.folder, augment)
loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True, num_workers=options.workers,
                                     persistent_workers=options.workers > 0, drop_last=True)
model = torchvision.models.squeezenet1_1(num_classes=len(dataset.classes))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for epoch in range(1000):
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
