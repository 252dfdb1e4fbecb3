#!/usr/bin/env python3
"""`saturate bench step` next to the same model in Python, interleaved.

    tools/peers/step_peers.py [--cases mlp-sgd,mlp-adam,cnn,resnet18,table,table-2,gpt-tiny,gpt-mini]
                              [--rounds 5] [--seconds 2] [--variants eager,compile] [--compiled]
                              [--python PYTHON] [--json FILE]

Python: eager fp32, channels_last, bf16 by autocast (also channels_last), and torch.compile; each on one
held batch (premade) and from a DataLoader over tensors in memory (loader), with the fused optimizer and
without metrics; bf16 only if the CPU has it. saturate: the recipe's own loop, which reads, converts and
normalises pixels and computes metrics, with --compiled also with a step of tools/compile_step.py; and a
bare LibTorch loop. The mlp is 768-128-10 (16x16 RGB), with batch 64 on one thread; cnn is simple_cnn at
32 pixels, batch 512; resnet18 is torchvision's at 224 pixels, batch 32. Images are noise. Every learning
rate is 0.

table and table-2 are rows of ten numbers with one to predict, the mlp with 128 hidden units, batch 128, on one
thread and on two; on two, Python's DataLoader has a worker process.

The language models gpt-tiny (sequences of 128 tokens, batch 64), gpt-mini (256 tokens, batch 12) and, only if they are
named, gpt2 (1,024 tokens, batch 4) and gpt2-256 (256 tokens, batch 1) are counted in tokens. In Python they are
nanoGPT's model and loop in plain torch: premade is one held batch, loader its get_batch() from a memory-mapped file.
Tokens are noise.

Without --python, a temporary environment gets torch and torchvision from PyPI (gigabytes).
Prints the JSON of `saturate bench`.
"""

import argparse
import array
import contextlib
import itertools
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import peer_report
from peer_report import ROOT, has_bf16

CASES = {
    "mlp-sgd": {"model": "mlp", "optimizer": "sgd", "size": 16, "batch": 64, "images": 60000,
                "threads": 1, "variants": ["eager", "bf16", "compile"], "precisions": ["fp32"]},
    "mlp-adam": {"model": "mlp", "optimizer": "adam", "size": 16, "batch": 64, "images": 60000,
                 "threads": 1, "variants": ["eager", "bf16", "compile"], "precisions": ["fp32"]},
    "cnn": {"model": "simple_cnn", "optimizer": "sgd", "size": 32, "batch": 512, "images": 8192,
            "threads": 0, "variants": ["eager", "channels_last", "bf16", "compile", "compile-bf16"],
            "precisions": ["fp32", "bf16"]},
    "resnet18": {"model": "resnet18", "optimizer": "sgd", "size": 224, "batch": 32, "images": 320,
                 "threads": 0,
                 "variants": ["eager", "channels_last", "bf16", "compile", "compile-bf16"],
                 "precisions": ["fp32", "bf16"]},
} | {name: {"model": "mlp", "optimizer": "adamw", "inputs": 10, "batch": 128, "samples": 8192, "threads": threads,
            "variants": ["eager", "compile"], "precisions": ["fp32"]}
     for name, threads in (("table", 1), ("table-2", 2))
} | {name: {"model": model, "optimizer": "adamw", "context": context, "vocabulary": vocabulary, "batch": batch,
            "samples": samples, "threads": 0, "variants": ["eager", "bf16", "compile", "compile-bf16"],
            "precisions": ["fp32", "bf16"]}
     for name, model, context, vocabulary, batch, samples in (("gpt-tiny", "gpt_tiny", 128, 64, 64, 4096),
                                                              ("gpt-mini", "gpt_mini", 256, 65, 12, 2048),
                                                              ("gpt2", "gpt2", 1024, 50257, 4, 256),
                                                              ("gpt2-256", "gpt2", 256, 50257, 1, 256))}
