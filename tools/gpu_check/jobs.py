"""The jobs of a check, in their order. Each peer except torch.compile follows directly after its counterpart."""

import array
import contextlib
import functools
import json
import lzma
import pathlib
import random
import re
import shutil
import tempfile
from collections.abc import Callable
from typing import NamedTuple

from gpu_check.package import FAULTS, Package
from gpu_check.shards import run_tests

PARTS = ["tests", "bench", "steps", "graphs", "sweeps", "peers", "python", "cifar"]
# name, model, image side, batch
STEPS = [
    ("resnet18 224", "resnet18", 224, 256),
    ("resnet50 224", "resnet50", 224, 128),
    ("resnet9 32", "resnet9", 32, 512),
]
WITHOUT_PEER = ["resnet9"]  # torchvision has none
GPT = ("gpt2", 1024, 8)  # model, tokens in a sequence, batch
GPT_TOKENS = 1 << 19
JPEGS = 256  # drawn, of about the pixels of a photograph of ImageNet
PRECISIONS = ["bf16", "fp16", "tf32", "fp32"]  # a GPU's default first
GRAPH_PRECISIONS = ["bf16", "fp16"]
# Settings whose speedup only a GPU can show: those of the input, then those of the step.
FEEDING = [
    ("where augmentation runs", ["augment.device=cpu,cuda"],
     ["augment.rotate=45", "augment.blur=1", "data.source=synth:size=128,count=2048", "augment.size=128"]),
    ("where augmentation of volumes runs", ["augment.device=cpu,cuda"],
     ["data.source=synth-volume:size=64,count=256", "data.eval_source=", "augment.crop=random", "augment.size=48",
      "augment.mean=[0.485, 0.456, 0.406]", "augment.std=[0.229, 0.224, 0.225]", "augment.rotate=10",
      "augment.contrast=gamma:0.5", "model.name=unet3d", "train.batch=8", "data.cache=ram"]),
    ("images in GPU memory", ["data.cache=ram:decoded,device:decoded"], []),
    ("photographs in GPU memory, random-resized crops", ["data.cache=ram:decoded,device:decoded"],
     ["augment.crop=random_resized"]),
    ("copies on a separate stream", ["pipeline.copy=false,true"], ["train.graph=auto"]),
    ("augmentation on a separate stream", ["pipeline.augment=false,true"],
     ["augment.device=cuda", "augment.rotate=45", "augment.blur=1"]),
]
STEPPING = [
    ("images in half precision", ["augment.output=fp32,fp16"], ["precision.mode=fp16", "augment.device=cuda"]),
    ("half-precision weights", ["precision.mode=fp16,fp16-o2,fp16-o3,bf16,bf16-o2"], []),
    ("batch", ["train.batch=32,128,512"], []),
    ("the step as one CUDA graph", ["train.graph=off,auto"],
     ["data.cache=device", "model.width=0.25", "train.batch=64"]),
]
SWEEPS = FEEDING + STEPPING
LADDERS = ["scale-out", "augment-offload", "frozen-encoder", "storage", "free-speed"]
CIFAR = [("CIFAR-10, two epochs", "cifar10-quick"), ("CIFAR-10 for speed", "cifar10-speed")]


class Job(NamedTuple):
    part: str
    name: str
    run: Callable[[], None]
    seconds: int  # the most that it should take on an H200
    compared: bool = False  # whether a peer follows, so that the part "peers" measures it too


def chosen(jobs, only):
    """(part whose time the job uses, job) for the parts in `only`."""
    for job in jobs:
        if job.part in only:
            yield job.part, job
        elif job.compared and "peers" in only:
            yield "peers", job


def wrong_device_phases(end):
    """A complaint if a run's "end" record lacks the GPU's time by phase, a phase is negative, forward is empty (a
    graph's whole time counts as forward), or the sum exceeds wall time; else None."""
    device = end.get("device_phases")
    if not device:
        return "no device phases"
    if min(device.values()) >= 0 and device["forward"] > 0 and sum(device.values()) <= 1.01 * end["time_s"]:
        return None
    return f"device phases of {sum(device.values()):.3f} s in {end['time_s']:.3f} s: {device}"


