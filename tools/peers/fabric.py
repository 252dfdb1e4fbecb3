#!/usr/bin/env python3
"""The speedup of overlap and compression over networks of several speeds. Two network namespaces on this machine
are the hosts, joined by a virtual cable whose speed and delay tc sets. Each process has one core and the same batch
size; all variants are interleaved.

    tools/peers/fabric.py [--model resnet18] [--size 32] [--batch 32] [--steps 10] [--rounds 3]
                          [--fabrics ethernet=1000:0.1,fast=10000:0.01] [--limit SECONDS] [--json FILE]

A fabric is NAME=MBIT/S:DELAY_MS, one way; if the kernel has no netem there is no delay, and `delay_ms` is null. Rows
are images per second of both processes together; `exposed_s` is the seconds per step with nothing but waiting for
gradients, and `gain` is relative to the same fabric without overlap or compression. Needs root.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile

import peer_report
from ddp_peer import Saturate, cores, outputs
from peer_report import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from net_hosts import Host, can_shape, join, missing, parse_links

ADDRESSES = ["10.77.0.1", "10.77.0.2"]
# With all gradients in one bucket, they are sent after backward.
VARIANTS = {
    "no overlap": ["distributed.bucket_mb=4096"],
    "overlap": [],
    "overlap, bf16": ["distributed.compress=bf16"],
    "overlap, powersgd": ["distributed.compress=powersgd"],
}


def measure(saturate, settings, shape, arguments):
    command, out = saturate.train(2 * arguments.batch, *settings)
    with Host(ADDRESSES[0]) as one, Host(ADDRESSES[1]) as other:
        join(one, other)
        started = []
        for node, host in enumerate((one, other)):
            host.shape(*shape)
            launch = [arguments.saturate.resolve(), "launch", "--nproc-per-node", "1", "--nnodes", "2",
                      "--node-rank", node, "--master", f"{ADDRESSES[0]}:29500", "--", *command]
            started.append(host.start(["taskset", "-c", cores(arguments)[node], *launch],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        outputs(started, arguments.limit)
    times, exposed = saturate.steps(out)
    return saturate.rate(times, len(ADDRESSES)), exposed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32, help="images in each process")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=3600, help="seconds for one measurement at most")
    parser.add_argument("--fabrics", type=parse_links, default="ethernet=1000:0.1,fast=10000:0.01")
    parser.add_argument("--saturate", type=pathlib.Path, default=ROOT / "build/saturate")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    arguments.processes = len(ADDRESSES)
    why = missing()
    if why:
        print(f"skipped: {why}", file=sys.stderr)
        sys.exit(77)
    delays = can_shape(1)
    values = {}
    with tempfile.TemporaryDirectory() as path:
        saturate = Saturate(arguments, pathlib.Path(path))
        for _ in range(arguments.rounds):
            for fabric, (mbit, delay_ms) in arguments.fabrics.items():
                for variant, settings in VARIANTS.items():
                    found = measure(saturate, settings, (mbit, delay_ms if delays else 0), arguments)
                    values.setdefault((fabric, variant), []).append(found)
    rows = []
    for (fabric, variant), found in values.items():
        mbit, delay_ms = arguments.fabrics[fabric]
        rates = [rate for rate, _ in found]
        base = statistics.median(rate for rate, _ in values[(fabric, "no overlap")])
        rows.append(peer_report.with_spread(
            {"name": f"{arguments.model} {fabric}, {variant}", "unit": "images/s", "mbit_per_s": mbit,
             "delay_ms": delay_ms if delays else None, "gain": statistics.median(rates) / base,
             "exposed_s": statistics.median(exposed for _, exposed in found)}, rates))
    peer_report.write("fabric", rows, arguments.json,
                      peer_report.commit_of(arguments.saturate))


if __name__ == "__main__":
    main()
