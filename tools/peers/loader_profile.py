#!/usr/bin/env python3
"""The loader's CPU time by kind of work, for each source, from samples of Linux's perf.

    tools/peers/loader_profile.py --python PYTHON SOURCE:TYPE ... [--threads 2] [--seconds 5] [--json FILE]

For example folder:photos:float32 shard:photos.shard:uint8. PYTHON has saturate installed (`pip install
./python`). The loader runs alone, with fast decoding, random_resized crops of 224 pixels and a flip, in
batches of 64. "entropy decoding" is the Huffman decoder, "resample and convert" the rest of the package,
nearly all of it work on pixels, "kernel" reading files and managing memory.
"""

import argparse
import pathlib
import subprocess
import tempfile

import peer_report

LOOP = """
import sys, time, saturate
loader = saturate.Loader(sys.argv[1], batch=64, size=224, crop="random_resized", decode="fast",
                         threads=int(sys.argv[3]), dtype=sys.argv[2])
end = time.time() + float(sys.argv[4])
while time.time() < end:
    for images, labels in loader: pass
"""
# A sample belongs to the first part whose text is in the name of its library or symbol.
PARTS = (
    ("entropy decoding", "symbol", "BaselineScan"),
    ("inverse DCT", "symbol", "inverse<"),
    ("checksums", "library", "deflate"),
    ("kernel", "symbol", "[k]"),
    ("copies in memory", "symbol", "mem"),
    ("resample and convert", "library", "_core"),
    ("Python, waiting", "library", ""),
)


def part_of(library, symbol):
    texts = {"library": library, "symbol": symbol}
    return next(part for part, kind, text in PARTS if text in texts[kind])


def shares(python, source, type_, threads, seconds):
    """Percentage of samples by part."""
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "perf.data"
        subprocess.run(["perf", "record", "-q", "-F", "499", "-o", data, "--", python, "-c", LOOP,
                        source, type_, str(threads), str(seconds)], check=True)
        report = subprocess.run(
            ["perf", "report", "-i", data, "--stdio", "--sort", "dso,symbol", "-t", "|"], check=True,
            capture_output=True, text=True).stdout
    found = dict.fromkeys((part for part, _, _ in PARTS), 0.0)
    for line in report.splitlines():
        if line.startswith("#") or line.count("|") < 2:
            continue
        share, library, symbol = line.split("|")[:3]
        found[part_of(library, symbol)] += float(share.strip().rstrip("%"))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", metavar="SOURCE:TYPE")
    parser.add_argument("--python", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    rows = []
    for given in arguments.sources:
        source, type_ = given.rsplit(":", 1)
        scheme, path = source.split(":", 1)
        found = shares(arguments.python, source, type_, arguments.threads, arguments.seconds)
        rows += [peer_report.with_spread({"name": f"{scheme}:{pathlib.Path(path).name} {type_}, {part}",
                                          "unit": "% of CPU time"}, [share])
                 for part, share in found.items()]
    peer_report.write("loader CPU time", rows, arguments.json, peer_report.commit_of_checkout())


if __name__ == "__main__":
    main()
