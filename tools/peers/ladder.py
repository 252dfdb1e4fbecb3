#!/usr/bin/env python3
"""The rungs of a ladder in PyTorch, interleaved, with the names and the JSON of `saturate ladder`.

    tools/peers/ladder.py ladders/free-speed.toml [--rounds 5] [--seconds 1] [--json FILE]
                          [--python PYTHON]

A rung's settings are applied as in a Python program: model (tools/model_twins.py), batch,
channels_last, fused optimizer, set_to_none, precision by autocast, loss.item() in every step if
metrics are not read late, anomaly detection, frozen parameters. Batches are noise in memory, made
before the measurement, another one in each step. A rung with other settings (storage, augmentation,
checkpoints) is skipped, and says which has no counterpart here. Every learning rate is 0. `saturate
ladder` reads and augments its images too: compare speedups, not rates.

Without --python, a temporary environment gets torch and torchvision from PyPI (gigabytes).
"""

import argparse
import contextlib
import fnmatch
import itertools
import json
import math
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib

import peer_report
from peer_report import ROOT

# The recipe's keys that are supported here, with saturate's defaults.
DEFAULTS = {"model.name": "resnet18", "model.width": 1.0, "model.classes": 0, "optimizer.name": "sgd",
            "optimizer.freeze": [], "train.batch": 128, "train.threads": 0, "train.device": "auto",
            "precision.mode": "default", "augment.size": 0, "data.source": "", "debug.off": [],
            "debug.checks": []}
# The names in debug.off and debug.checks that have a counterpart here, or need none.
SWITCHES = {"debug.off": {"fused", "set_to_none", "channels_last", "late_metrics", "create_on_device",
                          "cudnn_heuristics", "tf32", "background", "inference_mode", "keep_memory"},
            "debug.checks": {"anomaly"}}
# Keys that do not affect a step on prepared batches.
WITHOUT_EFFECT = ("seed", "data.eval_source", "schedule.", "train.epochs", "optimizer.lr", "optimizer.momentum",
                  "optimizer.weight_decay", "augment.crop", "augment.mean", "augment.std",
                  "augment.flip", "checkpoint.", "watch.")
# Student's t, two-sided 95 %, for 1 to 4 degrees of freedom.
STUDENT = [12.706, 4.303, 3.182, 2.776]


# ---- the ladder's file --------------------------------------------------------------------------

def flatten(table, prefix=""):
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def parse_setting(text):
    """"section.key=value"; the value is TOML, or text if it is not valid TOML."""
    key, value = text.split("=", 1)
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, [value] if key in SWITCHES else value


def read_ladder(path):
    """The ladder, and its rungs: each with its settings over the recipe, and the number of the rung it builds on."""
    ladder = tomllib.loads(path.read_text(encoding="utf-8"))
    recipe = tomllib.loads((path.parent / ladder["recipe"]).read_text(encoding="utf-8"))
    base = list(flatten(recipe)) + [parse_setting(text) for text in ladder.get("set", [])]
    rungs, names = [], {}
    for number, table in enumerate(ladder["rung"]):
        built_on = table.get("from")
        if built_on is None and number > 0:
            previous = number - 1
            inherited = rungs[previous]
        elif built_on in (None, "base"):
            previous, inherited = 0, {"set": [], "needs": [], "processes": 1}
        else:
            previous = names[built_on]
            inherited = rungs[previous]
        needs = table.get("needs", [])
        needs = inherited["needs"] + ([needs] if isinstance(needs, str) else needs)
        settings = inherited["set"] + table.get("set", [])
        rungs.append({"name": table["name"], "set": settings, "needs": needs, "previous": previous,
                      "processes": table.get("processes", inherited["processes"]),
                      "seed_figure": table.get("seed_figure"),
                      "settings": dict(base + [parse_setting(text) for text in settings])})
        names[table["name"]] = number
    return ladder, rungs


def why_skipped(rung, has_gpu):
    for need in rung["needs"]:
        if need != "cuda" or not has_gpu:
            return f"needs {need}"
    if rung["processes"] > 1:
        return f"needs processes>={rung['processes']}"
    for key, value in rung["settings"].items():
        if key in SWITCHES and (others := set(value) - SWITCHES[key]):
            return f"{key} with {', '.join(sorted(others))} has no counterpart here"
        # A rung that switches other things off measures what it leaves on.
        if key == "debug.off" and value and "keep_memory" not in value:
            return "keep_memory has no counterpart here"
        # A setting that is off needs no counterpart.
        if value is not False and key not in DEFAULTS and not key.startswith(WITHOUT_EFFECT):
            return f"{key} has no counterpart here"
    if (mode := str(rung["settings"].get("precision.mode"))).endswith(("-o2", "-o3")):
        return f"precision.mode={mode} has no counterpart here"
    source = rung["settings"]["data.source"]
    return None if source.startswith("synth:") else f"data.source={source} has no counterpart here"


