"""Runs of saturate train from a store, for tests: what they share."""

import argparse
import atexit
import functools
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from bad_store import write_photographs

SAMPLES, BATCH, EPOCHS = 72, 12, 3
STEPS = EPOCHS * SAMPLES // BATCH
ROUNDING = 1e-5
RECIPE = f"""seed = 3
[data]
source = "SOURCE"
eval_source = ""
threads = 2
[augment]
size = 16
crop = "random_resized"
[model]
name = "mlp"
width = 0.5
[schedule]
name = "constant"
[optimizer]
lr = 0.005
[train]
batch = {BATCH}
epochs = {EPOCHS}
threads = 1
[checkpoint]
every = "2 steps"
[watch]
every = 1
csv = true
"""
options = argparse.Namespace()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def losses(folder):
    """{step: loss}"""
    try:
        text = (folder / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return {}
    records = map(json.loads, text.rpartition("\n")[0].splitlines())  # the last line may be incomplete
    return {record["step"]: record["loss"] for record in records if record["kind"] == "step"}


def weights(folder):
    data = sorted((folder / "checkpoints").glob("step-*.safetensors"))[-1].read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    found = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name.startswith("model.") and entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            found[name] = struct.unpack(f"<{(end - begin) // 4}f", data[8 + size + begin:8 + size + end])
    return found


def is_running(group):
    """Whether a process of the group has not ended."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, _, of = pathlib.Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it has ended
            continue
        if int(of) == group and state not in "ZX":
            return True
    return False


@functools.cache
def prepare():
    """The folder of the files, and that of a run that reads them from the disk."""
    scratch = tempfile.TemporaryDirectory()
    atexit.register(scratch.cleanup)
    files, whole, recipe = (pathlib.Path(scratch.name, name) for name in ("files", "whole", "recipe.toml"))
    files.mkdir()
    write_photographs(options.saturate, files, SAMPLES)
    recipe.write_text(RECIPE.replace("SOURCE", f"shard:{files}/a.shard"))
    subprocess.run([options.saturate, "train", recipe, "--out", whole], check=True, capture_output=True)
    return files, whole


class StoreTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files, cls.whole = prepare()

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.out, self.log = self.folder / "run", self.folder / "log"

    def start(self, store, source, world=1, settings=(), environment=None, before=()):
        """Starts or resumes the run, in a group of processes."""
        recipe = self.folder / "recipe.toml"
        recipe.write_text(RECIPE.replace("SOURCE", source))
        command = ["train", recipe, "--out", self.out, "--resume=auto"]
        command += [word for setting in settings for word in ("--set", setting)]
        if world > 1:
            command = ["launch", "--nproc-per-node", world, "--master", f"127.0.0.1:{free_port()}", "--", *command]
        with open(self.log, "wb") as log:
            process = subprocess.Popen([*before, options.saturate, *map(str, command)], stdout=log, stderr=log,
                                       env=environment or store.environment(self.folder, "token0"),
                                       start_new_session=True)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        """Kills the process and those that it started."""
        if is_running(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        while is_running(process.pid):
            time.sleep(0.005)

    def finish(self, process, code=0, seconds=120):
        try:
            self.assertEqual(process.wait(seconds), code, self.log.read_text())
        except subprocess.TimeoutExpired:
            self.fail(f"it still runs after {seconds} s: {self.log.read_text()}")

    def wait_for_step(self, process, step):
        while process.poll() is None and max(losses(self.out), default=0) < step:
            time.sleep(0.01)

    def expect_whole_run(self):
        expected, found = losses(self.whole), losses(self.out)
        self.assertEqual(sorted(found), list(range(1, STEPS + 1)))
        for step, loss in expected.items():
            self.assertAlmostEqual(found[step], loss, delta=ROUNDING, msg=f"step {step}")
        for name, values in weights(self.whole).items():
            others = weights(self.out)[name]
            self.assertLessEqual(max(abs(a - b) for a, b in zip(values, others)), ROUNDING, name)


def main(doc, **more):
    """`more`: names and defaults of options that are numbers."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saturate", type=lambda path: pathlib.Path(path).resolve(), required=True)
    for name, default in more.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    rest = parser.parse_known_args(namespace=options)[1]
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
