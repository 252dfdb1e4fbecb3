"""A training loop on a GPU, for bench/python_faults.py: ResNet-50 on an ImageFolder, 32 times an epoch.

    python gpu.py FOLDER [--workers N]
"""

import argparse
import os

import torch
import torchvision
from torchvision.transforms import v2

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--workers", type=int, default=max(1, len(os.sched_getaffinity(0)) - 2))
options = parser.parse_args()

augment = v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.PILToTensor()])
dataset = torchvision.datasets.ImageFolder(options.folder, augment)
loader = torch.utils.data.DataLoader(torch.utils.data.ConcatDataset([dataset] * 32), batch_size=128, shuffle=True,
                                     num_workers=options.workers, persistent_workers=True, pin_memory=True,
                                     drop_last=True)
model = torchvision.models.resnet50(num_classes=len(dataset.classes)).cuda()
model = model.to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
for epoch in range(1000):
    for images, labels in loader:
        images = images.cuda(non_blocking=True).float().div(255)
        images = images.contiguous(memory_format=torch.channels_last)
        labels = labels.cuda(non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
