"""An Accelerate script on a DataLoader, for bench/python_faults.py.

    python accelerate_script.py FOLDER
"""

import sys

import accelerate
import torch
import torchvision
from torchvision.transforms import v2


def main():
    has_bf16 = torch.cpu._is_avx512_bf16_supported()  # other CPUs emulate it
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16" if has_bf16 else "no")
    augment = v2.Compose([v2.RandomResizedCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    dataset = torchvision.datasets.ImageFolder(sys.argv[1], augment)
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2, persistent_workers=True,
                                         drop_last=True)
    # A wide head, so that the optimizer has something to do.
    model = torch.nn.Sequential(torchvision.models.squeezenet1_1(), torch.nn.ReLU(), torch.nn.Linear(1000, 8000),
                                torch.nn.ReLU(), torch.nn.Linear(8000, len(dataset.classes)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(1000):
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        accelerator.print(f"epoch {epoch + 1}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
