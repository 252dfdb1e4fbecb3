#!/usr/bin/env python3
"""Kills processes that load from a failing store, and compares what they loaded with an uninterrupted local run.

    tests/store_kill_test.py TESTS [--kills 8] [--files FOLDER]

TESTS is saturate_data_tests, whose StoreProgram prints each batch's samples, labels and checksums of pixels. The loader
runs as one to three processes, each with one to four threads, until some of its batches have come and a random time has
passed; then all are killed by SIGKILL, and the next ones, of other numbers, go on at the last batch that all had
delivered. One request in twenty fails (bad_store.WAYS), the store is away for half a second now and then, its name does
not resolve for a second (as root), and the keys of the bucket expire. At the end, the batches must be those of the
local source, loaded by one process with one thread: the same samples, labels, and pixels or tensors. Some share a cache
folder, which the killed processes leave as it is; without it, only the rows of crops are requested of a shard. Moments
are drawn from a fixed seed. FOLDER has images/, a.shard, 0.tar and 1.tar instead of those that TESTS writes; arrays of
75 MB are written into it.
"""

import argparse
import contextlib
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import threading
import time

from bad_store import Names, Store

EPOCHS, SAMPLES, BATCH = 2, 96, 12
FAILURES = 0.05
RATE = 100e6  # bytes/s: the link bounds the loading
AWAY_EVERY_S, AWAY_S, NAMELESS_S = 2, 0.5, 0.5
CONTEXT = 20_000  # tokens of a sample
ROW = 720_000  # bytes: arrays above 64 MiB are read sample by sample


def start(before, tests, environment, *words):
    return subprocess.Popen([*before, tests, "--gtest_filter=StoreProgram.*"], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True,
                            env=dict(environment, SATURATE_LOADER=" ".join(map(str, words))))


def batches_of(process, most):
    """The next batches of a process, at most that many: [(number, [sample, ...])]."""
    found = []
    while len(found) < most and (line := process.stdout.readline()):
        if line.startswith("batch ") and line.endswith("\n"):
            number, *samples = line.split()[1:]
            found.append((int(number), samples))
    return found


