#!/usr/bin/env python3
"""The cost of saving to a run: no saves, saves in the background, saves in the foreground, interleaved.

Trains ResNet-18 on drawn images with `saturate train` and reads the steps' times from metrics.jsonl.
The cost of a save is the time that the steps after it take longer than those around them: compared
within a run, a machine that slows down for a minute changes little. The run without saves is measured
at the same steps, and shows how much of a cost is noise.
With --python, an interpreter with torch, also measures for how long torch.save of the same
tensors, synced to disk, blocks a Python loop.

  bench/checkpoint_cost.py --rounds 5 --json results/checkpoint_cost.json
"""

import argparse
import json
import math
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools/peers"))
from peer_report import overrides, with_spread  # noqa: E402

VARIANTS = {
    "no saves": ["checkpoint.every=0"],
    "background": ["debug.off=[]"],
    "foreground": ['debug.off=["background"]'],
}
WARM_UP = 4  # steps
AFFECTED_S = 1  # seconds after a save that it may slow down; two steps at least

PEER = """
import os, sys, time, torch, torchvision
model = torchvision.models.resnet18()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model(torch.randn(2, 3, 64, 64)).sum().backward()
optimizer.step()
for _ in range(3):  # the first ones warm up
    begin = time.perf_counter()
    with open(sys.argv[1], "wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begin
print(seconds)
"""


def train(saturate, folder, arguments, settings):
    fixed = [
        f"data.source=synth:size={arguments.size},count=100000",
        "data.eval_source=",
        f"augment.size={arguments.size}",
        f"train.batch={arguments.batch}",
        f"train.epochs={arguments.batch * arguments.steps / 100000}",
        "schedule.warmup_epochs=0",
        f"checkpoint.every={arguments.every} steps",
        "watch.every=1",
    ]
    subprocess.run([saturate, "train", ROOT / "recipes/imagenet-sample.toml", "--quiet", "--out", folder,
                    *overrides(fixed + settings)], check=True, stdout=subprocess.DEVNULL)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [sum(record["phases"].values()) for record in records if record["kind"] == "step"]


def costs_of_saves(times, every):
    """For each save, the seconds it added, and the seconds by which the longest step after it exceeds
    the median step around it. times[i]: seconds of step i + 1, with everything before it."""
    affected = max(2, math.ceil(AFFECTED_S / statistics.median(times)))
    around = min(every - affected, 6)  # steps on each side to compare with
    assert around > 1, "too few steps between saves to compare with"
    added, pauses = [], []
    for save in range(every, len(times) - affected - around + 1, every):
        first, last = save - 1, save - 1 + affected
        near = times[max(WARM_UP, first - around) : first] + times[last : last + around]
        usual = statistics.median(near)
        added.append(sum(times[first:last]) - affected * usual)
        pauses.append(max(times[first:last]) - usual)
    return added, pauses


def row(name, unit, values):
    return with_spread({"name": name, "unit": unit}, values)


def host(saturate):
    """This machine and build, from `saturate env`."""
    out = subprocess.run([saturate, "env"], check=True, capture_output=True, text=True).stdout
    rows = dict(line.split(None, 1) for line in out.splitlines() if len(line.split(None, 1)) == 2)
    return {key: rows.get(key) for key in ("cpu", "cores", "system", "libtorch", "build", "commit")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--saturate", default=ROOT / "build/saturate")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=112)
    parser.add_argument("--every", type=int, default=20, help="steps between saves")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--python", help="an interpreter with torch and torchvision, for the peer")
    parser.add_argument("--json")
    arguments = parser.parse_args()

    steps = {name: [] for name in VARIANTS}
    costs = {name: [] for name in VARIANTS}
    pauses = {name: [] for name in VARIANTS}
    peer = []
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        for _ in range(arguments.rounds):
            for name, settings in VARIANTS.items():
                run = pathlib.Path(folder) / "run"
                times = train(arguments.saturate, run, arguments, settings)
                steps[name] += times[WARM_UP:]
                added, longest = costs_of_saves(times, arguments.every)
                costs[name] += added
                pauses[name] += longest
                size = max(file.stat().st_size for file in (run / "checkpoints").iterdir())
                shutil.rmtree(run)
            if arguments.python:
                command = [arguments.python, "-c", PEER, f"{folder}/peer.pt"]
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                peer.append(float(out))
        interval = arguments.every * statistics.median(steps["no saves"])
        rows = [row(f"step, {name}", "s", values) for name, values in steps.items()]
        rows += [row(f"added by a save, {name}", "s", values) for name, values in costs.items()]
        rows += [
            row(f"share of time, a save every {interval:.0f} s, {name}", "share",
                [cost / interval for cost in values])
            for name, values in costs.items()
        ]
        rows += [
            row(f"longest step from a save on, above the median, {name}", "s", values)
            for name, values in pauses.items()
        ]
        rows.append(row("checkpoint size", "bytes", [size]))
        if peer:
            rows.append(row("pause, torch.save and fsync", "s", peer))

    for line in rows:
        print("{name:<60} {median:>12.4f} {unit:<6} ({min:.4f} to {max:.4f}, n={n})".format(**line))
    if arguments.json:
        machine = host(arguments.saturate)
        commit = machine.pop("commit")
        result = {"bench": "checkpoint_cost", "host": machine, "commit": commit, "rows": rows}
        pathlib.Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
