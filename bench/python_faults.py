#!/usr/bin/env python3
"""Plants twenty faults in five training loops, and five in one on a GPU, for `python -m saturate diagnose` to find.

    bench/python_faults.py [--only LOOP[:CAUSE]] [--rounds 3] [--seconds 8] [--device-ms 3.5] [--scripts DIR]
                           [--json FILE] [--table FILE]

A fault is a change of a script's arguments or text. For each of the faults, and for each loop without one, it records
the first cause that diagnose names, the gain that it predicts, and the realised gain: the ratio of the steps/s of the
script without and with the fault, in interleaved runs of whole epochs, at least --seconds each. Beside it stands what
TraceML (traceml-ai on PyPI; left out if its command `traceml` is missing) says of a run with the fault. torchvision's
reference script and timm's train.py are downloaded from GitHub into --scripts (build/python-faults/scripts) unless they
are there already. Needs the package, torch, torchvision, and per loop lightning, accelerate or timm; a loop whose
package or GPU is missing is skipped.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import runpy
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request

from planted_faults import FAULTS, LOOPS, SOURCES

ROOT = pathlib.Path(__file__).resolve().parent
WARM_STEPS = 6
LONG_EPOCH = 3  # times the seconds of a run: epochs that are longer are cut off
TIME_LIMIT_S = 600
FAULT_S = 75  # of a diagnosis of a fault, unless they are given


def measure_rate():
    """This process runs a script, and ends after some seconds of whole epochs: RESULT SECONDS SCRIPT ARGUMENTS. What
    the script does between two epochs, such as an evaluation, does not count, as in a diagnosis."""
    result, seconds, script, *arguments = sys.argv[2:]
    import multiprocessing

    from torch.optim import optimizer

    epochs = Epochs()
    traced = traced_steps() if os.environ.get("PYTHON_FAULTS_TRACED") else None

    def after_step(*_):
        if traced:
            traced.close()
        epochs.after_step()
        is_whole = epochs.in_epoch == WARM_STEPS or epochs.seconds() >= LONG_EPOCH * float(seconds)
        if is_whole and epochs.seconds() >= float(seconds):
            pathlib.Path(result).write_text(json.dumps((epochs.steps - WARM_STEPS) / epochs.seconds()))
            if traced:
                raise SystemExit  # TraceML writes its summary
            for worker in multiprocessing.active_children():
                worker.terminate()
            os._exit(0)

    optimizer.register_optimizer_step_post_hook(after_step)
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")


class Epochs:
    """The steps of a script, and the time of its epochs since the first WARM_STEPS steps."""

    def __init__(self):
        from torch.utils import data
        from torch.utils.data import dataloader

        self.steps = self.in_epoch = 0
        self.begin = time.perf_counter()
        self.ended = self.training = self.latest = None
        open_, next_ = data.DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__

        def opened(loader):
            if loader is self.training and self.ended is not None:
                self.begin += time.perf_counter() - self.ended
                self.ended, self.in_epoch = None, 0
            iterator = open_(loader)
            iterator.of_loader = loader
            return iterator

        def next_batch(iterator):
            try:
                batch = next_(iterator)
            except StopIteration:
                if iterator.of_loader is self.training:
                    self.ended = time.perf_counter()
                raise
            self.latest = iterator.of_loader
            return batch

        data.DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__ = opened, next_batch

    def after_step(self):
        self.training = self.training or self.latest
        self.steps += 1
        self.in_epoch += 1
        if self.steps == WARM_STEPS:
            self.begin = time.perf_counter()
        if self.ended is not None:  # a loop may fetch a batch ahead
            self.ended = time.perf_counter()

    def seconds(self):
        return time.perf_counter() - self.begin if self.steps > WARM_STEPS else 0.0


def traced_steps():
    """An ExitStack: TraceML traces each step of training from its batch until close()."""
    import contextlib

    import traceml_ai
    from torch import nn
    from torch.utils.data import dataloader

    traceml_ai.init(mode="auto")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):  # of TraceML's launcher: a script may take them for a group's
        os.environ.pop(name, None)
    active = contextlib.ExitStack()
    models = []

    def before_forward(module, _):
        if not models and next(module.parameters(), None) is not None:  # a transform has none
            models.append(module)

    hook = nn.modules.module.register_module_forward_pre_hook(before_forward)
    iterator = dataloader._BaseDataLoaderIter
    next_batch = iterator.__next__

    def traced_next(self):
        batch = next_batch(self)
        if models and models[0].training:
            hook.remove()
            active.close()
            active.enter_context(traceml_ai.trace_step(models[0]))
        return batch

    iterator.__next__ = traced_next
    return active


def make_images(folder, classes=8, side=48):
    """JPEG files of smooth noise, in one folder per class, below train, few and val."""
    if (folder / "complete").exists():
        return
    import numpy
    from PIL import Image

    random = numpy.random.default_rng(0)
    for part, count in (("train", 160), ("few", 40), ("val", 8)):
        for label in range(classes):
            place = folder / part / str(label)
            place.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                small = random.integers(0, 255, (side // 8, side // 8, 3), dtype=numpy.uint8)
                Image.fromarray(small).resize((side, side), Image.BICUBIC).save(place / f"{number}.jpg", quality=92)
    (folder / "complete").touch()


def fetch_scripts(folder, loops):
    """Those of the loops, with the files beside them."""
    wanted = {os.path.dirname(loop.script) for loop in loops if not loop.is_own}
    for name, address in SOURCES.items():
        place = folder / name
        if os.path.dirname(name) in wanted and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                with urllib.request.urlopen(address, timeout=60) as answer:
                    place.write_bytes(answer.read())
            except OSError as error:
                sys.exit(f"error: {address}: {error}. Put the file at {place}, or its folder into --scripts")


def planted(loop, fault, scripts, work):
    """A copy of the loop's script with the fault, or without (None): (script, arguments)."""
    folder = work / f"{loop.name}-{fault.cause if fault else 'healthy'}"
    shutil.rmtree(folder, ignore_errors=True)
    source = (ROOT / "loops" if loop.is_own else scripts) / loop.script
    if loop.is_own:
        folder.mkdir(parents=True)
        shutil.copy(source, folder)
    else:
        shutil.copytree(source.parent, folder)
    script = folder / source.name
    edit(script, fault.edits(loop) if fault else [], "bench/planted_faults.py")
    if not loop.needs_gpu:
        shutil.copy(ROOT / "loops/sitecustomize.py", folder)  # slows images and networks down
    arguments = [*loop.arguments, *(fault.arguments if fault else [])]
    return script, [part.format(data=work / "images", out=folder) for part in arguments]


