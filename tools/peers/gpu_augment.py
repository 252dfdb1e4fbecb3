#!/usr/bin/env python3
"""The work of bench/gpu_bench.cpp, done by torchvision.transforms.v2 on the same GPU: rotate by up to 45 degrees,
blur and normalise 256 images of 224 pixels, uint8 to fp32.

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
    print(json.dumps({
        "normalise, batch": measure(lambda: normalise(images), BATCH),
        "rotate, blur, normalise, batch": measure(lambda: heavy(images), BATCH),
        "rotate, blur, normalise, each": measure(lambda: torch.stack([heavy(image) for image in few]), len(few)),
    }))


if __name__ == "__main__":
    main()
