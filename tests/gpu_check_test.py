#!/usr/bin/env python3
"""tools/gpu-check with programs that only print a GPU's output: which results it keeps, and in which order."""

import contextlib
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from gpu_check import command, jobs, shards  # noqa: E402
from gpu_check.check import Check  # noqa: E402
from gpu_check.results import Mismatch, Results  # noqa: E402

GPU = {"name": "GPU of a test", "driver": "1.2", "memory": "16384 MiB"}
# A GoogleTest program. One of its tests fails when others run too but passes alone, one hangs.
TESTS = """#!/usr/bin/env python3
import os, sys, time
NAMES = ["Passes", "Fails", "Flaky", "Crashes", "Last", "Skips"] + ["Hangs"] * ("hang" in sys.argv[0])
NAMES = ["Passes"] if "teardown" in sys.argv[0] else NAMES
if "--gtest_list_tests" in sys.argv:
    sys.exit(print("GpuSuite.\\n" + "".join(f"  {name}  # of a test\\n" for name in NAMES)))
asked = next(arg for arg in sys.argv if arg.startswith("--gtest_filter=")).split("=")[1].split(":")
for name in asked:
    short = name.split(".")[1]
    print(f"[ RUN      ] {name}", flush=True)
    if short == "Crashes":
        os.kill(os.getpid(), 11)
    if short == "Hangs":
        time.sleep(600)
    ends = {"Skips": " SKIPPED", "Fails": " FAILED ", "Flaky": " FAILED " if len(asked) > 1 else "      OK"}
    print("said by " + name)
    print(f"[{ends.get(short, '      OK')} ] {name} (1 ms)", flush=True)
sys.exit("its end" if "teardown" in sys.argv[0] else 0)
"""
# The command: its calls are in calls.log. `train` waits while a file hold exists.
SATURATE = """#!/usr/bin/env python3
import json, pathlib, sys, time
here, args = pathlib.Path(sys.argv[0]).parent, sys.argv[1:]
if args[0] == "env":
    sys.exit(print("commit        abc\\ncpu           test\\ngpus          " + (here / "gpus").read_text()))
if args[0] in ("ladder", "sweep"):
    rung = {"name": "a", "images_per_s": 9.0, "gain_first": None, "low": None, "high": None, "n": 3}
    rungs = [rung | {"skipped": skipped} for skipped in (None, "needs cuda>=2", "failed: out of memory")]
    rungs = [rung | {"name": name} for rung, name in zip(rungs, "abc")]
    sys.exit(pathlib.Path(args[args.index("--json") + 1]).write_text(json.dumps({"rungs": rungs})) and None)
with open(here / "calls.log", "a") as log:
    print(*[arg for arg in args if arg.startswith(("train", "model.name", "precision.mode"))], file=log)
if (here / "hold").exists() and "precision.mode=" + (here / "hold").read_text() in args:
    time.sleep(600)
out = pathlib.Path(args[args.index("--out") + 1])
out.mkdir()
steps = [{"kind": "step", "images_per_s": 100.0 + i, "phases": {}} for i in range(5)]
end = {"kind": "end", "time_s": 2.0, "device_phases": {"forward": 0.0 if "model.name=resnet50" in args else 1.0}}
(out / "metrics.jsonl").write_text("".join(json.dumps(record) + "\\n" for record in [*steps, end]))
print("train.graph: 3 of 5 steps replayed")
"""
PEER = """#!/usr/bin/env python3
import sys
if sys.argv[1] != "-c":
    print("not JSON" if "fp16" in sys.argv else [50.0, 60.0])
"""
SMI = "#!/bin/sh\necho 'GPU of a test, 1.2, 16384 MiB'\n"


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def results(self, name="out", commit="abc"):
        with mock.patch("builtins.print"):
            return Results(self.folder / name, {"gpu": GPU}, commit)