BY_DEFAULT = [name for name in CASES if not name.startswith("gpt2")]
TRAINING = """[model]
name = "{model}"
[optimizer]
name = "{optimizer}"
[schedule]
name = "constant"
[precision]
mode = "{precision}"
[train]
batch = {batch}
threads = {threads}
drop_last = true
"""
RECIPE = """[data]
source = "idx:{images},{labels}"
[augment]
crop = "none"
flip = 0.0
mean = [0.5, 0.5, 0.5]
std = [0.25, 0.25, 0.25]
""" + TRAINING + """[debug]
off = {off}
"""
TOKENS_RECIPE = """[data]
source = "tokens:{tokens},context={context},vocabulary={vocabulary}"
""" + TRAINING
TABLE_RECIPE = """[data]
source = "npy:{x},{y},target=y"
threads = {threads}
""" + TRAINING


def write_array(path, shape, values):
    """Writes a .npy file of float32."""
    header = str({"descr": "<f4", "fortran_order": False, "shape": shape}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header +
                     array.array("f", values).tobytes())


def write_table(folder, case):
    """Writes rows of noise, x.npy and y.npy; returns their paths."""
    draw, count, inputs = random.Random(0), case["samples"], case["inputs"]
    x, y = folder / "x.npy", folder / "y.npy"
    if not x.exists():
        write_array(x, (count, inputs), [draw.gauss(0, 1) for _ in range(count * inputs)])
        write_array(y, (count,), [draw.gauss(0, 1) for _ in range(count)])
    return x, y


def write_tokens(folder, case):
    """Writes a file of uint16 tokens of the case; returns its path."""
    path = folder / f"{case['vocabulary']}-{case['context']}.bin"
    if not path.exists():
        draw, count = random.Random(0), case["samples"] * case["context"] + 1
        path.write_bytes(array.array("H", draw.choices(range(case["vocabulary"]), k=count)).tobytes())
    return path


def write_noise(folder, case):
    """Writes IDX files with the case's images and labels; returns their paths."""
    draw = random.Random(0)
    count, size = case["images"], case["size"]
    images, labels = folder / f"{size}-images", folder / f"{size}-labels"
    if not images.exists():
        header = b"".join(n.to_bytes(4, "big") for n in (0x803, count, size, size))
        images.write_bytes(header + draw.randbytes(count * size * size))
        labels.write_bytes(b"".join(n.to_bytes(4, "big") for n in (0x801, count)) +
                           bytes(i % 10 for i in range(count)))
    return images, labels


class Saturate:
    """Starts `saturate bench step` for each measurement, which returns several rows."""

    def __init__(self, command, folder, name, case, precision, compiler=None):
        self.recipe = folder / f"{name}-{precision}.toml"
        if "context" in case:
            text = TOKENS_RECIPE.format(tokens=write_tokens(folder, case), precision=precision, **case)
        elif "inputs" in case:
            x, y = write_table(folder, case)
            text = TABLE_RECIPE.format(x=x, y=y, precision=precision, **case)
        else:
            images, labels = write_noise(folder, case)
            text = RECIPE.format(
                images=images, labels=labels, precision=precision, model=case["model"],
                optimizer=case["optimizer"], batch=case["batch"], threads=case["threads"],
                off='["channels_last"]' if case["model"] == "mlp" else "[]")
        self.recipe.write_text(text, encoding="utf-8")
        self.per_sample = case.get("context", 1)
        self.command, self.out = command, folder / "step.json"
        self.label = precision
        self.settings = []
        if compiler:
            package = self.recipe.with_suffix(".pt2")
            subprocess.run([ROOT / "tools/compile_step.py", self.recipe, "--out", package, "--python", compiler,
                            "--saturate", command], check=True, stdout=subprocess.DEVNULL)
            self.settings = ["--set", f"train.compiled={package}"]
            self.label += " compiled"

    def measure(self, seconds):
        subprocess.run([self.command, "bench", "step", self.recipe, "--rounds", "1", "--seconds",
                        str(seconds), "--json", self.out, *self.settings], check=True,
                       stdout=subprocess.DEVNULL)
        found = json.loads(self.out.read_text())["rows"]
        return {f"saturate {row['name']} {self.label}": row["median"] * self.per_sample
                for row in found if row["unit"] in ("images/s", "samples/s")}

    def close(self):
        pass