# ---- a rung's process ---------------------------------------------------------------------------

def source_options(source):
    return dict(part.split("=", 1) for part in source.removeprefix("synth:").split(",") if "=" in part)


def make_step(settings):
    """A function that makes one step, the images in it, and a function that waits for the device."""
    sys.path.insert(0, str(ROOT / "tools"))
    import torch
    from model_twins import make_twin

    chosen = DEFAULTS | {key: value for key, value in settings.items() if key in DEFAULTS}
    off = chosen["debug.off"]
    drawn = source_options(chosen["data.source"])
    size = chosen["augment.size"] or int(drawn.get("size", 32))
    classes = chosen["model.classes"] or int(drawn.get("classes", 10))
    has_gpu = torch.cuda.is_available() and chosen["train.device"] != "cpu"
    device = torch.device("cuda" if has_gpu else "cpu")
    torch.manual_seed(0)
    torch.set_num_threads(chosen["train.threads"] or len(os.sched_getaffinity(0)))
    torch.autograd.set_detect_anomaly("anomaly" in chosen["debug.checks"])
    torch.backends.cudnn.benchmark = "cudnn_heuristics" in off
    mode = chosen["precision.mode"]
    if mode in ("default", "auto"):
        is_native = (torch.cuda.is_bf16_supported(including_emulation=False) if has_gpu
                     else mode == "auto" and peer_report.has_bf16())
        mode = "bf16" if is_native else "fp32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = "tf32" not in off and mode != "fp32"
    memory_format = torch.channels_last if "channels_last" not in off else torch.contiguous_format
    model = make_twin(chosen["model.name"], classes, size, chosen["model.width"])
    model = model.to(device=device, memory_format=memory_format)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(fnmatch.fnmatch(name, pattern)
                                         for pattern in chosen["optimizer.freeze"]))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    makers = {"sgd": lambda: torch.optim.SGD(trained, lr=0.0, momentum=0.9, nesterov=True, weight_decay=5e-4,
                                             fused="fused" not in off),
              "adam": lambda: torch.optim.Adam(trained, lr=0.0, fused="fused" not in off),
              "adamw": lambda: torch.optim.AdamW(trained, lr=0.0, fused="fused" not in off)}
    optimizer = makers[chosen["optimizer.name"]]()
    batch = chosen["train.batch"]
    images = [torch.randn(batch, 3, size, size).contiguous(memory_format=memory_format) for _ in range(8)]
    labels = [torch.randint(classes, (batch,)) for _ in range(8)]
    types = {"bf16": torch.bfloat16, "fp16": torch.float16}
    scaler = torch.amp.GradScaler(device.type, enabled=mode == "fp16")
    state = {"step": 0, "loss": torch.zeros((), device=device)}

    def step():
        place = state["step"] % len(images)
        state["step"] += 1
        x, y = images[place].to(device, non_blocking=True), labels[place].to(device, non_blocking=True)
        with torch.autocast(device.type, types.get(mode, torch.bfloat16), enabled=mode in types):
            logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none="set_to_none" not in off)
        if "late_metrics" not in off:
            state["loss"] += loss.detach()
        else:
            loss.item()

    return step, batch, torch.cuda.synchronize if has_gpu else lambda: None