class Kept(InFolder):
    def test_has_each_row_as_soon_as_it_is_measured(self):
        results = self.results()
        with mock.patch("builtins.print"):
            for count in range(1, 4):
                results.row(f"row {count}", "images/s", [1.0, count, 2.0])
                self.assertEqual(len(json.loads(results.path.read_text())["rows"]), count)
                self.assertIn(f"| row {count} |", results.page.read_text())
            results.row("row 1", "images/s", [7.0])
        rows = json.loads(results.path.read_text())["rows"]
        self.assertEqual([(row["name"], row["median"]) for row in rows],
                         [("row 2", 2.0), ("row 3", 2.0), ("row 1", 7.0)])

    def test_joins_several_calls_but_not_another_commits(self):
        first, second, other = self.results("first"), self.results("second"), self.results("other", "def")
        with mock.patch("builtins.print"):
            first.row("old", "s", [1.0])
            first.note("failures", "job", "broke")
            second.row("new", "s", [2.0])
            second.done("job")
            second.take(first.path)
            self.assertEqual(second.content["failures"], {"job": "broke"})
            first.take(second.path)
            with self.assertRaises(Mismatch):
                other.take(first.path)
        self.assertEqual({row["name"] for row in second.content["rows"]}, {"old", "new"})


class InShards(InFolder):
    def run_tests(self, name="saturate_tests", minutes=1.0):
        program = script(self.folder / name, TESTS)
        check = Check(self.results(), {"saturate_tests": program}, minutes)
        with mock.patch("builtins.print"), mock.patch("gpu_check.check.LEAST_SECONDS", 0.2), \
                mock.patch("gpu_check.shards.LEAST_SECONDS", 0.2), \
                mock.patch("os.sched_getaffinity", lambda _: range(4)), check.job("tests", "tests", 280):
            shards.run_tests(check, "Gpu*", None, 1 << 20)
        content = json.loads(check.results.path.read_text())
        return {test["name"].split(".")[1]: test["result"] for test in content["tests"]}, content

    def test_one_that_ends_its_process_does_not_affect_others(self):
        found, content = self.run_tests()
        self.assertEqual(found, {"Passes": "passed", "Fails": "failed", "Flaky": "passed alone, failed beside others",
                                 "Crashes": "crashed", "Last": "passed", "Skips": "skipped"})
        self.assertEqual(set(content["failures"]), {"tests: GpuSuite.Fails", "tests: GpuSuite.Crashes"})
        self.assertIn("said by GpuSuite.Fails", content["failures"]["tests: GpuSuite.Fails"])
        self.assertEqual(content["done"], [])

    def test_a_process_that_fails_after_its_tests_is_a_failure(self):
        found, content = self.run_tests("teardown")
        self.assertEqual(found["Passes"], "passed")
        self.assertIn("exit code 1 after the last test", content["failures"]["tests"])
        self.assertIn("its end", content["failures"]["tests"])

    def test_one_that_hangs_is_named_at_the_limit_and_other_results_are_kept(self):
        found, content = self.run_tests("hang", minutes=0.05)
        self.assertNotIn("Hangs", found)
        self.assertEqual(found["Passes"], "passed")
        self.assertEqual(content["skipped"]["tests: GpuSuite.Hangs"], "stopped at the time limit")

    def test_are_as_many_as_cores_and_memory_allow(self):
        self.assertEqual(shards.shard_count(20, 16, 143771), 8)
        self.assertEqual(shards.shard_count(20, 16, 24576), 3)
        self.assertEqual(shards.shard_count(20, 2, 0), 1)


class Limit(InFolder):
    def test_leaves_time_for_others_if_one_hangs(self):
        check = Check(self.results(), {}, minutes=3 / 60)
        said = []
        with mock.patch("builtins.print"), mock.patch("gpu_check.check.LEAST_SECONDS", 0.1):
            for name, command in (("hangs", ["sh", "-c", "sleep 600 & sleep 600"]), ("ends", ["echo", "here"])):
                with check.job("steps", name, 80):
                    said.append(check.run(name, command))
        self.assertEqual(said, [None, "here\n"])
        self.assertEqual(check.results.content["skipped"], {"hangs": "stopped at the time limit"})
        self.assertEqual(check.results.content["done"], ["ends"])


    def test_of_a_call_skips_what_runs_then_and_all_that_follows(self):
        check = Check(self.results(), {}, minutes=8, deadline=3 / 60, since=time.monotonic() - 1)
        with mock.patch("builtins.print"), mock.patch("gpu_check.check.LEAST_SECONDS", 0.5):
            for part, name, command in (("steps", "first", ["echo"]), ("steps", "hangs", ["sleep", "600"]),
                                        ("sweeps", "next", ["echo"])):
                with check.job(part, name, 80):
                    check.run(name, command)
        content = check.results.content
        self.assertEqual(content["skipped"], {"hangs": "stopped at the time limit", "next": "no time left"})
        self.assertEqual((content["done"], content["failures"]), (["first"], {}))


