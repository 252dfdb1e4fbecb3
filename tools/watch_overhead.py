#!/usr/bin/env python3
"""How much longer a training step takes under saturate.watch(), on CPU steps of 0.8, 1.4 and 10 ms.

    tools/watch_overhead.py [--rounds 20] [--seconds 1.2] [--cpu] [--json FILE]

Each round runs a block of steps with and one without, in alternating order, on one thread. Prints the median ratio of
the two times, with its 95 % interval from order statistics, and the difference of the fastest blocks. On a busy machine
use --cpu (CPU time instead of wall time) and many short blocks: the fastest ones say most then. Needs torch and the
package.
"""

import argparse
import contextlib
import json
import math
import statistics
import tempfile
import time

import saturate
import torch
from torch import nn


def training(width):
    """A function that makes one step of a network of seven modules."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    def step(batch):
        inputs, labels = batch
        loss = loss_of(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def batches(count):
    batch = torch.randn(64, 256), torch.randint(10, (64,))
    for _ in range(count):
        yield batch


def block_seconds(step, count, watched, clock=time.perf_counter):
    with tempfile.TemporaryDirectory() as folder, \
            saturate.watch(out=folder) if watched else contextlib.nullcontext() as watch:
        loader = batches(count + 2)
        for _ in range(2):  # after which watch has found the modules
            loss = step(next(loader))
            if watch:
                watch.step(loss=loss)
        begin = clock()
        for batch in loader:
            loss = step(batch)
            if watch:
                watch.step(loss=loss)
        return clock() - begin


def calibrated(milliseconds, clock):
    """A step that takes about as long, and its time."""
    low, high = 16, 4096
    while high - low > 8:
        width = (low + high) // 2
        step = training(width)
        block_seconds(step, 20, False)
        taken = min(block_seconds(step, 20, False, clock) for _ in range(3)) / 20 * 1e3
        low, high = (width, high) if taken < milliseconds else (low, width)
    return training(high)


def interval(ratios):
    """95 % for the median (binomial)."""
    ordered, count = sorted(ratios), len(ratios)
    rank = max(0, int((count - 1.96 * math.sqrt(count)) / 2))
    return ordered[rank], ordered[count - 1 - rank]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.2, help="of a block")
    parser.add_argument("--cpu", action="store_true", help="CPU time instead of wall time")
    parser.add_argument("--json")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    torch.set_num_threads(1)
    rows = []
    for milliseconds in (0.8, 1.4, 10.0):
        step = calibrated(milliseconds, clock)
        count = max(10, int(options.seconds / milliseconds * 1e3))
        ratios, plain, watched_ms = [], [], []
        for number in range(options.rounds):
            order = (True, False) if number % 2 else (False, True)
            times = {watched: block_seconds(step, count, watched, clock) for watched in order}
            ratios.append(times[True] / times[False])
            plain.append(times[False] / count * 1e3)
            watched_ms.append(times[True] / count * 1e3)
        low, high = interval(ratios)
        rows.append({"name": f"{milliseconds} ms", "unit": "ratio of times", "step_ms": statistics.median(plain),
                     "median": statistics.median(ratios), "min": low, "max": high, "n": options.rounds,
                     "added_us": (min(watched_ms) - min(plain)) * 1e3, "fastest_ms": min(plain)})
        row = rows[-1]
        print(f"step of {row['step_ms']:.2f} ms: {row['median']:.4f} [{low:.4f}, {high:.4f}] times as long; "
              f"fastest {row['fastest_ms']:.3f} ms and {row['added_us']:+.1f} us", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            host = {"torch": torch.__version__, "threads": 1, "clock": clock.__name__}
            json.dump({"bench": "watch_overhead", "host": host, "rows": rows}, file, indent=2)


if __name__ == "__main__":
    main()
