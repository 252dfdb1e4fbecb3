#!/usr/bin/env python3
"""Training across two hosts, which are network namespaces joined by a virtual cable; the processes and files left by
a killed launcher or rank; and other launchers.

  tests/net_test.py --saturate build/saturate [NAME of a test ...]

Exits with 77 if namespaces cannot be made. torchrun and mpirun are found in PATH, and skipped if they are absent.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
from net_hosts import Host, join, missing

PORT = 29500
TIMEOUT_S = 8
RECIPE = """seed = 3
[data]
source = "synth:size=16,count=200,difficulty=0.1"
eval_source = "synth:size=16,count=50,difficulty=0.1,split=test"
threads = 1
[augment]
size = 8
[model]
name = "mlp"
width = 0.5
[schedule]
name = "constant"
[optimizer]
lr = 0.005
[train]
batch = 20
epochs = 2
threads = 1
[watch]
every = 5
[distributed]
timeout_s = 60
"""
# Sends c10d's store many requests, and disconnects before the answers.
VANISHING_CLIENT = """
import socket, struct, sys
store = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
store.sendall(struct.pack("<BI", 0, 0x3C85F7CE))  # a client of this protocol
store.sendall(struct.pack("<BQQc", 5, 1, 1, b"x") * 20000)  # is there a key x?
"""
options = None


def checkpoints(folder):
    return sorted((folder / "checkpoints").glob("step-*.safetensors"))


def read_checkpoint(folder):
    """The last one: its header, and the bytes after it."""
    data = checkpoints(folder)[-1].read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), data[8 + size:]


def position(folder):
    return json.loads(read_checkpoint(folder)[0]["__metadata__"]["state"])["position"]


def weights(folder):
    header, data = read_checkpoint(folder)
    found = {}
    for name, entry in header.items():
        if name.startswith("model.") and entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            found[name] = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
    return found


def records(folder, kind):
    try:
        text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    lines = text.rpartition("\n")[0].splitlines()  # the last one may be incomplete
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def unnamed_memory(pid):
    """The kernel's names of saturate's anonymous shared memory that a process has mapped or open."""
    def read(action):  # a file closed meanwhile does not count, and an ended process has none
        try:
            return action()
        except OSError:
            return []

    process = pathlib.Path(f"/proc/{pid}")
    lines = read(lambda: (process / "maps").read_text(encoding="utf-8").splitlines())
    lines += [read(lambda: os.readlink(link)) or "" for link in read(lambda: list((process / "fd").iterdir()))]
    return {word for line in lines for word in line.split() if "memfd:saturate-" in word}


class NetTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.recipe = self.folder / "recipe.toml"
        self.recipe.write_text(RECIPE, encoding="utf-8")

    def host(self, address="127.0.0.1"):
        return self.enterContext(Host(address))

    def hosts(self):
        both = [self.host("10.77.0.1"), self.host("10.77.0.2")]
        join(*both)
        return both

    def training(self, out, *settings, resume=False):
        more = [word for setting in settings for word in ("--set", setting)]
        return ["train", self.recipe, "--out", out, *more, *(["--resume", out] if resume else [])]

    def start(self, host, name, command):
        """The command's process, with its output in the file `name`; that file's path."""
        log = self.folder / name
        with open(log, "w", encoding="utf-8") as file:
            process = host.start([options.saturate, *command], stdout=subprocess.DEVNULL, stderr=file)
        return process, log

    def launch_on_both(self, hosts, *training):
        return [self.start(host, f"log{node}", ["launch", "--nproc-per-node", "1", "--nnodes", "2", "--node-rank", node,
                                                "--master", f"{hosts[0].address}:{PORT}", "--", *training])
                for node, host in enumerate(hosts)]

    def wait_for(self, process, log, seconds=60):
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.fail(f"it still runs after {seconds} s: {log.read_text()}")

    def wait_until(self, condition, process, log, seconds=60):
        """The position of a run in progress."""
        end = time.monotonic() + seconds
        while not condition():
            self.assertIsNone(process.poll(), log.read_text())
            self.assertLess(time.monotonic(), end, log.read_text())
            time.sleep(0.01)

    def run_alone(self, host, name, command):
        process, log = self.start(host, name, command)
        self.assertEqual(self.wait_for(process, log), 0, log.read_text())

    def expect_same(self, out, other):
        one, two = weights(out), weights(other)
        self.assertEqual(one.keys(), two.keys())
        for name, values in one.items():
            self.assertLessEqual(max(abs(a - b) for a, b in zip(values, two[name])), 1e-6, name)


class TwoHosts(NetTest):
    def test_train_as_one_process(self):
        hosts, one, both = self.hosts(), self.folder / "one", self.folder / "both"
        self.run_alone(hosts[0], "log", self.training(one))
        for process, log in self.launch_on_both(hosts, *self.training(both)):
            self.assertEqual(self.wait_for(process, log), 0, log.read_text())
        self.expect_same(one, both)
        expected, found = records(one, "eval"), records(both, "eval")
        self.assertTrue(expected, "nothing was evaluated")
        self.assertEqual(len(found), len(expected))
        for a, b in zip(expected, found):
            self.assertAlmostEqual(a["loss"], b["loss"], delta=1e-6)

    def test_listen_only_at_the_given_addresses(self):
        hosts, out = self.hosts(), self.folder / "run"
        started = self.launch_on_both(hosts, *self.training(out, "train.epochs=1e5"))
        self.wait_until(lambda: records(out, "step"), *started[0])
        found = [host.listening() for host in hosts]
        self.assertIn(f"{hosts[0].address}:{PORT}", found[0])
        for host, sockets in zip(hosts, found):
            for socket in sockets:  # the other sockets are between pairs of ranks
                self.assertEqual(socket.rsplit(":", 1)[0], host.address, found)
        for process, _ in started:
            process.send_signal(signal.SIGTERM)
        for process, log in started:
            self.assertEqual(self.wait_for(process, log), 143, log.read_text())
        self.assertEqual([host.listening() for host in hosts], [[], []])

    def test_a_cut_link_ends_all_and_the_resumed_run_is_exact(self):
        hosts, whole, cut = self.hosts(), self.folder / "whole", self.folder / "cut"
        settings = ["train.eval_every=0", "checkpoint.every=50 steps",
                    f"distributed.timeout_s={TIMEOUT_S}"]
        started = self.launch_on_both(hosts, *self.training(cut, *settings, "train.epochs=1e5"))
        self.wait_until(lambda: checkpoints(cut), *started[0])
        hosts[1].link("down")
        begin = time.monotonic()
        for rank, (process, log) in enumerate(started):
            self.assertEqual(self.wait_for(process, log, TIMEOUT_S + 30), 4, log.read_text())
            said = log.read_text()
            self.assertIn("another process ended or did not respond in time", said)
            self.assertIn(f"(rank {rank} of 2)", said)
        self.assertLess(time.monotonic() - begin, TIMEOUT_S + 20)
        self.assertEqual([host.processes() for host in hosts], [[], []])
        hosts[1].link("up")
        settings.append(f"train.epochs={position(cut)['epoch'] + 2}")
        for process, log in self.launch_on_both(hosts, *self.training(whole, *settings)):
            self.assertEqual(self.wait_for(process, log), 0, log.read_text())
        self.assertLess(position(cut)["step"], position(whole)["step"])
        for process, log in self.launch_on_both(hosts, *self.training(cut, *settings, resume=True)):
            self.assertEqual(self.wait_for(process, log), 0, log.read_text())
        # Weights, momentum and generators.
        found, expected = (read_checkpoint(out)[0]["__metadata__"]["crc32"] for out in (cut, whole))
        self.assertEqual(found, expected)


class Kills(NetTest):
    def kill(self, host, out, victims):
        """Kills a run, and checks that no process, socket or shared memory is left."""
        process, log = self.start(host, "log", [
            "launch", "--nproc-per-node", "2", "--master", f"127.0.0.1:{PORT}", "--",
            *self.training(out, "train.epochs=1e5", 'checkpoint.every=["1 epoch", "20 steps"]', resume=out.exists())])
        before = len(records(out, "step"))
        self.wait_until(lambda: len(records(out, "step")) > before and checkpoints(out), process, log)
        ranks = self.ranks(host)
        self.assertEqual(sorted(ranks), ["0", "1"])
        shared = unnamed_memory(ranks["0"])
        self.assertEqual(len(shared), 1, "one memory for both")
        self.assertEqual(unnamed_memory(ranks["1"]), shared)
        for victim in victims:
            os.kill(process.pid if victim == "launcher" else ranks[victim], signal.SIGKILL)
        code = self.wait_for(process, log, 40)
        self.assertEqual(code, -signal.SIGKILL if "launcher" in victims else 4, log.read_text())
        self.assertTrue(host.wait_until_empty(10), "a process is left")
        # A killed process disappears from the list with its first thread, but closes its files with its last.
        end = time.monotonic() + 10
        while host.listening() and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(host.listening(), [])
        self.assertEqual(host.shared_memory(), [])
        for pid in filter(str.isdigit, os.listdir("/proc")):
            self.assertFalse(unnamed_memory(pid) & shared, f"process {pid} still has its memory")

    def ranks(self, host):
        found = {}
        for pid in host.processes():
            with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as file:
                variables = dict(pair.split("=", 1) for pair in file.read().split("\0") if "=" in pair)
            if "SATURATE_LAUNCHED" in variables:
                found[variables["RANK"]] = pid
        return found

    def test_leave_no_process_or_memory_and_the_next_start_works(self):
        # Every run uses the port and the folder of the one killed before.
        host, out = self.host(), self.folder / "run"
        for victims in (["0"], ["1"], ["launcher"], ["launcher", "0", "1"]):
            with self.subTest(killed=victims):
                self.kill(host, out, victims)
        epochs = position(out)["epoch"] + 2
        self.run_alone(host, "log", ["launch", "--nproc-per-node", "2", "--master", f"127.0.0.1:{PORT}", "--",
                                     *self.training(out, f"train.epochs={epochs}", resume=True)])


    def test_a_client_that_vanishes_does_not_end_rank_0(self):
        # A SIGPIPE in the store's thread, which wrote its answers, once ended the rank silently.
        host, out = self.host(), self.folder / "run"
        process, log = self.start(host, "log", [
            "launch", "--nproc-per-node", "2", "--master", f"127.0.0.1:{PORT}", "--",
            *self.training(out, "train.epochs=1e5")])
        self.wait_until(lambda: records(out, "step"), process, log)
        host.run([sys.executable, "-c", VANISHING_CLIENT, PORT])
        before = len(records(out, "step"))
        self.wait_until(lambda: len(records(out, "step")) > before + 1, process, log)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.wait_for(process, log), 143, log.read_text())


class Launchers(NetTest):
    def starts(self, command, environment=None):
        host, one, both = self.host(), self.folder / "one", self.folder / "both"
        self.run_alone(host, "log", self.training(one))
        log = self.folder / "launcher"
        with open(log, "w", encoding="utf-8") as file:
            process = host.start([*command, options.saturate, *self.training(both)], stdout=file, stderr=file,
                                 env={**os.environ, **(environment or {})})
        self.assertEqual(self.wait_for(process, log), 0, log.read_text())
        self.assertIn("over 2 processes", log.read_text())
        self.expect_same(one, both)

    def test_torchrun(self):
        torchrun = shutil.which("torchrun")
        if not torchrun:
            self.skipTest("there is no torchrun on PATH")
        self.starts([torchrun, "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--no-python"])

    def test_mpirun(self):
        mpirun = shutil.which("mpirun")
        if not mpirun:
            self.skipTest("there is no mpirun on PATH (apt-get install openmpi-bin)")
        self.starts([mpirun, "--oversubscribe", "-n", "2"],
                    {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saturate", type=lambda path: pathlib.Path(path).resolve(), required=True)
    options, rest = parser.parse_known_args()
    why = missing()
    if why:
        print(f"skipped: {why}")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