class Order(unittest.TestCase):
    def test_has_each_peer_directly_after_its_counterpart(self):
        every = list(jobs.Jobs(None, ROOT, "python3", None, 0, False).all())
        names = [job.name for _, job in jobs.chosen(every, ["peers"])]
        names.remove("Python compile gpt2 bf16")  # GPT-2's second peer
        ours = names[0::2]
        self.assertEqual(len(names), 2 * 12)
        for name, peer in zip(ours, names[1::2]):
            self.assertEqual(peer.replace("Python ", ""), {"copies and the kernel": "augmentation"}.get(
                name, name.replace("train ", "")))
        parts = {job.part for job in every}
        self.assertEqual(parts, set(jobs.PARTS))
        self.assertEqual(len({job.name for job in every}), len(every))

    def test_is_by_importance_and_the_important_jobs_fit_in_twelve_minutes(self):
        every = list(jobs.Jobs(None, ROOT, "python3", None, 0, False).all())
        names = [job.name for job in every]
        by_importance = ["tests", "decoding JPEGs", "train gpt2 bf16", "where JPEGs are decoded", "diagnose healthy",
                         "scale-out", "storage", "train resnet18 224 fp16", "free-speed", "Python compile gpt2 bf16"]
        self.assertEqual(sorted(by_importance, key=names.index), by_importance)
        self.assertLessEqual(sum(job.seconds for job in every[:names.index("storage") + 1]), 12 * 60)