def joined(parts, number):
    """A global batch: rank r has its samples r, r + world, ..."""
    world, whole = len(parts), []
    for i in range(sum(len(part[number]) for part in parts)):
        whole.append(parts[i % world][number][i // world])
    return whole


def killed_run(start_loader, total, draw, kills):
    """All batches, loaded by processes that are killed."""
    loaded, deaths = {}, 0
    while len(loaded) < total:
        first, world = len(loaded), draw.choice([1, 2, 3])
        is_last = deaths == kills
        most = total if is_last else draw.randint(0, max(1, (total - first) // (kills - deaths + 1)))
        processes = [start_loader(draw.choice([1, 2, 4]), rank, world, first) for rank in range(world)]
        parts = [dict(batches_of(process, most)) for process in processes]
        if not is_last:
            time.sleep(draw.uniform(0, 0.1))
            for process in processes:
                process.kill()
        for process, part in zip(processes, parts):
            part.update(batches_of(process, total))  # delivered before it was killed
            if process.wait() != 0 and is_last:
                raise SystemExit(f"FAILED: the loader ended with {process.returncode}")
            process.stdout.close()
        deaths += not is_last
        for number in range(first, total):
            if any(number not in part for part in parts):
                if is_last:
                    raise SystemExit(f"FAILED: batch {number} did not come")
                break
            loaded[number] = joined(parts, number)
    return [loaded[number] for number in range(total)], deaths


def make_files(tests, root):
    """A folder of images, a shard and two archives, by the tests' own helper."""
    environment = dict(os.environ, SATURATE_STORE_FILES=str(root), SATURATE_STORE_SAMPLES=str(SAMPLES))
    subprocess.run([tests, "--gtest_filter=StoreProgram.WritesTheFiles", "--gtest_brief=1"], check=True, env=environment,
                   stdout=subprocess.DEVNULL)


def write_arrays(root):
    (root / "x.bin").write_bytes(os.urandom(2 * (SAMPLES * CONTEXT + 1)))
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({SAMPLES}, {ROW}), }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    (root / "x.npy").write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header +
                                 os.urandom(SAMPLES * ROW))


@contextlib.contextmanager
def away_now_and_then(store, names):
    ended = threading.Event()

    def leave():
        while not ended.wait(AWAY_EVERY_S):
            store.is_away = True
            if names:
                names.resolve(False)
            time.sleep(AWAY_S)
            store.is_away = False
            if names:
                ended.wait(NAMELESS_S)  # the store is there, but new processes do not find it
                names.resolve(True)

    thread = threading.Thread(target=leave)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def compare(tests, root, scratch, case, kills, draw, names):
    """Loads one source as the case says. Returns the number of kills, and the store. names: its Names, or None."""
    scheme, far, near, shuffle, cache = case
    with Store(root, FAILURES, RATE) as store:
        if names:
            store.name = names.HOST
        environment = store.environment(scratch, "token0")
        store.renew = 100
        local = start([], tests, environment, f"{scheme}:{root}/{near}", "-", 1, 0, 1, shuffle, 0, EPOCHS)
        expected = [samples for _, samples in batches_of(local, 10**6)]
        if local.wait() != 0 or len(expected) != EPOCHS * SAMPLES // BATCH:
            raise SystemExit(f"FAILED: the local run has {len(expected)} batches")
        uri = f"{scheme}:{far.replace('HOST', store.host)}"

        def start_loader(threads, rank, world, first):
            before = names.inside if names else []
            return start(before, tests, environment, uri, cache, threads, rank, world, shuffle, first, EPOCHS)

        with away_now_and_then(store, names):
            found, deaths = killed_run(start_loader, len(expected), draw, kills)
        if found != expected:
            wrong = next(i for i, pair in enumerate(zip(found, expected)) if pair[0] != pair[1])
            raise SystemExit(f"FAILED: {uri}: batch {wrong} is {found[wrong]}, not {expected[wrong]}")
        print(f"{scheme}:{far}: {len(found)} batches are those of the local run, over {deaths} kills; "
              f"requests: {dict(store.counts)}", flush=True)
        return deaths, store


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests")
    parser.add_argument("--kills", type=int, default=8, help="for all sources together")
    parser.add_argument("--files", type=pathlib.Path)
    arguments = parser.parse_args()
    tests = os.path.abspath(arguments.tests)
    draw, left = random.Random(1), arguments.kills
    with tempfile.TemporaryDirectory() as scratch:
        root = arguments.files or pathlib.Path(scratch, "files")
        if not arguments.files:
            make_files(tests, root)
        write_arrays(root)
        names = Names(pathlib.Path(scratch))
        if not names.can_be_used():
            print("the store's name stays: mount namespaces need root and util-linux")
            names = None
        cases = [("shard", "s3://bucket/a.shard", "a.shard", 0, "-"),
                 ("shard", "http://HOST/files/a.shard", "a.shard", 0, f"{scratch}/cache"),
                 ("folder", "s3://bucket/images", "images", 1, f"{scratch}/cache"),
                 ("tar", "http://HOST/files/{0..1}.tar", "{0..1}.tar", 0, "-"),
                 ("tokens", f"s3://bucket/x.bin,context={CONTEXT}", f"x.bin,context={CONTEXT}", 0, "-"),
                 ("npy", "http://HOST/files/x.npy", "x.npy", 0, f"{scratch}/cache")]
        for i, case in enumerate(cases):
            deaths, store = compare(tests, root, scratch, case, -(-left // (len(cases) - i)), draw, names)
            left -= deaths
            if i == 0:
                tables = sum(512 < length < 8192 for length in store.ranges)
                if tables < SAMPLES // 2:
                    raise SystemExit(f"FAILED: only {tables} tables of segments were requested")


if __name__ == "__main__":
    sys.exit(main())
