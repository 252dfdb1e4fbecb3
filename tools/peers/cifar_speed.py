#!/usr/bin/env python3
"""recipes/cifar10-speed.toml next to the public record's uncompiled script, on the same images.

    tools/peers/cifar_speed.py --record airbench94.py --train cifar10-train.tar --test cifar10-test.tar
                               [--seeds 1] [--set KEY=VALUE ...] [--python PYTHON] [--json FILE]

The script is legacy/airbench94.py of https://github.com/KellerJordan/cifar10-airbench, from where you must get
it. It runs unchanged except for a seed, on the images of the archives. Without a GPU its GPU calls are replaced,
and it computes like saturate on a CPU: autocast to bf16 over fp32 weights. Rows: accuracy of both on the held-out
images, over mirrored and shifted views, one value per seed; `epochs` and `train_s` of the last run. Takes an
hour on two cores. The Python needs torch and torchvision.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import peer_report
from peer_report import ROOT, overrides

# The record's script reads the whole set from a file made in this way, if it exists.
UNPACK = """
import sys, tarfile, torch
from torchvision.io import decode_jpeg
archive = tarfile.open(sys.argv[1])
members = [member for member in archive if member.isfile()]
names = [member.name.split("/")[-2] for member in members]
classes = sorted(set(names))
encoded = (torch.frombuffer(bytearray(archive.extractfile(member).read()), dtype=torch.uint8) for member in members)
torch.save({"images": torch.stack([decode_jpeg(image).permute(1, 2, 0) for image in encoded]),
            "labels": torch.tensor([classes.index(name) for name in names]), "classes": classes}, sys.argv[2])
"""
START = "import sys, torch\ntorch.manual_seed(int(sys.argv[1]))\n"
END = 'print("epochs", hyp["opt"]["train_epochs"])\nmain(0)\n'
# The script's text for a GPU, and its replacement for a CPU.
ON_CPU = [
    ("torch.device(gpu)", "'cpu'"),
    ("(self.images.half() / 255)", "(self.images.float() / 255)"),
    ("net.half().cuda()", "net.float()"),
    ("            outputs = model(inputs)\n",
     "            with torch.autocast('cpu', torch.bfloat16):\n"
     "                outputs = model(inputs).float()\n"),
    ("    with torch.no_grad():\n        return torch.cat",
     "    with torch.no_grad(), torch.autocast('cpu', torch.bfloat16):\n        return torch.cat"),
    ("torch.cuda.Event(enable_timing=True)", "Clock()"),
    ("torch.cuda.synchronize()", "pass"),
]
CLOCK = """
import time
class Clock:
    def record(self):
        self.s = time.monotonic()
    def elapsed_time(self, end):
        return (end.s - self.s) * 1e3
"""


def seeded_script(path, has_gpu):
    """The record's script, changed to run once, with its first argument as the seed."""
    text = path.read_text(encoding="utf-8")
    text = text[:text.index('if __name__ == "__main__"')]
    if not has_gpu:
        for found, instead in ON_CPU:
            if found not in text:
                sys.exit(f"{path}: {found!r} is missing: use legacy/airbench94.py")
            text = text.replace(found, instead)
        text = CLOCK + text
    return START + text + END


def run_record(python, folder, seed):
    """Accuracy, epochs and seconds of training, from the last line of its table."""
    environment = os.environ | {"OMP_NUM_THREADS": str(peer_report.cores())}
    output = subprocess.run([python, "record.py", str(seed)], cwd=folder, env=environment, check=True,
                            capture_output=True, text=True).stdout
    epochs = float(re.search(r"^epochs (\S+)$", output, re.MULTILINE)[1])
    last = [line for line in output.splitlines() if re.match(r"\|.*\beval\b", line)][-1]
    figures = re.findall(r"\d+\.\d+", last)
    return 100 * float(figures[-2]), epochs, float(figures[-1])


def run_saturate(saturate, arguments, folder, seed):
    out = folder / f"run{seed}"
    settings = [f"data.source=tar:{arguments.train}", f"data.eval_source=tar:{arguments.test}", f"seed={seed}",
                *arguments.set]
    subprocess.run([saturate, "train", ROOT / "recipes/cifar10-speed.toml", "--out", out, *overrides(settings)],
                   check=True, stdout=sys.stderr)
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    last = {record["kind"]: record for record in records}
    return 100 * last["eval"]["accuracy"], last["epoch"]["epoch"], last["epoch"]["time_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", required=True, type=pathlib.Path)
    parser.add_argument("--train", required=True, type=pathlib.Path)
    parser.add_argument("--test", required=True, type=pathlib.Path)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--saturate", default=str(ROOT / "build/saturate"))
    parser.add_argument("--json")
    arguments = parser.parse_args()
    arguments.train, arguments.test = arguments.train.resolve(), arguments.test.resolve()
    probe = subprocess.run([arguments.python, "-c", "import torch; print(torch.cuda.is_available())"],
                           check=True, capture_output=True, text=True)
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        (folder / "record.py").write_text(seeded_script(arguments.record, "True" in probe.stdout))
        (folder / "cifar10").mkdir()
        for archive, name in (arguments.train, "train"), (arguments.test, "test"):
            subprocess.run([arguments.python, "-c", UNPACK, archive, folder / f"cifar10/{name}.pt"], check=True)
        sides = {"record": lambda seed: run_record(arguments.python, folder, seed),
                 "saturate": lambda seed: run_saturate(arguments.saturate, arguments, folder, seed)}
        found = {side: [run(int(seed)) for seed in arguments.seeds.split(",")] for side, run in sides.items()}
    rows = [peer_report.with_spread({"name": side, "unit": "% right", "epochs": runs[-1][1], "train_s": runs[-1][2]},
                                    [run[0] for run in runs]) for side, runs in found.items()]
    peer_report.write("cifar_speed", rows, arguments.json, peer_report.commit_of(arguments.saturate))


if __name__ == "__main__":
    main()
