#!/usr/bin/env python3
"""Trains one recipe with two builds of the command, on two versions of LibTorch, and compares the losses of all steps.

  tests/same_losses_test.py COMMAND OTHER_COMMAND

Weights, batches and augmentation depend on the recipe's seed alone, so only rounding in LibTorch's operators can
differ. On an AMD EPYC all 32 losses with 2.15.0 were those with 2.11.0, bit for bit; another processor's kernels may
round otherwise.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

RECIPE = pathlib.Path(__file__).resolve().parent.parent / "recipes/demo.toml"
SETTINGS = ["train.device=cpu", "train.threads=1", "precision.mode=fp32", "train.epochs=0.5", "schedule.warmup_epochs=0.1",
            "watch.every=1"]
LIMIT = 1e-4  # relative; training amplifies the difference of one rounding, 6e-8


def version(command):
    said = subprocess.run([command, "env"], check=True, capture_output=True, text=True).stdout
    return re.search(r"^libtorch +(\S+)", said, re.MULTILINE)[1]


def start(command, out):
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    return subprocess.Popen([command, "train", RECIPE, "--quiet", "--out", out, *settings])


def losses(out):
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["kind"] == "step"]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    commands = sys.argv[1:]
    versions = " and ".join(map(version, commands))
    with tempfile.TemporaryDirectory() as scratch:
        outs = [pathlib.Path(scratch) / name for name in ("one", "other")]
        running = [start(command, out) for command, out in zip(commands, outs, strict=True)]
        if any([process.wait() for process in running]):
            sys.exit("same_losses: a run failed (its message is above)")
        one, other = map(losses, outs)
    if len(one) < 20 or len(one) != len(other):
        sys.exit(f"same_losses: {len(one)} and {len(other)} records, on LibTorch {versions}")
    differences = [abs(a - b) / a for a, b in zip(one, other, strict=True)]
    print(f"LibTorch {versions}: {len(one)} losses, from {one[0]:.4f} to {one[-1]:.4f}; largest relative difference "
          f"{max(differences):.1e}, of the first ten {max(differences[:10]):.1e}")
    if max(differences) > LIMIT:
        step = next(step for step, difference in enumerate(differences, 1) if difference > LIMIT)
        sys.exit(f"same_losses: the losses of step {step} differ by more than {LIMIT}")


if __name__ == "__main__":
    main()
