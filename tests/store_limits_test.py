#!/usr/bin/env python3
"""Limits of memory and disk while a store is read, and a cache folder that is deleted; and a killed upload.

    tests/store_limits_test.py --saturate build/saturate [NAME of a test ...]
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import zlib

import store_runs
from bad_store import LATE_S, Store
from store_runs import StoreTest, options

MB = 10**6
PART = 32 << 20  # bytes of an upload's part
# Runs a command, and prints the KiB of its memory. Linux counts the peak of the process that starts it too.
MEASURE = """import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)"""


class CacheOfSeveralProcesses(StoreTest):
    PROCESSES = 4

    def run_all(self, store, cache, meanwhile, *settings):
        """Four runs at a time over one cache folder; calls meanwhile() again and again."""
        processes = []
        for number in range(self.PROCESSES):
            self.out, self.log = self.folder / f"run{number}", self.folder / f"log{number}"
            processes.append((self.start(store, f"shard:http://{store.host}/files/a.shard", 1,
                                         [f"data.cache_dir={cache}", *settings]), self.out, self.log))
        while any(process.poll() is None for process, _, _ in processes):
            meanwhile()
        for process, self.out, self.log in processes:
            self.finish(process)
            self.expect_whole_run()
            self.assertNotIn("the cache cannot be used", self.log.read_text())

    @staticmethod
    def size_of(folder):
        """Bytes of its blocks on the disk, as du shows."""
        size = 0
        for where, _, names in os.walk(folder):
            for path in (where, *(os.path.join(where, name) for name in names)):
                with contextlib.suppress(FileNotFoundError):
                    size += os.stat(path).st_blocks * 512
        return size

    def test_never_exceed_its_budget(self):
        budget, cache, seen = 8 * MB, self.folder / "cache", [0]

        def look():
            with contextlib.suppress(FileNotFoundError), open(cache / ".space", "rb") as space:
                fcntl.flock(space, fcntl.LOCK_EX)  # nobody writes between the files that are counted
                seen.append(self.size_of(cache))
            if len(seen) == 50:
                os.killpg(killed.pid, signal.SIGKILL)
            time.sleep(0.002)

        with Store(self.files) as store:
            settings = [f"data.cache_dir={cache}", f"data.cache_gb={budget / 1e9}"]
            killed = self.start(store, f"shard:http://{store.host}/files/a.shard", 1, settings)
            self.run_all(store, cache, look, settings[1])
        print(f"at most {max(seen) / MB:.2f} MB of {budget / MB} MB in {len(seen)} looks")
        self.assertGreater(max(seen), budget * 0.9, "the budget is used up")
        self.assertLessEqual(max(seen), budget)

    def test_read_the_right_samples_while_the_folder_is_deleted(self):
        full, cache, found = self.folder / "full", self.folder / "cache", []

        def fill_and_delete():
            with contextlib.suppress(shutil.Error):  # half a copy is a damaged file, which a process removes
                shutil.copytree(full, cache, dirs_exist_ok=True)
            time.sleep(0.02)
            found.append(self.size_of(cache))
            shutil.rmtree(cache, ignore_errors=True)

        with Store(self.files) as store:
            source = f"shard:http://{store.host}/files/a.shard"
            self.finish(self.start(store, source, 1, [f"data.cache_dir={full}", "data.cache_gb=0.01"]))
            self.run_all(store, cache, fill_and_delete)
        print(f"the folder was deleted {len(found)} times, with {max(found) / MB:.1f} MB")
        self.assertGreater(len(found), 10)


def write_png(path, width, height):
    """Noise, which is stored, not compressed."""
    rows = b"".join(b"\0" + os.urandom(3 * width) for _ in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b""))


def write_npy(path, kind, shape, data):
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data)


class MemoryTest(unittest.TestCase):
    THREADS = 2

    def setUp(self):
        scratch = self.enterContext(tempfile.TemporaryDirectory())
        self.folder, self.files = pathlib.Path(scratch), pathlib.Path(scratch, "files")
        self.files.mkdir()

    def peak(self, environment, *command):
        """Bytes of memory, at most, of a command."""
        done = subprocess.run([sys.executable, "-c", MEASURE, options.saturate, *command], env=environment,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return int(done.stdout) * 1024

    def peak_of_run(self, source, name, environment, *settings):
        words = [f"data.source={source}", "data.eval_source=", f"data.threads={self.THREADS}", "train.batch=16",
                 "train.epochs=1", "train.threads=1", *settings]
        recipe = self.folder / "recipe.toml"
        recipe.write_text("seed = 3\n")
        return self.peak(environment, "train", recipe, "--out", self.folder / name,
                         *[word for setting in words for word in ("--set", setting)])

    def expect_limit(self, name, there, here, mib):
        print(f"{name}: {(there - here) / MB:.0f} MB more than the {here / MB:.0f} MB of local files")
        self.assertLess(there - here, (mib + 32) << 20, name)  # the heap and connections


class MemoryOfImages(MemoryTest):
    """Runs over 400 MB of images, or half of them, that train more slowly than the store sends."""

    def setUp(self):
        super().setUp()
        names = [f"{number % 2}/{number}.png" for number in range(400)]
        for name in names:
            write_png(self.files / "images" / name, 640, 520)
        subprocess.run([options.saturate, "data", "pack", f"folder:{self.files}/images", "--out",
                        f"shard:{self.files}/a.shard"], check=True, capture_output=True)
        for part in range(2):
            with tarfile.open(self.files / f"{part}.tar", "w", format=tarfile.GNU_FORMAT) as archive:
                for name in names[part * 100:(part + 1) * 100]:
                    archive.add(self.files / "images" / name, name)
        for name in names[200:]:
            (self.files / "images" / name).unlink()

    def test_reading_a_store_takes_no_more_than_documented(self):
        with Store(self.files) as store:
            environment, web = store.environment(self.folder), f"http://{store.host}/files"
            model = ["augment.size=64", "augment.crop=random_resized", "model.name=simple_cnn"]
            here = self.peak_of_run(f"shard:{self.files}/a.shard", "here", environment, *model)
            kept, few = [f"data.cache_dir={self.folder}/kept", "data.cache_gb=1"], ["data.read_ahead_mb=32"]
            for name, source, mib, settings in (("shard", f"shard:{web}/a.shard", 128, []),
                                                ("cache", f"shard:{web}/a.shard", 128 + 64, kept),
                                                ("folder", "folder:s3://bucket/images", 32, few),
                                                ("tar", f"tar:{web}/{{0..1}}.tar", 32, few)):
                there = self.peak_of_run(source, name, environment, *model, *settings)
                self.expect_limit(name, there, here, mib + self.THREADS * 16)


class MemoryOfArrays(MemoryTest):
    """Runs of three seconds, and an upload."""

    def test_reading_a_store_takes_no_more_than_documented(self):
        count, values = 40_000, 1_024
        write_npy(self.files / "x.npy", "<f4", (count, values), bytes(count * values * 4))
        write_npy(self.files / "y.npy", "<i8", (count,), struct.pack("<qq", 0, 1) * (count // 2))
        (self.files / "x.bin").write_bytes(os.urandom(32 * MB))  # half a million samples
        with Store(self.files) as store:
            environment = store.environment(self.folder)
            for source, model in (("npy:ROOT/x.npy,ROOT/y.npy", "mlp"),
                                  ("tokens:ROOT/x.bin,type=uint8,context=64", "gpt_tiny")):
                here, there = (
                    self.peak_of_run(source.replace("ROOT", root), f"{model}-{place}", environment,
                                     f"model.name={model}", "data.read_ahead_mb=32", "train.max_minutes=0.05")
                    for place, root in (("here", str(self.files)), ("there", f"http://{store.host}/files")))
                self.expect_limit(source.split(":")[0], there, here, 32 + self.THREADS * 16)

    def test_an_upload_takes_no_more_than_documented(self):
        write_npy(self.files / "x.npy", "|u1", (3_000, 100_000), bytes(300 * MB))
        write_npy(self.files / "y.npy", "<i8", (3_000,), bytes(3_000 * 8))
        source = f"npy:{self.files}/x.npy,{self.files}/y.npy"
        with Store(self.files) as store:
            environment = store.environment(self.folder)
            here, there = (self.peak(environment, "data", "pack", source, "--out", f"shard:{out}")
                           for out in (self.folder / "a.shard", "s3://bucket/a.shard"))
            self.expect_limit("upload", there, here, 5 * PART >> 20)


class KilledUpload(unittest.TestCase):
    def pack(self, out, environment):
        with open(self.folder / "log", "wb") as log:
            return subprocess.Popen([options.saturate, "data", "pack", f"npy:{self.folder}/x.npy,{self.folder}/y.npy",
                                     "--out", f"shard:{out}"], env=environment, stderr=log, stdout=log)

    def finish(self, process):
        self.assertEqual(process.wait(120), 0, (self.folder / "log").read_text())

    def kill_after(self, parts, process, store):
        """Kills the command when the store has so many parts."""
        while process.poll() is None and sum(len(sent) for _, sent in list(store.uploads.values())) < parts:
            time.sleep(0.002)
        process.kill()
        self.assertEqual(process.wait(), -signal.SIGKILL, (self.folder / "log").read_text())

    def test_is_continued_when_it_is_run_again(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.write_arrays(2_000)
        here, there = self.folder / "a.shard", self.folder / "bucket/a.shard"
        there.parent.mkdir()
        with Store(there.parent, failures=0.05) as store:
            environment = store.environment(self.folder)
            self.finish(self.pack(here, environment))
            for parts in (1, 2, 3):
                self.kill_after(parts, self.pack("s3://bucket/a.shard", environment), store)
                self.assertFalse(there.exists())
                self.assertEqual(len(store.uploads), 1)
            time.sleep(LATE_S + 0.5)  # a part may be stored so long after its process has ended
            kept = [len(part) for _, sent in store.uploads.values() for part in sent.values()]
            before = store.counts["parts"]
            self.finish(self.pack("s3://bucket/a.shard", environment))
            self.assertEqual(store.uploads, {})
            self.assertEqual(store.counts["uploads"], 1)
            self.assertEqual(there.read_bytes(), here.read_bytes())
            parts = -(-here.stat().st_size // PART)
            self.assertEqual(store.counts["parts"] - before, parts - len(kept))
            self.assertIn(f"kept {sum(kept) / MB:.1f} MB of an earlier upload", (self.folder / "log").read_text())

    def write_arrays(self, count):
        """Samples of 0.1 MB: 2,000 are six parts of 32 MiB."""
        write_npy(self.folder / "x.npy", "|u1", (count, 100_000), os.urandom(count * 100_000))
        write_npy(self.folder / "y.npy", "<i8", (count,), bytes(count * 8))


if __name__ == "__main__":
    store_runs.main(__doc__)
