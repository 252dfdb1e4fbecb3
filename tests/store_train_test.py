#!/usr/bin/env python3
"""Training from a store that fails: killed, away for longer than data.timeout_s, and with names that do not resolve.

    tests/store_train_test.py --saturate build/saturate [--kills 20] [NAME of a test ...]

A run must have the losses and weights of one on the same files on the disk that nothing interrupted, to the rounding
that other numbers of processes have. The images are large enough that only the rows of each crop are requested.
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from bad_store import KEY, SECRET, Store, write_photographs

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
options = None


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


class StoreTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.files, cls.whole = pathlib.Path(scratch.name, "files"), pathlib.Path(scratch.name, "whole")
        cls.files.mkdir()
        write_photographs(options.saturate, cls.files, SAMPLES)
        recipe = pathlib.Path(scratch.name, "recipe.toml")
        recipe.write_text(RECIPE.replace("SOURCE", f"shard:{cls.files}/a.shard"))
        subprocess.run([options.saturate, "train", recipe, "--out", cls.whole], check=True, capture_output=True)

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


class FailingStore(StoreTest):
    def killed_run(self, scheme_and_key, kills, settings=()):
        """Returns the server's counts after a run of 2, 1, 3 ... processes that are killed."""
        with Store(self.files, failures=0.05, rate=60e6) as store:
            store.renew = 150
            source = scheme_and_key.replace("HOST", store.host)
            environment = store.environment(self.folder, "token0")
            draw, done = random.Random(1), 0
            for kill in range(kills):
                process = self.start(store, source, (2, 1, 3)[kill % 3], settings, environment)
                if draw.random() < 2 / 3:  # else it may be killed before its first step
                    self.wait_for_step(process, done + 1)
                time.sleep(draw.uniform(0, 1.5))
                if process.poll() is not None:
                    self.finish(process)
                self.end(process)
                done = max(losses(self.out), default=0)
            self.finish(self.start(store, source, (2, 1, 3)[kills % 3], settings, environment))
            return store

    def test_kills_and_other_numbers_of_processes(self):
        few_kills = options.kills // 4
        for source, kills, settings in (
                ("shard:s3://bucket/a.shard", options.kills - few_kills, ()),
                ("shard:http://HOST/files/a.shard", few_kills, [f"data.cache_dir={self.folder}/cache"])):
            with self.subTest(source):
                shutil.rmtree(self.out, ignore_errors=True)
                store = self.killed_run(source, kills, settings)
                self.expect_whole_run()
                few = sum(512 < length < 8192 for length in store.ranges)
                print(f"{source}: {dict(store.counts)}, {few} requests for tables of segments")
                if settings:
                    continue
                self.assertGreater(few, SAMPLES // 2, "the rows of crops are requested")
                self.assertGreater(store.counts["expired"], 0)

    def test_an_outage_is_one_error_and_the_resumed_run_is_exact(self):
        for world in (1, 2):
            with self.subTest(world=world), Store(self.files, rate=6e6) as store:
                shutil.rmtree(self.out, ignore_errors=True)
                source, settings = "shard:s3://bucket/a.shard", ["data.timeout_s=2", "checkpoint.every=1 steps"]
                process = self.start(store, source, world, settings)
                self.wait_for_step(process, 2)
                store.is_away = True
                self.finish(process, 4)
                said = self.log.read_text()
                # A launcher repeats the last lines of a rank, and says which failed first.
                errors = [line for line in said.splitlines() if re.match(r"(\[\d\] )?saturate: error: no ", line)]
                self.assertTrue(1 <= len(errors) <= world and len(set(errors)) == len(errors), said)
                self.assertEqual(said.count("\nsaturate: error: rank "), world - 1, said)
                for part in ("no answer in data.timeout_s = 2 s", "(s3://bucket/a.shard)", "resume the run"):
                    self.assertIn(part, errors[0])
                self.assertLess(max(losses(self.out)), STEPS)
                store.is_away, store.rate = False, 0
                self.finish(self.start(store, source, 3, settings))
                self.expect_whole_run()


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saturate", type=lambda path: pathlib.Path(path).resolve(), required=True)
    parser.add_argument("--kills", type=int, default=4, help="for both sources together")
    options, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
