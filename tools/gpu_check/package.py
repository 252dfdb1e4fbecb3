"""The Python package on a GPU: its tests, and faults that `python -m saturate diagnose` has to find."""

import json
import pathlib
import subprocess
import tempfile
import xml.etree.ElementTree

FAULTS = ["healthy", "workers-too-few", "item-in-loop", "autocast-bf16", "channels-last", "checkpoint-saves"]


class Package:
    """`root` has python/tests and bench, and may have the package in `package`; else Python has it installed."""

    def __init__(self, check, root, python):
        self.check, self.root, self.python = check, root, python
        self.places = [str(root / "package")] if (root / "package").is_dir() else []

    def tests(self, job, chosen):
        """Those that pytest's -k chooses."""
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            report = pathlib.Path(folder) / "report.xml"
            if not self._has(job, "saturate, torch, pytest, numpy"):
                return
            self.check.run(job, self._command("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen,
                                              f"--junitxml={report}", self.root / "python/tests/test_gpu.py"))
            cases = xml.etree.ElementTree.parse(report).iter("testcase") if report.exists() else []
            for case in cases:
                kinds = {"failure": "failed", "error": "failed", "skipped": "skipped"}
                found = [kinds[child.tag] for child in case if child.tag in kinds] or ["passed"]
                self.check.results.test(f"Python: {case.get('name')}", found[0], float(case.get("time")))

    def diagnose(self, job, fault, seconds):
        """The first cause that diagnose names in a loop with a fault, and the gain that the loop without it has."""
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            found = pathlib.Path(folder) / "found.json"
            if not self._has(job, "saturate, torch, torchvision"):
                return
            self.check.run(job, self._command(self.root / "bench/python_faults.py", "--only", f"gpu:{fault}", "--rounds",
                                              1, "--seconds", 1, "--diagnose-seconds", seconds, "--work", folder,
                                              "--json", found))
            answer = json.loads(found.read_text(encoding="utf-8")) if found.exists() else {"rows": [], "healthy": []}
        for row in answer["healthy"]:
            self.check.results.row(f"{job}: {row['verdict']}", "steps/s", [row["rate"] or 0], gain=row["predicted"],
                                   low=row["low"], high=row["high"], causes=row["causes"])
        for row in answer["rows"]:
            self.check.results.row(f"{job}: {row['first']}, realised and predicted gain", "times", [row["median"]],
                                   gain=row["predicted"], low=row["low"], high=row["high"], causes=row["causes"])

    def _has(self, job, modules):
        said = subprocess.run([str(part) for part in self._command("-c", f"import {modules}")], capture_output=True,
                              text=True, check=False)
        if said.returncode != 0:
            self.check.cut_off(job, f"{self.python} cannot import {modules}: {said.stderr.strip().splitlines()[-1]}")
        return said.returncode == 0

    def _command(self, *arguments):
        return ["env", *(f"PYTHONPATH={place}" for place in self.places), self.python, *arguments]
