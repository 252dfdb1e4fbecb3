"""Trains a small network in a loop of its own with Accelerate, on saturate's loader.

    python accelerate_loop.py [SOURCE]
    torchrun --nproc-per-node 2 accelerate_loop.py [SOURCE]

The loader finds rank and world size, and puts batches on the device: prepare() has nothing to change in it.
"""

import sys

import accelerate
import saturate
import torch
from torch import nn


def main(source="synth:size=32,count=2000"):
    accelerator = accelerate.Accelerator()
    loader = saturate.Loader(source, batch=50, size=32, device=accelerator.device)
    network = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
                            nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
                            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, len(loader.classes)))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    network, optimizer, loader = accelerator.prepare(network, optimizer, loader)
    accelerator.register_for_checkpointing(loader)  # its position is saved and loaded by save_state, load_state
    for epoch in range(5):
        right = torch.zeros((), device=accelerator.device)
        for images, labels in loader:
            output = network(images)
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(output, labels))
            optimizer.step()
            right += (output.argmax(1) == labels).sum()
        total = accelerator.reduce(right).item()
        accelerator.print(f"epoch {epoch + 1}: accuracy {total / loader.samples:.3f} on {loader.world} processes")
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
