#!/usr/bin/env python3
"""The work of bench/gpu_bench.cpp, done by torchvision.transforms.v2 on the same GPU: rotate by up to 45 degrees,
blur and normalise 256 images of 224 pixels, uint8 to fp32; and rotate and crop 16 volumes of 80 voxels a side to 64, by
torch's affine_grid and grid_sample.

    gpu_augment.py

`batch` uses one angle for all images of a batch, as v2 does; `each` uses one call and one angle per image, like
saturate. Prints {"name": [images/s, ...]} as JSON.
"""

import json
import time

import torch
import torchvision.transforms.v2 as v2

BATCH, SIDE = 256, 224


def measure(work, images):
    for _ in range(3):
        work()
    rates = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin, calls = time.perf_counter(), 0
        while time.perf_counter() - begin < 0.2 or calls < 2:
            work()
            calls += 1
            torch.cuda.synchronize()
        rates.append(calls * images / (time.perf_counter() - begin))
    return rates


def main():
    images = torch.randint(0, 256, (BATCH, 3, SIDE, SIDE), dtype=torch.uint8, device="cuda")
    normalise = v2.Compose([v2.ToDtype(torch.float32, scale=True),
                            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])
    heavy = v2.Compose([v2.RandomRotation(45, v2.InterpolationMode.BILINEAR),
                        v2.GaussianBlur(7), normalise])
    few = images[:32]
    volumes = torch.rand(16, 1, 80, 80, 80, device="cuda")
    angles = torch.rand(16, device="cuda") - 0.5
    turns = torch.zeros(16, 3, 4, device="cuda")
    turns[:, 0, 0] = turns[:, 1, 1] = 0.8 * angles.cos()
    turns[:, 0, 1], turns[:, 1, 0], turns[:, 2, 2] = -0.8 * angles.sin(), 0.8 * angles.sin(), 0.8

    def warp():
        grid = torch.nn.functional.affine_grid(turns, (16, 1, 64, 64, 64), align_corners=False)
        return torch.nn.functional.grid_sample(volumes, grid, align_corners=False) * 1.1

    print(json.dumps({
        "normalise, batch": measure(lambda: normalise(images), BATCH),
        "rotate, blur, normalise, batch": measure(lambda: heavy(images), BATCH),
        "rotate, blur, normalise, each": measure(lambda: torch.stack([heavy(image) for image in few]), len(few)),
        "volumes": measure(warp, 16),
    }))


if __name__ == "__main__":
    main()
