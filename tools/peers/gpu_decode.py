#!/usr/bin/env python3
"""Decodes the JPEGs below FOLDER on the GPU, to random-resized crops of 224 pixels, uint8: by torchvision's nvJPEG
decoder and its transforms, and by NVIDIA DALI's mixed decoder of crops, if these are there.

    gpu_decode.py FOLDER

Prints {"name": {"rates": [images/s, ...], "cpu_us_per_image": microseconds of all threads} or why it was skipped} as
JSON. The files are in memory before the first measurement.
"""

import json
import os
import pathlib
import sys
import time

import torch

BATCH, SIDE, ROUNDS, SECONDS = 256, 224, 5, 0.5


def measure(work, images):
    """`work` decodes so many images."""
    for _ in range(3):
        work()
    rates, cpu_s, total = [], 0.0, 0
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin, cpu, calls = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - begin < SECONDS or calls < 2:
            work()
            calls += 1
            torch.cuda.synchronize()
        rates.append(calls * images / (time.perf_counter() - begin))
        cpu_s += time.process_time() - cpu
        total += calls * images
    return {"rates": rates, "cpu_us_per_image": 1e6 * cpu_s / total}


def with_torchvision(files):
    try:
        import torchvision.transforms.v2 as v2
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError as error:
        return f"no torchvision: {error}"
    data = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
    crop = v2.RandomResizedCrop(SIDE, antialias=True)

    def work():
        images = decode_jpeg(data, mode=ImageReadMode.RGB, device="cuda")
        torch.stack([crop(image) for image in images])

    try:
        return measure(work, len(data))
    except RuntimeError as error:  # built without nvJPEG
        return str(error).splitlines()[0]


def with_dali(files):
    try:
        import numpy
        from nvidia.dali import fn, pipeline_def, types
    except ImportError as error:
        return f"no DALI: {error}"
    data = [numpy.frombuffer(file, dtype=numpy.uint8) for file in files]

    @pipeline_def(batch_size=len(data), num_threads=len(os.sched_getaffinity(0)), device_id=0)
    def pipeline():
        encoded = fn.external_source(source=lambda: data, device="cpu", dtype=types.UINT8)
        images = fn.decoders.image_random_crop(encoded, device="mixed", output_type=types.RGB,
                                               random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
        return fn.resize(images, size=[SIDE, SIDE])

    try:
        made = pipeline()
        made.build()
        return measure(made.run, len(data))
    except RuntimeError as error:
        return str(error).splitlines()[0]


def main():
    paths = sorted(pathlib.Path(sys.argv[1]).rglob("*.jpg"))[:BATCH]
    files = [path.read_bytes() for path in paths]
    print(json.dumps({"torchvision on the GPU": with_torchvision(files), "DALI on the GPU": with_dali(files)}))


if __name__ == "__main__":
    main()
