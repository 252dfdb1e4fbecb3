#!/usr/bin/env python3
"""Which LibTorch tools/find_torch.sh chooses, among folders that look like torch."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "tools/find_torch.sh"


def make_torch(folder, version, loads=True):
    """A torch package with `version` in its header, and libraries that load or do not."""
    (folder / "include/torch/headeronly").mkdir(parents=True)
    (folder / "lib").mkdir()
    numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."))
    (folder / "include/torch/headeronly/version.h").write_text(
        "".join(f"#define TORCH_VERSION_{name} {number}\n" for name, number in numbers) +
        f'#define TORCH_VERSION \\\n  "{version}"\n')
    library = folder / "lib/libtorch_cpu.so"
    if loads:
        shutil.copy(os.path.realpath(sys.executable), library)  # any file that ldd can read
    else:
        library.write_text("no library")
    return folder


class FindTorch(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        (self.folder / "bin").mkdir()
        self.python_has(None)

    def python_has(self, torch):
        script = self.folder / "bin/python3"
        script.write_text("#!/bin/sh\n" + (f"echo {torch}\n" if torch else "exit 1\n"))
        script.chmod(0o755)

    def fetch(self, version, loads=True):
        place = self.folder / f"deps/torch-{version}-cpu"
        torch = make_torch(place / "torch", version, loads)
        (place / ".complete").touch()
        return str(torch)

    def find(self, *arguments, **environment):
        """(what it printed, its error)"""
        found = subprocess.run(
            [SCRIPT, *arguments], capture_output=True, text=True, check=False,
            env={"PATH": f"{self.folder}/bin:/usr/bin:/bin", "SATURATE_DEPS": f"{self.folder}/deps", **environment})
        self.assertEqual(found.returncode == 0, bool(found.stdout), found.stderr)
        return found.stdout.strip(), found.stderr.strip()

    def test_the_default_is_found_if_it_was_fetched_and_another_only_if_asked_for(self):
        other = self.fetch("2.13.0")
        self.assertEqual(self.find(), ("", ""))
        self.assertEqual(self.find(SATURATE_TORCH_VERSION="2.13.0")[0], other)
        self.assertEqual(self.find(SATURATE_TORCH_VERSION="2.13")[0], other)
        self.assertEqual(self.find(SATURATE_TORCH_VERSION="2.12.0"), ("", ""))
        default = self.fetch(self.find("--version")[0])
        self.assertEqual(self.find()[0], default)
        self.assertEqual(self.find(SATURATE_TORCH_VERSION="2.13")[0], other)
        self.assertEqual(self.find("--of", other)[0], "2.13.0")

    def test_pythons_torch_is_used_if_it_is_supported(self):
        fetched = self.fetch(self.find("--version")[0])
        for version, used in (("2.10.1", False), ("2.12.1", True), ("2.16.0", False), ("3.11.0", False)):
            own = make_torch(self.folder / version, version)
            self.python_has(own)
            self.assertEqual(self.find()[0], str(own) if used else fetched, version)
        self.python_has(make_torch(self.folder / "broken", "2.13.0", loads=False))
        self.assertEqual(self.find()[0], fetched)

    def test_a_folder_that_was_named_is_used_or_refused_with_its_version(self):
        self.fetch(self.find("--version")[0])
        for version, wanted in (("2.10.1", "2.11 to 2.15"), ("2.16.0", "2.11 to 2.15"), ("2.12.0", "2.11")):
            own = make_torch(self.folder / version, version)
            _, error = self.find(SATURATE_TORCH_DIR=str(own), **({"SATURATE_TORCH_VERSION": "2.11"}
                                                                  if wanted == "2.11" else {}))
            self.assertEqual(error, f"SATURATE_TORCH_DIR={own} is LibTorch {version}, not {wanted}")
        self.assertEqual(self.find(SATURATE_TORCH_DIR=str(own))[0], str(own))
        broken = make_torch(self.folder / "broken", "2.13.0", loads=False)
        self.assertIn("no libtorch_cpu.so that loads", self.find(SATURATE_TORCH_DIR=str(broken))[1])
        self.assertIn("has no include/", self.find(SATURATE_TORCH_DIR="/nowhere")[1])

    def test_a_version_that_is_not_supported_is_refused(self):
        for version in ("2.10.1", "2.16.0", "2.1", "latest"):
            self.assertIn(f"SATURATE_TORCH_VERSION={version} is not supported",
                          self.find("--version", SATURATE_TORCH_VERSION=version)[1])


if __name__ == "__main__":
    unittest.main()
