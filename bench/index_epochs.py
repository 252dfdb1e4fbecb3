#!/usr/bin/env python3
"""Images per second of the first and the second epoch of a folder of JPEGs in fast mode, by data.index: off, a new
file, and a file of an earlier run. Needs the Python package (pip install ./python).

    bench/index_epochs.py SOURCE [--threads 2] [--rounds 5] [--json FILE]

The three are measured alternately, round by round, and the files are in the page cache after the first, which is not
counted. "after batch 10" leaves out the first ten batches of the first epoch, which allocate new memory: other loaders
are measured after a warm-up. Prints medians; with --json writes the rows of `saturate bench`, with the checkout's
commit.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import tempfile
import time

import saturate


WARM_BATCHES = 10


def epochs(source, threads, index):
    """(name, images per second): of the first epoch, of the same after WARM_BATCHES batches, and of the second."""
    loader = saturate.Loader(source, batch=64, size=224, crop="random_resized", decode="fast", threads=threads,
                             dtype="float32", options={"data.index": index})
    rates = []
    for epoch in (1, 2):
        begin, images, warm = time.perf_counter(), 0, (0.0, 0)
        for number, batch in enumerate(loader, 1):
            images += len(batch[1])
            if number == WARM_BATCHES:
                warm = time.perf_counter(), images
        end = time.perf_counter()
        rates.append((f"epoch {epoch}", images / (end - begin)))
        if epoch == 1 and images > warm[1] > 0:
            rates.append((f"epoch 1 after batch {WARM_BATCHES}", (images - warm[1]) / (end - warm[0])))
    loader.close()  # writes the index
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    rates = {}
    with tempfile.TemporaryDirectory() as folder:
        kept = f"{folder}/kept.points"
        epochs(options.source, options.threads, kept)
        for number in range(options.rounds):
            for name, index in (("off", "off"), ("new", f"{folder}/{number}.points"), ("kept", kept)):
                for epoch, rate in epochs(options.source, options.threads, index):
                    rates.setdefault(f"index {name} {epoch}", []).append(rate)
    rows = [{"name": name, "unit": "images/s", "median": statistics.median(values), "min": min(values),
             "max": max(values), "n": len(values)} for name, values in rates.items()]
    for row in rows:
        print(f"{row['name']:33} {row['median']:10,.0f} images/s   {row['min']:,.0f} to {row['max']:,.0f}")
    print(f"load average {os.getloadavg()[0]:.1f}, {options.threads} threads")
    if options.json:
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=pathlib.Path(__file__).parent,
                              capture_output=True, text=True, check=True).stdout.strip()
        host = {"system": platform.platform(), "cores": len(os.sched_getaffinity(0))}
        report = {"bench": "index_epochs", "host": host, "commit": head, "rows": rows}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