class Call(InFolder):
    def setUp(self):
        super().setUp()
        script(self.folder / "bin/nvidia-smi", SMI)
        script(self.folder / "build/saturate", SATURATE)
        script(self.folder / "build/tests/saturate_tests", TESTS)
        script(self.folder / "build/tests/saturate_gpu_bench", "")
        (self.folder / "build/gpus").write_text("1")
        self.python = script(self.folder / "python", PEER)
        self.out = self.folder / "out/gpu-check-gpu-of-a-test.json"

    def start(self, *arguments, python=True):
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        command = [ROOT / "tools/gpu-check", "--build", self.folder / "build", "--out", self.folder / "out",
                   *(["--python", self.python] if python else []), *arguments]
        return subprocess.Popen(command, env=os.environ | {"PATH": path}, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def call(self, *arguments, **more):
        with self.start(*arguments, **more) as process:
            said = process.communicate(timeout=120)[0]
        return process.returncode, said

    def names(self):
        return [row["name"] for row in json.loads(self.out.read_text())["rows"]]

    def calls(self):
        log = self.folder / "build/calls.log"
        return log.read_text().splitlines() if log.exists() else []

    def test_that_is_cut_off_keeps_its_rows_and_is_resumed(self):
        (self.folder / "build/hold").write_text("fp16")
        process = self.start("--only", "steps")
        while process.poll() is None and len(self.calls()) < 5:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 143)
        process.stdout.close()
        self.assertEqual(self.names(), [f"saturate train {net} bf16" for net in ("resnet18 224", "resnet50 224",
                                                                                 "resnet9 32", "gpt2")])
        self.assertEqual(json.loads(self.out.read_text())["skipped"],
                         {"train resnet18 224 fp16": "stopped by a signal"})
        (self.folder / "build/hold").unlink()
        self.assertEqual(self.call("--only", "steps", "--resume")[0], 1)
        self.assertEqual(len(self.names()), 13)
        self.assertEqual(json.loads(self.out.read_text())["skipped"], {})
        failures = json.loads(self.out.read_text())["failures"]  # the GPU's own times of one network are invalid
        self.assertEqual(list(failures), [f"train resnet50 224 {mode}" for mode in ("bf16", "fp16", "tf32", "fp32")])
        self.assertEqual(len(self.calls()), 13 + 2)  # again: one that was stopped, one that failed

    def test_measures_peers_after_their_counterparts_and_continues_after_a_failure(self):
        code, said = self.call("--only", "steps,peers")
        self.assertEqual(code, 1, said)
        self.assertEqual(self.names()[:5], ["saturate train resnet18 224 bf16", "Python eager resnet18 224 bf16",
                                            "saturate train resnet50 224 bf16", "Python eager resnet50 224 bf16",
                                            "saturate train resnet9 32 bf16"])
        content = json.loads(self.out.read_text())
        self.assertIn("Python resnet18 224 fp16", content["failures"])
        self.assertIn("train resnet9 32 fp16", content["done"])

    @unittest.skipIf(importlib.util.find_spec("torchvision"), "this Python could be a peer")
    def test_measures_nothing_twice_for_absent_peers(self):
        self.assertEqual(self.call("--only", "peers", python=False)[0], 0)
        content = json.loads(self.out.read_text())
        self.assertEqual((list(content["skipped"]), content["rows"]), (["peers"], []))
        self.call("--only", "sweeps", python=False)  # sweeps do not change the skipped peers
        self.assertIn("peers", json.loads(self.out.read_text())["skipped"])

    def test_ends_with_an_error_if_the_program_does_not_see_the_gpu(self):
        (self.folder / "build/gpus").write_text("n/a (no NVIDIA driver, or a CPU set of LibTorch)")
        code, said = self.call("--only", "steps")
        self.assertEqual(code, 4)
        self.assertIn("nvidia-smi sees GPU of a test, and saturate does not", said)
        self.assertFalse(self.out.exists())

    def test_without_a_gpu_distinguishes_passing_and_failing_twins(self):
        script(self.folder / "bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
        (self.folder / "build/gpus").write_text("n/a (no NVIDIA driver, or a CPU set of LibTorch)")
        script(self.folder / "build/tests/saturate_tests", "#!/bin/sh\n")
        script(self.folder / "build/tests/saturate_gpu_bench", "#!/bin/sh\n")
        twins = script(self.folder / "build/tests/saturate_data_tests", "#!/bin/sh\n")
        self.assertEqual(self.call()[0], 3)
        script(twins, "#!/bin/sh\nexit 1\n")
        self.assertEqual(self.call()[0], 5)
        self.assertFalse(self.out.exists())

    def test_without_nvidia_smi_believes_the_program(self):
        script(self.folder / "bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
        self.python.write_text("#!/bin/sh\nprintf 'GPU of a test\\n16384\\n'\n")
        code, said = self.call("--only", "sweeps")
        self.assertEqual(code, 1, said)  # a rung fails
        self.assertEqual(json.loads(self.out.read_text())["host"]["gpu"], GPU | {"driver": "unknown"})

    def test_of_several_gpus_names_the_programs(self):
        script(self.folder / "bin/nvidia-smi", "#!/bin/sh\nfor i in 1 2; do echo Other, 580.1, 9 MiB, Disabled; done\n")
        self.python.write_text("#!/bin/sh\nprintf 'GPU of a test\\n16384\\n'\n")
        self.call("--only", "sweeps")
        self.assertEqual(json.loads(self.out.read_text())["host"]["gpu"], GPU | {"driver": "580.1"})

    def test_distinguishes_failed_rungs_from_rungs_with_unmet_needs(self):
        self.assertEqual(self.call("--only", "sweeps")[0], 1)
        content = json.loads(self.out.read_text())
        self.assertIn("storage: a", self.names())
        self.assertEqual(content["skipped"]["storage: b"], "needs cuda>=2")
        self.assertEqual(content["failures"]["storage: c"], "out of memory")

    def test_runs_only_the_jobs_that_are_named(self):
        code, said = self.call("--only", "steps", "--jobs", "resnet9.*(fp16|tf32)")
        self.assertEqual(code, 0, said)
        self.assertEqual(self.names(), ["saturate train resnet9 32 fp16", "saturate train resnet9 32 tf32"])

    def test_refuses_an_unknown_part(self):
        self.assertEqual(self.call("--only", "steps,stairs")[0], 2)
        self.assertEqual(self.call("--only", "steps", "--jobs", "(")[0], 2)
        code, said = self.call("--only", "steps", "--jobs", "Python")
        self.assertEqual(code, 2)
        self.assertIn("Jobs are train resnet18 224 bf16; ", said)


if __name__ == "__main__":
    unittest.main()