def edit(script, edits, place):
    """`edits`: (before, after) texts, each replaced once. `place`: the file that defines them, for the error."""
    text = script.read_text()
    for before, after in edits:
        if before not in text:
            sys.exit(f"{pathlib.Path(sys.argv[0]).stem}: error: {script} has no text {before!r}. It is of another "
                     f"version: adapt {place}")
        text = text.replace(before, after, 1)
    script.write_text(text)


def run(command, script, log, **environment):
    path = os.pathsep.join(filter(None, (str(script.parent), os.environ.get("PYTHONPATH"))))
    with open(log, "w") as file:
        return subprocess.run(command, cwd=script.parent, stdout=file, stderr=subprocess.STDOUT, timeout=TIME_LIMIT_S,
                              env={**os.environ, "PYTHONPATH": path, **environment}).returncode


def diagnosed(script, arguments, seconds):
    """The diagnosis, or a line that says why there is none; and the seconds that it took."""
    answer = script.parent / "diagnosis.json"
    answer.unlink(missing_ok=True)
    begin = time.monotonic()
    given = ["--seconds", str(seconds)] if seconds else []
    code = run([sys.executable, "-m", "saturate", "diagnose", *given, "--json", str(answer), str(script), *arguments],
               script, script.parent / "diagnose.log")
    taken = time.monotonic() - begin
    if code != 0 or not answer.exists():
        lines = (script.parent / "diagnose.log").read_text().strip().splitlines() or [""]
        return {"verdict": f"no answer, exit code {code}: {lines[-1]}", "rate": None, "causes": []}, taken
    return json.loads(answer.read_text()), taken


def rate(script, arguments, seconds):
    answer = script.parent / "rate.json"
    answer.unlink(missing_ok=True)
    code = run([sys.executable, __file__, "--rate", str(answer), str(seconds), str(script), *arguments], script,
               script.parent / "rate.log")
    if not answer.exists():
        sys.exit(f"python_faults: error: {script} made too few steps, exit code {code}. See "
                 f"{script.parent / 'rate.log'}")
    return json.loads(answer.read_text())


def traceml_says(script, arguments, seconds):
    """The primary diagnosis of its summary, or None."""
    launcher = shutil.which("traceml", path=os.path.dirname(sys.executable)) or shutil.which("traceml")
    if not launcher:
        return None
    logs = script.parent / "traceml"
    shutil.rmtree(logs, ignore_errors=True)
    run([launcher, "run", __file__, "--mode", "summary", "--logs-dir", str(logs), "--args", "--rate",
         str(script.parent / "traced.json"), str(seconds), str(script), *arguments], script,
        script.parent / "traceml.log", PYTHON_FAULTS_TRACED="1")
    for summary in logs.rglob("final_summary.json"):
        return json.loads(summary.read_text()).get("primary_diagnosis", {}).get("kind")
    return "no answer"


def gains(slow, fast, options):
    """(median, lowest, highest) of the ratio of both rates, round by round."""
    ratios = []
    for number in range(options.rounds):
        order = (slow, fast) if number % 2 else (fast, slow)
        rates = {id(one): rate(*one, options.seconds) for one in order}
        ratios.append(rates[id(fast)] / rates[id(slow)])
    return statistics.median(ratios), min(ratios), max(ratios)


