#!/usr/bin/env python3
"""How many H100s of MLPerf Storage's ResNet-50 one core feeds, emulated as DLIO does: a step takes 400 samples, and
then sleeps the 0.224 s of an H100. Needs the Python package (pip install ./python).

    bench/accelerators.py SOURCE... [--accelerators 0.5,1,1.5,2] [--seconds 10] [--json FILE]

For a number of accelerators a step takes as many times 400 samples in the same time. Prints for each source and number
the accelerators' utilization: the time slept, as a share of all time. MLPerf Storage asks for 0.9. DLIO only reads its
records, whereas these samples are decoded, augmented and normalised. The loader has one thread, and the process one
core. Small sources should be repeated, so that the ends of epochs do not count.
"""

import argparse
import os
import pathlib
import sys
import time

import saturate

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools/peers"))
from peer_report import commit_of, ROOT, with_spread, write  # noqa: E402

SAMPLES, STEP_S = 400, 0.224
WARM_STEPS = 3


def endless(loader):
    while True:
        yield from loader


def utilization(source, accelerators, seconds):
    with saturate.Loader(source, batch_size=round(SAMPLES * accelerators), size=224, crop="random_resized",
                         decode="fast", threads=1, dtype="float32", drop_last=True) as loader:
        batches = endless(loader)
        for _ in range(len(loader) + WARM_STEPS):  # the first epoch finds where the parts of each JPEG are
            next(batches)
        steps, begin = 0, time.perf_counter()
        while (passed := time.perf_counter() - begin) < seconds:
            next(batches)
            time.sleep(STEP_S)
            steps += 1
    return steps * STEP_S / passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--accelerators", default="0.5,0.75,1,1.25,1.5,1.75,2,2.5,3")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    commit = commit_of(ROOT / "build/saturate")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows = []
    for source in options.sources:
        for accelerators in map(float, options.accelerators.split(",")):
            share = utilization(source, accelerators, options.seconds)
            scheme, path = source.split(":", 1)
            rows.append(with_spread({"name": f"{scheme}:{pathlib.Path(path).name}, {accelerators:g} accelerators",
                                     "unit": "of the time", "accelerators": accelerators}, [share]))
            print(f"{rows[-1]['name']:40} {share:.3f}", file=sys.stderr, flush=True)
            if share < 0.5:
                break
    write("accelerators", rows, options.json, commit)


if __name__ == "__main__":
    main()
