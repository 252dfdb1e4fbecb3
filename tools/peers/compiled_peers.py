#!/usr/bin/env python3
"""Steps per second of one training step: saturate eager and compiled, Python eager and torch.compile.

All four train the same model on the same shapes, with SGD and momentum, with the recipe's threads and
precision (autocast in Python). Data loading does not count: saturate's time is forward, backward and
optimizer of its ledger. Rounds are interleaved; the table has medians and ranges.

  tools/peers/compiled_peers.py RECIPE.toml --compiled step.pt2 --python VENV/bin/python --json out.json
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib

import peer_report
from peer_report import ROOT, overrides

sys.path.insert(0, str(ROOT / "tools"))


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", metavar="RECIPE.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--compiled", required=True, metavar="STEP.pt2")
    parser.add_argument("--python", default=sys.executable, help="a Python with torch, for the Python variants")
    parser.add_argument("--saturate", default=str(ROOT / "build/saturate"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3, help="seconds of each measurement in Python")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def resolved_recipe(args):
    shown = subprocess.run([args.saturate, "train", args.recipe, "--print-recipe",
                            *overrides([*args.set, "train.compiled="])],
                           capture_output=True, text=True, check=True).stdout
    recipe = tomllib.loads(shown)
    # Python's loop has these values.
    for key, value in {"optimizer.name": "sgd", "train.task": "classify", "train.label_smoothing": 0.0,
                       "train.accumulate": 1, "train.clip_norm": 0.0}.items():
        section, name = key.split(".")
        if recipe[section][name] != value:
            sys.exit(f"compiled_peers: {key} is {recipe[section][name]}, and Python's loop has {value}. Add --set "
                     f"{key}={value}")
    if not isinstance(recipe["augment"]["size"], int):
        sys.exit("compiled_peers: augment.size must be one number, of square images")
    return recipe


def of_saturate(args, compiled):
    """Steps per second by the ledger, without the first tenth of the run."""
    settings = [*args.set, f"train.compiled={args.compiled if compiled else ''}", "watch.every=1",
                "watch.progress=false"]
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "run")
        subprocess.run([args.saturate, "train", args.recipe, "--quiet", "--out", out,
                        *overrides(settings)], check=True, capture_output=True)
        lines = [json.loads(line) for line in open(os.path.join(out, "metrics.jsonl"))]
    steps = [line["phases"] for line in lines if line["kind"] == "step"]
    steps = steps[len(steps) // 10 + 1:]
    seconds = [step["forward"] + step["backward"] + step["optimizer"] for step in steps]
    return 1 / statistics.median(seconds)


def serve(args):
    """Measures on demand: reads "eager" or "compiled" from stdin, and answers with steps per second."""
    import torch

    from model_twins import make_twin

    recipe = json.loads(sys.stdin.readline())
    torch.set_num_threads(recipe["train"]["threads"])
    size, batch = recipe["augment"]["size"], recipe["train"]["batch"]
    order = torch.channels_last if "channels_last" not in recipe["debug"]["off"] else torch.contiguous_format
    reduced = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(recipe["precision"]["mode"])

    def make(compiled):
        torch.manual_seed(0)
        model = make_twin(recipe["model"]["name"], recipe["model"]["classes"], size,
                          recipe["model"]["width"],
                          dropout=recipe["model"]["dropout"]).to(memory_format=order)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True,
                                    weight_decay=5e-4, fused=True)
        images = torch.randn(batch, 3, size, size).contiguous(memory_format=order)
        labels = torch.arange(batch) % recipe["model"]["classes"]
        run = torch.compile(model) if compiled else model

        def step():
            with torch.autocast("cpu", reduced or torch.bfloat16, enabled=reduced is not None):
                logits = run(images)
            loss = torch.nn.functional.cross_entropy(logits.float(), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        for _ in range(5):
            step()
        return step

    steps = {"eager": make(False), "compiled": make(True)}
    print("ready", flush=True)
    for line in sys.stdin:
        step, times = steps[line.strip()], []
        end = time.perf_counter() + args.seconds
        while time.perf_counter() < end:
            begin = time.perf_counter()
            step()
            times.append(time.perf_counter() - begin)
        print(1 / statistics.median(times), flush=True)


class Peer:
    """The Python variants, kept warm in a separate process."""

    def __init__(self, args, recipe):
        self.process = subprocess.Popen([args.python, __file__, *sys.argv[1:], "--serve"], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.ask(json.dumps(recipe))

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit("compiled_peers: error: the Python side ended")
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    args = arguments()
    if args.serve:
        serve(args)
        return
    recipe = resolved_recipe(args)
    peer = Peer(args, recipe)
    variants = {
        "saturate": lambda: of_saturate(args, compiled=False),
        "saturate, compiled": lambda: of_saturate(args, compiled=True),
        "Python": lambda: float(peer.ask("eager")),
        "Python, torch.compile": lambda: float(peer.ask("compiled")),
    }
    values = {name: [] for name in variants}
    for _ in range(args.rounds):
        for name, measure in variants.items():
            values[name].append(measure())
    peer.close()
    rows = [peer_report.with_spread({"name": name, "unit": "steps/s"}, found) for name, found in values.items()]
    for row in rows:
        print(f"{row['name']:<24}{row['median']:10.1f}  ({row['min']:.1f} to {row['max']:.1f})  "
              f"{row['median'] / rows[0]['median']:.2f} of saturate eager")
    if args.json:
        host = {"cpu": peer_report.cpu_name(), "system": platform.platform(), "cores": peer_report.cores()}
        commit = peer_report.commit_of(args.saturate)
        pathlib.Path(args.json).write_text(json.dumps({"bench": "compiled_peers", "host": host, "commit": commit,
                                                       "recipe": recipe, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
