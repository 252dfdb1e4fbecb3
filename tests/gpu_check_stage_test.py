#!/usr/bin/env python3
"""tools/gpu-check --stage: what the folder for a bare machine with a GPU gets."""

import contextlib
import io
import lzma
import os
import pathlib
import sys
import tarfile
import tempfile
import unittest
import zipfile
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from gpu_check import command, jobs, stage  # noqa: E402


class Staged(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_libraries_are_those_that_system_and_torch_lack(self):
        needs = {"saturate": ["libfmt.so.9", "libc.so.6", "libtorch_cpu.so", "libcudart.so.13"]}
        below = {"/lib/libfmt.so.9": ["libextra.so.1", "libstdc++.so.6"], "/lib/libextra.so.1": []}
        places = {"libfmt.so.9": "/lib/libfmt.so.9", "libextra.so.1": "/lib/libextra.so.1"}
        torch = {"libtorch_cpu.so", "libcudart.so.13"}
        with mock.patch.object(stage, "needed_by", lambda path: below[path]):
            self.assertEqual(stage.libraries_to_take(needs, places, torch), places)
            with self.assertRaises(SystemExit) as ended:
                stage.libraries_to_take(needs, places, {"libtorch_cpu.so"})
        self.assertIn("libcudart.so.13, which saturate needs", str(ended.exception))

    def test_a_checkout_is_not_replaced(self):
        for number, others in enumerate(([], ["torch_version", "saturate", ".git"])):  # the latter after a build in it
            checkout = self.folder / str(number)
            for name in "tools/gpu-check", *others:
                (checkout / name).parent.mkdir(parents=True, exist_ok=True)
                (checkout / name).touch()
            with mock.patch.object(stage.shutil, "which", lambda tool: tool):
                with self.assertRaises(SystemExit) as refused:
                    stage.stage(checkout, {}, ROOT, None)
            self.assertIn("has other contents", str(refused.exception))

    def test_wheels_are_built_and_taken_unless_given_or_refused(self):
        (self.folder / "torch_version").write_text("2.11.0\n")
        given = self.folder / "given.whl"
        given.touch()

        def taken(*options):
            with mock.patch.multiple(command, build_all=mock.Mock(return_value=self.folder), has_nvcc=lambda: True,
                                     programs_in=mock.Mock(), stage=mock.DEFAULT,
                                     build_wheels=mock.Mock(return_value=("command", "package"))) as mocks, \
                    mock.patch.object(sys, "argv", ["gpu-check", "--stage", *options]):
                command.main()
                made = [call.args for call in command.build_wheels.call_args_list]
                return made, mocks["stage"].call_args.args[-2:]

        self.assertEqual(taken(), ([("2.11.0",)], ("command", "package")))
        self.assertEqual(taken("--wheel", str(given)), ([("2.11.0",)], (given, "package")))
        self.assertEqual(taken("--built"), ([], (None, None)))

    def test_files_are_complete(self):
        stage.copy_files(self.folder, ROOT)
        for name in ("recipes/demo.toml", "ladders/free-speed.toml", "tools/gpu_check/command.py",
                     "tools/peers/gpu_step.py", "tools/model_twins.py"):
            self.assertTrue((self.folder / name).is_file(), name)
        self.assertTrue(os.access(self.folder / "tools/gpu-check", os.X_OK))

    def test_the_command_of_a_wheel_replaces_the_built_one(self):
        wheel = self.folder / "some.whl"
        (self.folder / "lib").mkdir()
        (self.folder / "saturate").write_text("built")
        (self.folder / "torch_version").write_text("2.11.0")  # not a program
        programs = ["saturate", "saturate_tests"]
        for names, refused in ((["saturate_train/bin/saturate"], True),
                               (["saturate_train/bin/saturate-cuda", "saturate_train.libs/libfmt-1.so"], False)):
            with zipfile.ZipFile(wheel, "w") as archive:
                for name in names:
                    archive.writestr(name, name)
            with mock.patch.object(stage, "set_rpath"), mock.patch.object(stage, "use_instead") as use_instead:
                if refused:
                    self.assertRaisesRegex(SystemExit, "without CUDA", stage.take_command, wheel, self.folder,
                                           programs)
                    self.assertEqual((self.folder / "saturate").read_text(), "built")
                else:
                    stage.take_command(wheel, self.folder, programs)
                    use_instead.assert_called_with(self.folder / "lib", [self.folder / name for name in programs])
        self.assertEqual((self.folder / "saturate").read_text(), "saturate_train/bin/saturate-cuda")
        self.assertTrue(os.access(self.folder / "saturate", os.X_OK))
        self.assertTrue((self.folder / "lib/libfmt-1.so").is_file())

    def test_libraries_of_a_wheel_replace_those_of_the_same_name(self):
        ours = ("libfmt.so.9", "libgtest.so.1", "libssl.so.3", "libz.so.1")
        for name in (*ours, "libssl-0a1b2c3d.so.3", "libfmt-0a1b2c3d.so.9.1.0", "libz-0a1b2c3d.so.12"):
            (self.folder / name).touch()
        needs = {"tests": ["libfmt.so.9", "libz.so.1"], "libgtest.so.1": ["libfmt.so.9"]}
        calls = []
        with mock.patch.object(stage, "needed_by", lambda path: needs.get(path.name, [])), \
                mock.patch.object(stage.subprocess, "run", lambda command, check: calls.append(command[2:])):
            stage.use_instead(self.folder, [pathlib.Path("tests")])
        left = {path.name for path in self.folder.iterdir()}
        self.assertEqual(left & set(ours), {"libgtest.so.1", "libz.so.1"})  # libz.so.12 is another
        hashed = "libfmt-0a1b2c3d.so.9.1.0"
        self.assertEqual([(*call[:2], call[2].name) for call in calls],
                         [("libfmt.so.9", hashed, "tests"), ("libfmt.so.9", hashed, "libgtest.so.1")])

    def test_finds_the_same_torch_when_called_again_in_its_folder(self):
        site = self.folder / "site"
        for path, text in (("torch/__init__.py", ""),
                           ("torch-2.11.1.dist-info/METADATA", "Name: torch\nVersion: 2.11.1+cu130\n")):
            (site / path).parent.mkdir(parents=True)
            (site / path).write_text(text)
        (self.folder / "torch_version").write_text("2.11.0")
        with contextlib.chdir(self.folder), mock.patch.object(command, "ROOT", self.folder), \
                mock.patch.dict(os.environ, {"PYTHONPATH": str(site)}):
            for _ in range(2):
                self.assertTrue(command.link_torch(sys.executable))
                self.assertEqual((self.folder / "torch").resolve(), (site / "torch").resolve())

    def test_the_folder_is_packed_into_an_archive_of_limited_size(self):
        fresh, folder = self.folder / "stage.tmp", self.folder / "stage"
        (fresh / "lib").mkdir(parents=True)
        (fresh / "lib/one").write_bytes(os.urandom(2000))
        (fresh / "lib/one").chmod(0o755)
        with contextlib.redirect_stdout(io.StringIO()):
            stage.pack(fresh, folder)
            with mock.patch.object(stage, "LIMIT", 1000), self.assertRaisesRegex(SystemExit, "Try without --cifar"):
                stage.pack(fresh, folder)
        with tarfile.open(self.folder / "stage.tar.xz") as archive:
            archive.extractall(self.folder / "there")
        self.assertEqual((self.folder / "there/stage/lib/one").read_bytes(), (fresh / "lib/one").read_bytes())
        self.assertTrue(os.access(self.folder / "there/stage/lib/one", os.X_OK))

    def test_archives_are_compressed_with_xz(self):
        for name in stage.ARCHIVES:
            (self.folder / name).write_bytes(name.encode() * 1000)
        stage.pack_cifar(self.folder, self.folder / ".")
        for name in stage.ARCHIVES:
            self.assertEqual(lzma.open(self.folder / f"cifar/{name}.xz").read(), name.encode() * 1000)
            unpacked = jobs.archive(self.folder / "cifar", name, self.folder / "cifar")
            self.assertEqual(unpacked.read_bytes(), name.encode() * 1000)


if __name__ == "__main__":
    unittest.main()
