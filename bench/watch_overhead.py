#!/usr/bin/env python3
"""How much longer a training step takes under saturate.watch(), torch.profiler and TraceML: CPU steps of 0.8 to 10 ms.

    bench/watch_overhead.py [--rounds 20] [--seconds 1.2] [--steps 0.8,1.4,10] [--cpu] [--json FILE]

Each round measures each of them, in random order, on one thread, and as much time without. Prints the median ratio of
the times, and its 95 % interval from order statistics. Each tool has a process, since what torch.profiler leaves behind
slows others down. watch is compared in turns of two steps, for which its hooks are taken out of torch and put back: a
machine's noise is slower than that. The profiler is compared in blocks of one process and network. TraceML (traceml-ai
on PyPI; skipped if its command `traceml` is missing) patches torch for the whole process, so it is compared with the
other process's steps without watch. --cpu: CPU time of the process instead of wall time. Needs torch and the package.
"""

import argparse
import contextlib
import functools
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Client, Listener
from unittest import mock

FIRST = 10
TURN = 2  # ten steps without watch would seem to it one long step
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@functools.lru_cache(None)  # where its memory lies makes 1 % of a step
def training(width):
    """A network of seven modules, and a function that makes one step of it."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    def step(batch):
        inputs, labels = batch
        loss = loss_of(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return model, step


def batches(count):
    for _ in range(count):
        yield one_batch()


@functools.lru_cache(None)
def one_batch():
    import torch

    return torch.randn(64, 256), torch.randint(10, (64,))


def block(width, count, clock, after=None, trace=contextlib.nullcontext):
    """Seconds of a step, among `count` after the first ten."""
    model, step = training(width)
    begin = 0.0
    for number, batch in enumerate(batches(count + FIRST)):
        if number == FIRST:
            begin = clock()
        with trace(model):
            step(batch)
        if after:
            after()
    return (clock() - begin) / count


def without(width, count, clock):
    return block(width, count, clock), None


def watched(width, count, clock):
    """Seconds of a step without and with watch, in turns of TURN steps."""
    import saturate
    import torch
    from saturate import sampling, watching
    from torch.optim import optimizer

    def hooks():
        return torch.autograd.backward, [dict(registry) for registry in registries]

    def exchange(backward, each):
        torch.autograd.backward = backward
        for registry, own in zip(registries, each):
            registry.clear()
            registry.update(own)

    def turn(end_step):
        begin = clock()
        for batch in batches(TURN):
            loss = step(batch)
            if end_step:
                end_step(loss=loss)
        return clock() - begin

    registries = optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks
    step, states, spent, steps = training(width)[1], [hooks()], [0.0, 0.0], [0, 0]
    with contextlib.ExitStack() as stack:
        # Half of the steps are not its own, so that it would measure, and write, twice as often.
        for module, name in ((sampling, "EVERY_NS"), (watching, "RECORD_NS")):
            stack.enter_context(mock.patch.object(module, name, 2 * getattr(module, name)))
        watch = stack.enter_context(saturate.watch(out=stack.enter_context(tempfile.TemporaryDirectory())))
        for batch in batches(FIRST):  # eight are measured in detail
            watch.step(loss=step(batch))
        states.append(hooks())
        while steps[0] < count:
            for kind in random.sample((0, 1), 2):
                exchange(*states[kind])
                while True:
                    spent[kind] += turn(watch.step if kind else None)
                    steps[kind] += TURN
                    if not (kind and watch._clock.is_detailed):
                        break
        exchange(*states[1])
    return spent[0] / steps[0], spent[1] / steps[1]


def profiled(width, count, clock):
    import torch

    def with_profiler():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            return block(width, count, clock, profiler.step)

    kinds = [lambda: block(width, count, clock), with_profiler]
    found = {kind: kinds[kind]() for kind in random.sample((0, 1), 2)}
    return found[0], found[1]


@functools.lru_cache(None)
def traceml():
    import traceml_ai

    traceml_ai.init(mode="auto")
    return traceml_ai


def traced(width, count, clock):
    return None, block(width, count, clock, trace=traceml().trace_step)


TOOLS = {"saturate.watch": watched, "torch.profiler": profiled, "TraceML": traced, "without": without}


def work(address):
    """A process that measures blocks on request."""
    import torch

    torch.set_num_threads(1)
    with Client(address) as connection:
        while True:
            try:
                tool, width, count, clock = connection.recv()
            except EOFError:
                return
            connection.send(TOOLS[tool](width, count, CLOCKS[clock]))


class Worker:
    def __init__(self, folder, name, launcher):
        address = os.path.join(folder, name)
        with Listener(address) as listener:
            own = [sys.executable, __file__] if not launcher else [
                launcher, "run", __file__, "--mode", "summary", "--logs-dir", os.path.join(folder, "logs"), "--args"]
            self.process = subprocess.Popen([*own, "--work", address], stdout=subprocess.DEVNULL)
            self.connection = listener.accept()

    def seconds(self, *request):
        self.connection.send(request)
        return self.connection.recv()

    def close(self):
        self.connection.close()
        self.process.wait()


def calibrated(worker, milliseconds, clock):
    """The width whose step takes about as long."""
    low, high = 16, 4096
    while high - low > 8:
        width = (low + high) // 2
        count = max(2, int(60 / milliseconds))
        taken = min(worker.seconds("without", width, count, clock)[0] for _ in range(3)) * 1e3
        low, high = (width, high) if taken < milliseconds else (low, width)
    return high


def interval(ratios):
    """95 % for the median (binomial)."""
    ordered, count = sorted(ratios), len(ratios)
    rank = max(0, int((count - 1.96 * math.sqrt(count)) / 2))
    return ordered[rank], ordered[count - 1 - rank]


def compared(workers, milliseconds, options, clock):
    width = calibrated(workers["saturate.watch"], milliseconds, clock)
    count = max(10, int(options.seconds / milliseconds * 1e3))
    times, loads = {tool: [] for tool in workers}, []
    for number in range(options.rounds):
        found = {tool: workers[tool].seconds(tool, width, count, clock)
                 for tool in random.Random(number).sample(list(workers), len(workers))}
        for tool, (base, taken) in found.items():
            times[tool].append((base or found["saturate.watch"][0], taken))
        loads.append(os.getloadavg()[0])
    rows = []
    for tool, pairs in times.items():
        ratios = [taken / base for base, taken in pairs]
        low, high = interval(ratios)
        rows.append({"name": f"{tool}, {milliseconds:g} ms", "unit": "ratio of times",
                     "step_ms": statistics.median(base for base, _ in pairs) * 1e3,
                     "median": statistics.median(ratios), "min": low, "max": high, "n": options.rounds,
                     "added_us": statistics.median(taken - base for base, taken in pairs) * 1e6,
                     "load": statistics.median(loads)})
        print(f"{rows[-1]['name']}: {rows[-1]['median']:.4f} [{low:.4f}, {high:.4f}] times as long, "
              f"{rows[-1]['added_us']:+.1f} us a step; load {rows[-1]['load']:.1f}", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.2, help="of a block")
    parser.add_argument("--steps", default="0.8,1.4,10", help="milliseconds")
    parser.add_argument("--cpu", action="store_true", help="CPU time instead of wall time")
    parser.add_argument("--json")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work(options.work)
    clock = "cpu" if options.cpu else "wall"
    launcher = shutil.which("traceml", path=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        workers = {tool: Worker(folder, tool, None) for tool in ("saturate.watch", "torch.profiler")}
        if launcher:
            workers["TraceML"] = Worker(folder, "TraceML", launcher)
        else:
            print("TraceML is skipped: there is no command traceml (pip install traceml-ai)", file=sys.stderr)
        for milliseconds in map(float, options.steps.split(",")):
            rows += compared(workers, milliseconds, options, clock)
        for worker in workers.values():
            worker.close()
    if options.json:
        import torch

        sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tools/peers"))
        from peer_report import commit_of_checkout

        with open(options.json, "w") as file:
            host = {"cores": len(os.sched_getaffinity(0)), "torch": torch.__version__, "threads": 1, "clock": clock}
            loads = sorted(row["load"] for row in rows)
            json.dump({"bench": "watch_overhead", "commit": commit_of_checkout(), "host": host, "rows": rows,
                       "note": f"The machine's load was {loads[0]:.1f} to {loads[-1]:.1f}."}, file, indent=2)


if __name__ == "__main__":
    main()