class Python:
    """A worker process, which waits between its measurements."""

    def __init__(self, python, folder, case, variant, feed):
        threads = case["threads"] or peer_report.cores()
        if "context" in case:
            data = [write_tokens(folder, case), str(case["vocabulary"]), str(case["context"])]
        elif "inputs" in case:
            data = [*write_table(folder, case), str(case["inputs"])]
        else:
            data = [*write_noise(folder, case), str(case["size"])]
        self.worker = subprocess.Popen(
            [python, ROOT / "tools/peers/step_worker.py", "table" if "inputs" in case else case["model"],
             case["optimizer"], variant, feed, *data, str(case["batch"]), str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.label = f"python {variant} {feed}"
        if self.worker.stdout.readline() != "ready\n":
            raise RuntimeError(f"the worker ended with {self.worker.wait()}")

    def measure(self, seconds):
        print(seconds, file=self.worker.stdin, flush=True)
        done, passed = self.worker.stdout.readline().split()
        return {self.label: int(done) / float(passed)}

    def close(self):
        self.worker.stdin.close()
        self.worker.wait()


def start(python, saturate, folder, name, feeds, variants, compiled):
    """All variants of a case; one that does not work is skipped with a message."""
    case = CASES[name]
    chosen = [variant for variant in case["variants"] if not variants or variant in variants]
    precisions = case["precisions"]
    if not has_bf16():
        print(f"{name}: bf16 is skipped: this CPU would emulate it", file=sys.stderr)
        chosen = [variant for variant in chosen if "bf16" not in variant]
        precisions = ["fp32"]
    entries = [Saturate(saturate, folder, name, case, precision, compiler)
               for precision in precisions for compiler in [None] + [python] * compiled]
    for variant, feed in itertools.product(chosen, feeds):
        try:
            entries.append(Python(python, folder, case, variant, feed))
        except (RuntimeError, OSError) as error:
            print(f"{name} {variant} {feed}: skipped: {error}", file=sys.stderr)
    return entries


def run_case(name, entries, rounds, seconds):
    """The rows of a case; its entries are interleaved."""
    values = {}
    for _ in range(rounds):
        for entry in entries:
            for label, found in entry.measure(seconds).items():
                values.setdefault(label, []).append(found)
    case = CASES[name]
    unit = "tokens/s" if "context" in case else "samples/s" if "inputs" in case else "images/s"
    rows = [peer_report.with_spread({"name": f"{name} {label}", "unit": unit, "case": name,
                                     "peer": label, "values": found}, found) for label, found in values.items()]
    for row in rows:
        row["steps_per_s"] = row["median"] / case["batch"] / case.get("context", 1)
        print("{name:<44} {median:>10.1f} {unit}  ({min:.1f} to {max:.1f})  "
              "{steps_per_s:.2f} steps/s".format(**row), file=sys.stderr)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(BY_DEFAULT))
    parser.add_argument("--feeds", default="premade,loader")
    parser.add_argument("--variants", type=lambda text: text.split(","),
                        help="Python's variants, such as eager,compile (default: all of a case)")
    parser.add_argument("--compiled", action="store_true", help="measures saturate with a compiled step, too")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--python", help="an interpreter with torch and torchvision")
    parser.add_argument("--saturate", default=ROOT / "build/saturate")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        python = arguments.python or peer_report.make_environment(folder, arguments.saturate)
        for name in arguments.cases.split(","):
            with contextlib.ExitStack() as stack:
                entries = start(python, arguments.saturate, folder, name,
                                arguments.feeds.split(","), arguments.variants, arguments.compiled)
                for entry in entries:
                    stack.callback(entry.close)
                rows += run_case(name, entries, arguments.rounds, arguments.seconds)
    peer_report.write("step_peers", rows, arguments.json, peer_report.commit_of(arguments.saturate))


if __name__ == "__main__":
    main()