class Jobs:
    """`root` has recipes/, ladders/ and tools/. `python`: for the peers. `cifar`: a folder, or None."""

    def __init__(self, check, root, python, cifar, memory_mib, resume):
        self.check, self.root, self.python, self.cifar = check, root, python, cifar
        self.memory_mib, self.resume = memory_mib, resume

    def all(self):
        """In order of importance, since the time on a GPU may end after any of them. Those up to the ladder storage fit
        in twelve minutes. The last four may take minutes each."""
        yield Job("tests", "tests", self.tests, 140)
        package = Package(self.check, self.root, self.python)
        yield self._job("python", "Python package", package.tests, "not diagnose", seconds=30)
        yield self._job("bench", "a custom augmentation", self.example, seconds=10)
        yield self._job("bench", "copies and the kernel", self.bench, seconds=10, compared=True)
        yield self._job("peers", "Python augmentation", self.peer_augmentation, seconds=15)
        yield self._job("bench", "decoding JPEGs", self.decode, seconds=10, compared=True)
        yield self._job("peers", "Python decoding JPEGs", self.peer_decode, seconds=15)
        yield from self._steps(PRECISIONS[0])
        yield self._job("steps", "train gpt2 bf16", self.gpt_step, seconds=18, compared=True)
        yield self._job("peers", "Python gpt2 bf16", self.peer_gpt, "eager", seconds=18)
        yield self._job("graphs", "train gpt2, one graph, bf16", self.gpt_step, seconds=18, graph=True)
        for title, recipe in CIFAR:
            yield self._job("cifar", title, self.train_cifar, recipe, seconds=10)
        yield self._job("sweeps", "where JPEGs are decoded", self.sweep_decode)
        yield from self._sweeps(FEEDING)
        yield from self._diagnoses(package, FAULTS[:2])
        for ladder in LADDERS[:-1]:
            yield self._ladder(ladder, 10 if ladder == "scale-out" else 20)
        yield self._job("python", "Python diagnose", package.tests, "diagnose", seconds=90)
        yield from self._diagnoses(package, FAULTS[2:])
        yield from self._sweeps(STEPPING)
        for precision in PRECISIONS[1:]:
            yield from self._steps(precision)
        yield self._ladder(LADDERS[-1], 120, compared=True)
        yield self._job("peers", f"Python {LADDERS[-1]}", self.peer_ladder, LADDERS[-1], seconds=120)
        yield self._job("peers", "Python compile gpt2 bf16", self.peer_gpt, "compile", seconds=120)
        yield self._job("graphs", "train gpt2, compiled, bf16", self.gpt_step, seconds=120, compiled=True)

    def _steps(self, precision):
        for name, model, side, batch in STEPS:
            peer = model not in WITHOUT_PEER
            yield self._job("steps", f"train {name} {precision}", self.step, model, side, batch, precision,
                            compared=peer)
            if peer:
                yield self._job("peers", f"Python {name} {precision}", self.peer_step, name, model, side, batch,
                                precision)
            if precision in GRAPH_PRECISIONS:
                yield self._job("graphs", f"train {name}, one graph, {precision}", self.step, model, side, batch,
                                precision, graph=True)

    def _sweeps(self, sweeps):
        for title, over, settings in sweeps:
            yield self._job("sweeps", title, self.sweep, over, settings)

    def _diagnoses(self, package, faults):
        for fault in faults:
            # The verdict "healthy" needs a measurement of every cause.
            given = 60 if fault == "healthy" else 25
            yield self._job("python", f"diagnose {fault}", package.diagnose, fault, given, seconds=given + 30)

    def _ladder(self, name, seconds, compared=False):
        return self._job("sweeps", name, self.rungs, ["ladder", self.root / f"ladders/{name}.toml"], seconds=seconds,
                         compared=compared)

    @staticmethod
    def _job(part, name, function, *arguments, seconds=12, compared=False, **more):
        """`function` gets the job's name first."""
        return Job(part, name, functools.partial(function, name, *arguments, **more), seconds, compared)

    def tests(self):
        staged = self.root if (self.root / "saturate").is_file() else None
        run_tests(self.check, "Gpu*", staged, self.memory_mib, self.resume)

    def example(self, job):
        if "own_augmentation" not in self.check.programs:
            self.check.results.note("skipped", job, "examples/own_augmentation is not built")
            return
        said = self.check.run(job, self.check.command("own_augmentation"))
        if said is not None and "GPU and CPU differ" not in said:
            self.check.failed(job, said.strip())

    def bench(self, job):
        said = self.check.run(job, self.check.command("saturate_gpu_bench", 0.05))
        for row in json.loads(said)["rows"] if said else []:
            self.check.results.add_row(row)

    def decode(self, job):
        """Random-resized crops of drawn JPEGs: packed on one core, decoded on the GPU to the bits of the CPU's decoder,
        else the job fails."""
        with self._jpegs(job) as folder:
            said = folder and self.check.run(job, self.check.command("saturate_gpu_bench", 0.2, f"folder:{folder}"))
        for row in json.loads(said)["rows"] if said else []:
            self.check.results.add_row(row)

    @contextlib.contextmanager
    def _jpegs(self, job, count=JPEGS):
        """A folder of JPEGs, or None if they could not be written."""
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
            folder = f"{scratch}/jpegs"
            said = self.check.run(job, self.check.command("saturate", "data", "synth", f"size=448,count={count}",
                                                          "--out", folder))
            yield None if said is None else folder

    def step(self, job, model, side, batch, precision, graph=False):
        """Images/s of each record of a short run on held images, like the peer's, without the warm-up; phases of the
        last record. `graph`: each step as one CUDA graph; a step that cannot be captured is a failure."""
        settings = [f"data.source=synth:size={side},count={batch * 4}", "data.eval_source=", f"augment.size={side}",
                    "augment.crop=none", f"train.batch={batch}", "train.epochs=15", f"model.name={model}",
                    f"precision.mode={precision}", "schedule.warmup_epochs=0", "checkpoint.every=0", "watch.every=10",
                    "data.cache=device"]
        self._step(job, "imagenet-sample", settings, graph, "images/s")

    def gpt_step(self, job, graph=False, compiled=False):
        """As step(), in tokens/s: GPT-2 with random tokens from a file. `compiled`: by tools/compile_step.py before."""
        model, context, batch = GPT
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            tokens = array.array("H", random.Random(1).choices(range(50257), k=GPT_TOKENS))
            pathlib.Path(f"{folder}/tokens.bin").write_bytes(tokens.tobytes())
            settings = [f"data.source=tokens:{folder}/tokens.bin,context={context},vocabulary=50257",
                        "data.eval_source=", f"train.batch={batch}", "train.epochs=2", f"model.name={model}",
                        "optimizer.lr=0.0001", "schedule.warmup_epochs=0", "precision.mode=bf16",
                        "checkpoint.every=0", "watch.every=10"]
            if compiled and not (settings := self._compiled(job, "gpt-tiny", settings, folder)):
                return
            self._step(job, "gpt-tiny", settings, graph, "tokens/s", context)

    def _compiled(self, job, recipe, settings, folder):
        """`settings` with a compiled step in `folder`; None if it could not be compiled."""
        if not (shutil.which("c++") and (shutil.which("nvcc") or pathlib.Path("/usr/local/cuda/bin/nvcc").exists())):
            return self.check.results.note("skipped", job, "needs a C++ compiler and the CUDA toolkit")
        command = [self.python, self.root / "tools/compile_step.py", self.root / f"recipes/{recipe}.toml",
                   "--out", f"{folder}/step.pt2", "--saturate", self.check.programs["saturate"], "--set",
                   "train.device=cuda"]
        for setting in settings:
            command += ["--set", setting]
        return self.check.run(job, command) is not None and [*settings, f"train.compiled={folder}/step.pt2"]

    def _step(self, job, recipe, settings, graph, unit, scale=1):
        """`scale`: units in a sample."""
        if graph:
            settings += ["train.graph=auto", "pipeline.copy=true"]
        said, records = self._train(job, recipe, settings)
        if said is None:
            return
        line = graph_line(said)
        if graph and not re.match(r"[1-9]\d* of \d+ steps replayed$", line or ""):
            self.check.failed(job, f"train.graph: {line}")
        steps = [record for record in records if record["kind"] == "step"][2:]
        end = [record for record in records if record["kind"] == "end"][-1]
        self.check.results.row(f"saturate {job}", unit, [scale * record["images_per_s"] for record in steps],
                               graph=line, phases=steps[-1]["phases"] if steps else None,
                               device_phases=end.get("device_phases"))
        if complaint := wrong_device_phases(end):
            self.check.failed(job, complaint)

    def train_cifar(self, job, recipe):
        """Trains with an unchanged recipe: seconds and accuracy."""
        if not self.cifar:
            self.check.results.note("skipped", job, "needs --cifar")
            return
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
            train, test = (archive(self.cifar, name, pathlib.Path(scratch))
                           for name in ("cifar10-train.tar", "cifar10-test.tar"))
            said, records = self._train(job, recipe, [f"data.source=tar:{train}", f"data.eval_source=tar:{test}",
                                                      "data.cache=device"])
        if said is None:
            return
        end = [record for record in records if record["kind"] == "end"][-1]
        self.check.results.row(job, "s", [end["time_s"]], graph=graph_line(said))
        self.check.results.row(f"{job}: test images right", "share", [end["accuracy"]])

    def _train(self, job, recipe, settings):
        """The output of a run on the GPU and its records; None if it failed."""
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            command = self.check.command("saturate", "train", self.root / f"recipes/{recipe}.toml", "--quiet",
                                         "--out", f"{folder}/run", "--set", "train.device=cuda")
            for setting in settings:
                command += ["--set", setting]
            said = self.check.run(job, command)
            if said is None:
                return None, []
            lines = pathlib.Path(f"{folder}/run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return said, [json.loads(line) for line in lines]

    def sweep(self, job, over, settings):
        command = ["sweep", self.root / "recipes/demo.toml"]
        for text in over:
            command += ["--over", text]
        for text in ["train.device=cuda", *settings]:
            command += ["--set", text]
        self.rungs(job, command)

    def sweep_decode(self, job):
        """Training from JPEGs with one loader thread, which a GPU soon outruns."""
        with self._jpegs(job, 8 * JPEGS) as folder:
            if folder:
                self.sweep(job, ["data.decode_device=cpu,cuda"],
                           [f"data.source=folder:{folder}", "data.eval_source=", "data.decode=fast", "data.threads=1",
                            "train.batch=256", "augment.crop=random_resized", "augment.size=224", "model.width=0.25"])

    def rungs(self, job, command):
        """The rungs of a ladder or a sweep, which write the same JSON."""
        self._rungs(job, self.check.command("saturate", *command))

    def _rungs(self, job, command):
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            path = pathlib.Path(folder) / "rungs.json"
            said = self.check.run(job, [*command, "--rounds", "3", "--seconds", "0.4", "--json", path])
            if said is None or not path.exists():
                return
            found = json.loads(path.read_text(encoding="utf-8"))["rungs"]
        for rung in found:
            name = f"{job}: {rung['name']}"
            if (rung["skipped"] or "").startswith("failed: "):
                self.check.failed(name, rung["skipped"].removeprefix("failed: "))
            elif rung["skipped"]:
                self.check.results.note("skipped", name, rung["skipped"])
            else:
                self.check.results.row(name, "images/s", [rung["images_per_s"]], gain=rung["gain_first"],
                                       low=rung["low"], high=rung["high"], rounds=rung["n"],
                                       seed_figure=rung.get("seed_figure"))

    def peer_augmentation(self, job):
        said = self._peer(job, "gpu_augment.py")
        for name, rates in json.loads(said).items() if said else []:
            kind = "torch" if name == "volumes" else "torchvision v2"
            self.check.results.row(f"{kind} on the GPU: {name}", "volumes/s" if name == "volumes" else "images/s", rates)

    def peer_decode(self, job):
        with self._jpegs(job) as folder:
            said = folder and self._peer(job, "gpu_decode.py", folder)
        for name, found in json.loads(said).items() if said else []:
            if isinstance(found, str):
                self.check.results.note("skipped", f"{job}: {name}", found)
            else:
                self.check.results.row(f"{name}: decode JPEGs", "images/s", found["rates"],
                                       cpu_us_per_image=found["cpu_us_per_image"])

    def peer_step(self, job, name, model, side, batch, precision):
        said = self._peer(job, "gpu_step.py", model, side, batch, precision)
        if said:
            self.check.results.row(f"Python eager {name} {precision}", "images/s", json.loads(said))

    def peer_gpt(self, job, how):
        said = self._peer(job, "gpu_step.py", *GPT, "bf16", how)
        if said:
            self.check.results.row(f"Python {how} gpt2 bf16", "tokens/s", json.loads(said))

    def peer_ladder(self, job, ladder):
        self._rungs(job, [self.python, self.root / "tools/peers/ladder.py", self.root / f"ladders/{ladder}.toml",
                          "--python", self.python])

    def _peer(self, job, script, *arguments):
        return self.check.run(job, [self.python, self.root / "tools/peers" / script, *arguments])


def graph_line(summary):
    """The line of a run's summary about train.graph; None if it is off."""
    found = re.search(r"^train\.graph: (.*)$", summary, re.MULTILINE)
    return found.group(1) if found else None


def archive(folder, name, scratch):
    """An archive of `folder`, unpacked into `scratch` if it is compressed with xz."""
    if (folder / name).exists():
        return folder / name
    with lzma.open(folder / f"{name}.xz") as source, open(scratch / name, "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    return scratch / name
