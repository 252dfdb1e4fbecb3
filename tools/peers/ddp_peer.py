#!/usr/bin/env python3
"""Weak scaling: processes that train together, next to as many that train alone, in saturate and in Python,
interleaved. Each process has one core and the same batch size.

    tools/peers/ddp_peer.py [--model resnet18] [--size 32] [--batch 64] [--processes 2] [--steps 20]
                            [--rounds 5] [--limit SECONDS] [--set KEY=VALUE ...] [--python PYTHON] [--json FILE]

saturate trains over shared memory and, like Python, over Gloo; --set applies to its runs. Rows are images per
second of all processes together. Rows of training together have `scaling`, their ratio to the same program's
processes alone; saturate's also have `exposed_s`, the seconds per step in which it only waits for gradients, from
its ledger. "in step" is the rate of the processes alone if each step took as long as on the slowest core, with no
communication: an upper limit of training together on cores that vary. Python trains on one batch of noise in
memory; saturate reads noise from IDX files, and computes metrics.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import tempfile
import time

import peer_report
from peer_report import ROOT, overrides
from step_peers import write_noise

WARM_UP = 3


def cores(arguments):
    found = sorted(os.sched_getaffinity(0))
    return [found[rank % len(found)] for rank in range(arguments.processes)]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def outputs(processes, limit_s):
    """The output of each, after all have succeeded; all are ended in any case."""
    end, found = time.monotonic() + limit_s, []
    try:
        for process in processes:
            found.append(process.communicate(timeout=max(0, end - time.monotonic()))[0])
            if process.returncode != 0:
                raise RuntimeError(f"{process.args} ended with {process.returncode}")
    finally:  # if one failed, the others wait for it
        for process in processes:
            process.kill()
            process.wait()
    return found


class Saturate:
    HOW = {"alone": [], "together": [], "together, Gloo": ["distributed.backend=gloo"]}

    def __init__(self, arguments, folder):
        images, labels = write_noise(folder, {"images": 4096, "size": arguments.size})
        self.settings = [
            f"data.source=idx:{images},{labels}", "data.threads=1", "train.threads=1",
            f"model.name={arguments.model}", "optimizer.lr=1e-12", "schedule.name=constant",
            "train.drop_last=true", "train.device=cpu", "watch.every=1", "watch.tensorboard=false",
            "checkpoint.every=0", *getattr(arguments, "set", [])]
        self.arguments, self.folder, self.runs, self.exposed = arguments, folder, 0, {}
        self.in_step = []
        self.recipe = folder / "recipe.toml"
        self.recipe.write_text('[data]\nsource = "given"\n', encoding="utf-8")

    def train(self, batch, *more):
        self.runs += 1
        out = self.folder / f"run{self.runs}"
        steps = self.arguments.steps + WARM_UP
        epoch = 4096 // batch
        settings = [*self.settings, f"train.batch={batch}", f"train.epochs={steps / epoch}", *more]
        return ["train", self.recipe, "--out", out, "--quiet", *overrides(settings)], out

    def steps(self, out):
        """Seconds of each step after the warm-up, of the slowest process; mean seconds of waiting for the others."""
        with open(out / "metrics.jsonl", encoding="utf-8") as file:
            steps = [json.loads(line) for line in file if '"kind":"step"' in line][WARM_UP:]
        times = [sum(step["phases"].values()) for step in steps]
        return times, sum(step["phases"]["reduce"] for step in steps) / len(steps)

    def rate(self, times, processes):
        return processes * self.arguments.batch * len(times) / sum(times)

    def start(self, command, core=None):
        bound = ["taskset", "-c", str(core)] if core is not None else []
        return subprocess.Popen([*bound, self.arguments.saturate, *command], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)

    def measure(self, how):
        return self.alone() if how == "alone" else self.together(how)

    def alone(self):
        runs = [self.train(self.arguments.batch) for _ in cores(self.arguments)]
        started = [self.start(command, core) for (command, _), core in zip(runs, cores(self.arguments))]
        outputs(started, self.arguments.limit)
        times = [self.steps(out)[0] for _, out in runs]
        self.in_step.append(self.rate([max(step) for step in zip(*times)], len(runs)))
        return sum(self.rate(own, 1) for own in times)

    def together(self, how):
        command, out = self.train(self.arguments.batch * self.arguments.processes, *self.HOW[how])
        launch = ["launch", "--nproc-per-node", str(self.arguments.processes), "--", *command]
        outputs([self.start(launch)], self.arguments.limit)
        times, exposed = self.steps(out)
        self.exposed.setdefault(how, []).append(exposed)
        return self.rate(times, self.arguments.processes)


class Python:
    HOW = {"alone": 1, "together": None}  # processes of a group; None: all

    def __init__(self, arguments, python):
        self.arguments, self.python = arguments, python

    def measure(self, how):
        world = self.HOW[how] or self.arguments.processes
        port, started = str(free_port()), []
        for rank, core in enumerate(cores(self.arguments)):
            environment = os.environ | {
                "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
            started.append(subprocess.Popen(
                [self.python, ROOT / "tools/peers/ddp_worker.py", self.arguments.model, str(self.arguments.size),
                 str(self.arguments.batch), str(self.arguments.steps), str(core)],
                env=environment, stdout=subprocess.PIPE, text=True))
        return sum(map(float, outputs(started, self.arguments.limit)))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18",
                        choices=["resnet18", "resnet18_cifar", "simple_cnn", "mlp"])
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64, help="images in each process")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=3600, help="seconds for one measurement at most")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--python", help="an interpreter with torch and torchvision")
    parser.add_argument("--saturate", default=ROOT / "build/saturate")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        python = arguments.python or peer_report.make_environment(folder, arguments.saturate)
        peers = {"saturate": Saturate(arguments, folder), "python": Python(arguments, python)}
        values = {}
        for _ in range(arguments.rounds):
            for name, peer in peers.items():
                for how in peer.HOW:
                    values.setdefault((name, how), []).append(peer.measure(how))
    values["saturate", "in step"] = peers["saturate"].in_step
    rows = []
    for (name, how), found in values.items():
        row = {"name": f"{arguments.model} {name} {how}", "unit": "images/s"}
        if how != "alone":
            alone = statistics.median(values[(name, "alone")])
            row["scaling"] = statistics.median(found) / alone
            if name == "saturate" and how != "in step":
                row["exposed_s"] = statistics.median(peers[name].exposed[how])
        rows.append(peer_report.with_spread(row, found))
    peer_report.write("ddp_peer", rows, arguments.json,
                      peer_report.commit_of(arguments.saturate))


if __name__ == "__main__":
    main()
