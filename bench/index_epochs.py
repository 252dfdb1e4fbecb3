#!/usr/bin/env python3
"""Images per second of the first and the second epoch of a folder of JPEGs in fast mode, by data.index: off, a new
file, and a file of an earlier run. Needs the Python package (pip install ./python).

    bench/index_epochs.py SOURCE [--threads 2] [--rounds 5] [--dali] [--json FILE]

The three are measured alternately, round by round, and the files are in the page cache after the first, which is not
counted. --dali: NVIDIA DALI on the same folder too, an epoch in each round, right after one that is not counted. "after
batch 10" leaves out the first ten batches of the first epoch, which allocate new memory: other loaders are measured
after a warm-up. Prints the JSON of `saturate bench`, with the checkout's commit.
"""

import argparse
import pathlib
import sys
import tempfile
import time

import saturate

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools/peers"))
from loader_peers import Files, dali  # noqa: E402
from peer_report import commit_of_checkout, with_spread, write  # noqa: E402

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
    parser.add_argument("--dali", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    rates, peer = {}, None
    if options.dali:
        peer = dali(Files(options.source.removeprefix("folder:")), options.threads)
    with tempfile.TemporaryDirectory() as folder:
        kept = f"{folder}/kept.points"
        epochs(options.source, options.threads, kept)
        for number in range(options.rounds):
            for name, index in (("off", "off"), ("new", f"{folder}/{number}.points"), ("kept", kept)):
                for epoch, rate in epochs(options.source, options.threads, index):
                    rates.setdefault(f"index {name} {epoch}", []).append(rate)
            if peer:
                peer()  # empties the queue that DALI has filled meanwhile
                begin = time.perf_counter()
                rates.setdefault("dali", []).append(peer() / (time.perf_counter() - begin))
                time.sleep(1)  # it fills the queue again
    rows = [with_spread({"name": name, "unit": "images/s"}, values) for name, values in rates.items()]
    write("index_epochs", rows, options.json, commit_of_checkout(), threads=options.threads)


if __name__ == "__main__":
    main()
