#!/usr/bin/env python3
"""Images per second of the loader in two or more builds of the command, on the same data, interleaved.

    bench/against.py OLD NEW... [--sources SOURCE...] [--threads 2] [--rounds 7] [--seconds 8] [--json FILE]

OLD and NEW are commands, such as build/saturate of two checkouts. In each round all of them run `saturate bench loader`
on one source after the other, each time as a new process, in an order that is reversed from round to round. A run
measures each of its rows (exact and fast decoding; uint8, bf16 and fp32) for --seconds, after a warm-up that takes as
long, or an epoch in older builds. That should be an epoch of the slowest row or more: the warm-up then finds the
positions inside all JPEGs, and each build measures whole epochs. A round takes about 100 s for each build and source.

Only options that old builds have are used. Their own defaults apply otherwise, but batches have 64 images. Prints the
JSON of `saturate bench`: for each row of each source the rates of every build, numbered as given, and the median
and range of the rounds' ratios of the later builds to the first.
"""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools/peers"))
from peer_report import bench_loader, commit_of_checkout, with_spread, write  # noqa: E402

BATCH = 64


def short(source):
    """Without the folder, which differs between machines."""
    scheme, colon, path = source.rpartition(":")
    return f"{scheme}{colon}{pathlib.Path(path).name}"


def measured(options):
    """{(source, name, unit) of a row: [rates, one per round] of each build}, and the builds' commits."""
    rates, commits = {}, [None] * len(options.builds)
    for number in range(options.rounds):
        order = list(enumerate(options.builds))
        for source in options.sources:
            for build, command in reversed(order) if number % 2 else order:
                result = bench_loader(command, source, options.threads, options.seconds, "--set",
                                      f"train.batch={BATCH}")
                commits[build] = result["commit"]
                for row in result["rows"]:
                    found = rates.setdefault((source, row["name"], row["unit"]), [[] for _ in options.builds])
                    found[build].append(row["median"])
            print(f"round {number + 1} of {options.rounds}: {source}", file=sys.stderr, flush=True)
    return rates, commits


def report(rates, commits):
    rows = []
    for (source, name, unit), found in rates.items():
        row = f"{short(source)} {name}"  # `source` tells folders of the same name apart
        for number, values in enumerate(found, 1):
            if values:  # a build may lack the row
                rows.append(with_spread({"name": f"{row}, build {number}", "unit": unit, "source": source,
                                         "commit": commits[number - 1]}, values))
        for number, values in enumerate(found[1:], 2):
            ratios = [new / old for old, new in zip(found[0], values)]
            if ratios:
                rows.append(with_spread({"name": f"{row}, build {number} / build 1", "unit": "ratio", "source": source}, ratios))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="+", metavar="BUILD")
    parser.add_argument("--sources", nargs="+", default=["folder:photos/train"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if len(options.builds) < 2:
        parser.error("give two builds or more")
    rates, commits = measured(options)
    write("against", report(rates, commits), options.json, commit_of_checkout(), threads=options.threads,
          builds=commits)


if __name__ == "__main__":
    main()
