#!/usr/bin/env python3
"""Trains for a long time, and checks that the process's memory, threads and open files do not grow.

Saves and evaluates often, so that their leaks show too. Prints a table, and exits with 1 if something grew.

  tools/soak.py --minutes 60
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MEMORY_SLACK = 1.05  # the allocator's own fluctuation


def sample(pid):
    status = dict(
        line.split(":", 1) for line in open(f"/proc/{pid}/status").read().splitlines() if ":" in line
    )
    return {
        "memory, MiB": int(status["VmRSS"].split()[0]) / 1024,
        "threads": int(status["Threads"]),
        "open files": len(os.listdir(f"/proc/{pid}/fd")),
    }


def watch(process, every):
    samples = []
    while process.poll() is None:
        try:
            samples.append(sample(process.pid))
        except (OSError, KeyError):  # it is ending
            break
        time.sleep(every)
    return samples


def verdict(samples):
    """Compares the second fifth of the samples with the last; the first fifth is the warm-up."""
    fifth = len(samples) // 5
    early, late = samples[fifth : 2 * fifth], samples[-fifth:]
    grown = False
    for key in samples[0]:
        # A save or an evaluation adds a thread for a moment; the median ignores that.
        before, after = (statistics.median(one[key] for one in part) for part in (early, late))
        limit = before * MEMORY_SLACK if key.startswith("memory") else before
        grown |= after > limit
        print(f"{key:<12} {before:10.1f} early {after:10.1f} late  {'GREW' if after > limit else 'ok'}")
    return grown


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--saturate", default=ROOT / "build/saturate")
    parser.add_argument("--minutes", type=float, default=60)
    arguments = parser.parse_args()
    every = max(0.2, arguments.minutes * 60 / 500)
    with tempfile.TemporaryDirectory() as folder:
        settings = [
            "train.epochs=100000",
            f"train.max_minutes={arguments.minutes}",
            "train.eval_every=150 steps",
            "checkpoint.every=40 steps",
            "train.ema=0.99",
            "data.source=synth:count=4000,size=32",
            "data.eval_source=synth:count=500,size=32,split=test",
        ]
        command = [arguments.saturate, "train", ROOT / "recipes/demo.toml", "--out", f"{folder}/run"]
        for setting in settings:
            command += ["--set", setting]
        with open(f"{folder}/log", "w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            try:
                samples = watch(process, every)
            finally:
                process.terminate()
                code = process.wait(60)
        if code != 0:
            sys.exit(f"soak: the run ended with {code}:\n" + open(f"{folder}/log").read()[-2000:])
        if len(samples) < 50:
            sys.exit("soak: too short to tell. Give more --minutes")
        sys.exit(1 if verdict(samples) else 0)


if __name__ == "__main__":
    main()
