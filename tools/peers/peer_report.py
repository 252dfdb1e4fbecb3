"""The results of the peer scripts, as the JSON of `saturate bench` (docs/bench.md)."""

import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def cpu_name():
    with open("/proc/cpuinfo", encoding="ascii") as file:
        names = (line.split(": ", 1)[1] for line in file if line.startswith("model name"))
        return next(names, "n/a").strip()


def cores():
    return len(os.sched_getaffinity(0))


def has_bf16():
    """Whether this CPU computes in bf16; others emulate it."""
    flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii")
    return "avx512_bf16" in flags or "amx_bf16" in flags


def overrides(settings):
    """Words of a command line, for settings KEY=VALUE of a recipe."""
    return [word for setting in settings for word in ("--set", setting)]


def make_environment(folder, saturate=ROOT / "build/saturate"):
    """A new interpreter below `folder`, with the torch version that `saturate` is built with, and torchvision for it."""
    said = subprocess.run([saturate, "env"], check=True, capture_output=True, text=True).stdout
    torch = re.search(r"^libtorch +(\S+)", said, re.MULTILINE)[1]
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"torch=={torch}", "torchvision"], check=True)
    return python


def with_spread(row, values):
    """The row with median and range of its values, one per round."""
    return row | {"median": statistics.median(values), "min": min(values), "max": max(values),
                  "n": len(values)}


def measure(epoch, seconds):
    """Images per second over whole epochs, for at least `seconds`; epoch() returns its number of images."""
    start, images = time.monotonic(), 0
    while True:
        images += epoch()
        passed = time.monotonic() - start
        if passed >= seconds:
            return images / passed


def bench_loader(saturate, source, threads, seconds, *more):
    """The result of one run of `saturate bench loader`, a new process with a warm-up."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([saturate, "bench", "loader", source, "--threads", str(threads), "--repeats", "1", "--seconds",
                        str(seconds), *more, "--json", file.name], check=True, stdout=subprocess.DEVNULL)
        return json.loads(pathlib.Path(file.name).read_text(encoding="utf-8"))


def commit_of(saturate):
    """The commit from which the command was built; the checkout may be at a later one."""
    said = subprocess.run([saturate, "env"], capture_output=True, text=True, check=True).stdout
    return next(line.split()[1] for line in said.splitlines() if line.startswith("commit "))


def commit_of_checkout():
    """None without git, such as on a machine with a staged gpu-check."""
    try:
        return subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True,
                              text=True, check=False).stdout.strip() or None
    except FileNotFoundError:
        return None


def write(bench, rows, path=None, commit=None, **more):
    """Prints the rows, and writes them to `path` if given; `more` are further entries of the file."""
    result = {"bench": bench,
              "host": {"cpu": cpu_name(), "system": platform.platform(), "cores": cores()},
              "commit": commit, **more, "rows": rows}
    text = json.dumps(result, indent=2)
    print(text)
    if path:
        pathlib.Path(path).write_text(text + "\n", encoding="utf-8")