def row_of(loop, fault, scripts, work, options):
    slow = planted(loop, fault, scripts, work)
    answer, taken = diagnosed(*slow, options.diagnose_seconds or (FAULT_S if fault else None))
    traced = traceml_says(*slow, options.seconds)
    causes = answer.get("causes") or []
    first = causes[0] if causes else None
    cause = fault.cause if fault else None
    row = {"name": f"{loop.name}, {cause or 'healthy'}", "loop": loop.name, "fault": cause,
           "verdict": answer.get("verdict"), "traceml": traced, "rate": answer.get("rate"),
           "first": first and first["name"], "predicted": first and first["gain"], "low": first and first["low"],
           "high": first and first["high"], "diagnose_s": round(taken, 1), "causes": [each["name"] for each in causes],
           "uncertain": answer.get("uncertain"), "not_found": answer.get("not_found")}
    if fault:
        median, low, high = gains(slow, planted(loop, None, scripts, work), options)
        row.update(unit="realised gain", median=median, min=low, max=high, n=options.rounds,
                   right=bool(first) and first["name"] in fault.accepted)
    else:
        row.update(median=None, right=answer.get("verdict") == "healthy")
    row["load"] = os.getloadavg()[0]
    print(json.dumps(row), flush=True)
    return row


def result_of(rows):
    """For results/: rows of the faults, with their realised gains, and those of the healthy loops."""
    # Here: a script that --rate runs must not find these modules.
    sys.path.insert(0, str(ROOT.parent / "tools/peers"))
    from peer_report import commit_of_checkout

    return {"bench": "python_faults", "commit": commit_of_checkout(),
            "host": {"cores": len(os.sched_getaffinity(0)), "device_ms": float(os.environ["PYTHON_FAULTS_DEVICE_MS"]),
                     "torch": importlib.metadata.version("torch")},
            "rows": [row for row in rows if row["fault"]], "healthy": [row for row in rows if not row["fault"]]}


def table(rows):
    """Markdown."""
    def ratio(value):
        return "" if value is None else f"{value:.2f}"

    lines = ["| loop | planted | first cause | predicted gain | realised gain | right | TraceML says |",
             "|---|---|---|---|---|---|---|"]
    for row in rows:
        interval = f" [{ratio(row['low'])}, {ratio(row['high'])}]" if row["predicted"] is not None else ""
        lines.append(f"| {row['loop']} | {row['fault'] or 'nothing'} | {row['first'] or row['verdict']} | "
                     f"{ratio(row['predicted'])}{interval} | {ratio(row['median'])} | "
                     f"{'yes' if row['right'] else 'no'} | {row['traceml'] or ''} |")
    return "\n".join(lines) + "\n"


def lacks(loop):
    """Why a loop cannot run here, or None."""
    if loop.package and importlib.util.find_spec(loop.package) is None:
        return f"{loop.package} is not installed"
    if loop.needs_gpu:
        import torch

        if not torch.cuda.is_available():
            return "there is no GPU"
    return None


def chosen(only):
    """(loop, fault or None) in order; a loop without a fault comes first."""
    name, _, cause = only.partition(":")
    for loop in LOOPS:
        if name and loop.name != name:
            continue
        if lacking := lacks(loop):
            print(f"python_faults: {loop.name} is skipped: {lacking}", file=sys.stderr)
            continue
        for fault in [None, *(fault for fault in FAULTS if fault.loop == loop.name)]:
            if not cause or cause == (fault.cause if fault else "healthy"):
                yield loop, fault


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="LOOP or LOOP:CAUSE, such as bare:healthy")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8, help="at least, of each run that measures a rate")
    parser.add_argument("--diagnose-seconds", type=float, help=f"of each diagnosis (default: {FAULT_S} for a fault; "
                        "diagnose's own choice for a healthy loop)")
    parser.add_argument("--device-ms", type=float, default=3.5, help="that the forward pass waits for each image, "
                        "as for a GPU. Give more on slow cores, so that computing stays a small share of a step")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT.parent / "build/python-faults")
    parser.add_argument("--scripts", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    options = parser.parse_args()
    os.environ["PYTHON_FAULTS_DEVICE_MS"] = str(options.device_ms)
    work = options.work.resolve()
    scripts = (options.scripts or work / "scripts").resolve()
    pairs = list(chosen(options.only))
    if not pairs and any(loop.name == options.only.partition(":")[0] and lacks(loop) for loop in LOOPS):
        sys.exit("python_faults: error: nothing to run")
    if not pairs:
        sys.exit(f"python_faults: error: nothing is called {options.only} (--only). Loops are "
                 + ", ".join(loop.name for loop in LOOPS))
    make_images(work / "images")
    fetch_scripts(scripts, [loop for loop, _ in pairs])
    rows = []
    for loop, fault in pairs:
        rows.append(row_of(loop, fault, scripts, work, options))
        if options.json:  # a run that is interrupted keeps what it has measured
            options.json.write_text(json.dumps(result_of(rows), indent=2) + "\n")
        if options.table:
            options.table.write_text(table(rows))
    print(table(rows))
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rate"]:
        measure_rate()
    else:
        sys.exit(main())