def work(settings):
    """Reads seconds from stdin, one line per measurement; trains for so long, and prints the result."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries goes to stderr
    try:
        step, batch, wait = make_step(settings)
    except LookupError as error:  # from tools/model_twins.py
        print(error.args[0], file=answers, flush=True)
        return
    for _ in range(5):
        step()
    wait()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        step()
        wait()
        start, cpu, steps = time.perf_counter(), time.process_time(), 0
        while steps == 0 or time.perf_counter() - start < float(line):
            step()
            steps += 1
        wait()
        passed = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"steps_per_s": steps / passed, "images_per_s": steps * batch / passed,
                          "cores_used": (time.process_time() - cpu) / passed, "memory_peak_bytes": peak}),
              file=answers, flush=True)


class Worker:
    """A rung's process, which waits between its measurements."""

    def __init__(self, python, rung):
        self.process = subprocess.Popen([python, __file__, "--worker", json.dumps(rung["settings"])],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.rounds = []

    def why_not_ready(self):
        said = self.process.stdout.readline().strip()
        return None if said == "ready" else said or "its process ended"

    def measure(self, seconds):
        print(seconds, file=self.process.stdin, flush=True)
        self.rounds.append(json.loads(self.process.stdout.readline()))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


# ---- results ------------------------------------------------------------------------------------

def paired_gain(before, after):
    """Ratio of interleaved rates, and its 95 % interval, as in src/advise/gain.cpp."""
    logs = [math.log(b / a) for a, b in zip(before, after, strict=True)]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return {"gain": math.exp(mean), "low": 0, "high": None}
    if len(logs) > 5:
        walsh = sorted((a + b) / 2 for i, a in enumerate(logs) for b in logs[i:])
        outside = walsh_averages_outside(len(logs))
        return {"gain": math.exp(statistics.median(walsh)), "low": math.exp(walsh[outside - 1]),
                "high": math.exp(walsh[-outside])}
    wide = STUDENT[len(logs) - 2] * statistics.stdev(logs) / math.sqrt(len(logs))
    return {"gain": math.exp(mean), "low": math.exp(mean - wide), "high": math.exp(mean + wide)}


def walsh_averages_outside(n):
    subsets = [1] + [0] * (n * (n + 1) // 2)  # of 1 ... n, by their sum
    for rank in range(1, n + 1):
        subsets = [count + (subsets[at - rank] if at >= rank else 0) for at, count in enumerate(subsets)]
    below = list(itertools.accumulate(subsets))
    return next(k for k, count in enumerate(below) if count > 0.025 * 2 ** n)


def rung_json(rung, worker, first, previous, skipped):
    found = {"name": rung["name"], "set": rung["set"], "processes": rung["processes"],
             "steps_per_s": None, "images_per_s": None, "n": 0,
             "gain_previous": None, "low_previous": None, "high_previous": None, "gain_first": None, "low": None,
             "high": None, "phases": None, "cores_used": None, "memory_peak_bytes": None,
             "tensor_peak_bytes": None, "skipped": skipped, "seed_figure": rung["seed_figure"],
             "seed_gain_first": None}
    if worker is None:
        return found
    for key in ("steps_per_s", "images_per_s", "cores_used"):
        found[key] = statistics.median(one[key] for one in worker.rounds)
    found["n"], found["memory_peak_bytes"] = len(worker.rounds), worker.rounds[-1]["memory_peak_bytes"]

    def rates(one):
        return [measured["images_per_s"] for measured in one.rounds]

    if previous not in (None, worker):
        gain = paired_gain(rates(previous), rates(worker))
        found |= {"gain_previous": gain["gain"], "low_previous": gain["low"], "high_previous": gain["high"]}
    if first not in (None, worker):
        gain = paired_gain(rates(first), rates(worker))
        found |= {"gain_first": gain["gain"], "low": gain["low"], "high": gain["high"]}
    return found


def run_rungs(rungs, python, has_gpu, rounds, seconds):
    with contextlib.ExitStack() as stack:
        workers, skipped = [], []
        for rung in rungs:
            why, worker = why_skipped(rung, has_gpu), None
            if why is None:
                worker = Worker(python, rung)
                stack.callback(worker.close)
                why = worker.why_not_ready()
                worker = None if why else worker
            workers.append(worker)
            skipped.append(why)
        running = [worker for worker in workers if worker]
        for number in range(rounds):
            for worker in running if number % 2 == 0 else reversed(running):
                worker.measure(seconds)
        return [rung_json(rung, worker, workers[0], workers[rung["previous"]], why)
                for rung, worker, why in zip(rungs, workers, skipped, strict=True)]


def print_table(found):
    for rung in found:
        if rung["skipped"]:
            print(f"{rung['name']:<34} skipped: {rung['skipped']}", file=sys.stderr)
            continue
        gain = "" if rung["gain_first"] is None else f"{100 * (rung['gain_first'] - 1):+.1f} % over the first"
        print(f"{rung['name']:<34}{rung['steps_per_s']:>9.2f} steps/s{rung['images_per_s']:>11.1f} images/s  {gain}",
              file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladder", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--python", help="an interpreter with torch and torchvision")
    arguments = parser.parse_args()
    ladder, rungs = read_ladder(arguments.ladder)
    with tempfile.TemporaryDirectory() as path:
        python = arguments.python or peer_report.make_environment(pathlib.Path(path))
        probe = subprocess.run([python, "-c", "import torch; print(torch.cuda.is_available())"], check=True,
                               capture_output=True, text=True)
        found = run_rungs(rungs, python, probe.stdout.strip() == "True", arguments.rounds, arguments.seconds)
    print_table(found)
    text = json.dumps({"title": ladder["title"] + ", Python", "recipe": ladder["recipe"],
                       "set": ladder.get("set", []),
                       "host": {"cpu": peer_report.cpu_name(), "cores": peer_report.cores()},
                       "commit": peer_report.commit_of_checkout(),
                       "rounds": arguments.rounds, "seconds": arguments.seconds, "interrupted": False,
                       "rungs": found}, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(json.loads(sys.argv[2]))
    else:
        main()
