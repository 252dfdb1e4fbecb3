"""Runs GoogleTest tests in several processes at once, and keeps each result as soon as its test ends."""

import concurrent.futures
import os
import re
import subprocess
import threading
import time

from gpu_check.check import LEAST_SECONDS

LINE = re.compile(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] ([\w/]+\.[\w/]+)")
RESULTS = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}
MEMORY_MIB = 8192  # of GPU memory for each process


def names_of(listing):
    """The tests in the output of --gtest_list_tests."""
    names, suite = [], ""
    for line in listing.splitlines():
        text = line.split("#")[0].rstrip()
        if re.fullmatch(r"[\w/]+\.", text):
            suite = text
        elif suite and re.fullmatch(r"  [\w/]+", text):
            names.append(suite + text.strip())
    return names


def shard_count(tests, cores, memory_mib):
    return max(1, min(tests, cores // 2, memory_mib // MEMORY_MIB))


class Shard:
    """Runs some of the tests in one process; if that ends too soon, the rest in another."""

    def __init__(self, check, names, environment):
        self.check, self.waiting, self.environment = check, list(names), environment
        self.said, self.began, self.running, self.failed, self.result = [], 0.0, None, [], None

    def run(self):
        end = time.monotonic() + self.check.left()
        while self.waiting and time.monotonic() + LEAST_SECONDS < end:
            before, failed = len(self.waiting), len(self.failed)
            code, stopped = self._process(end)
            if stopped:
                break
            said = "".join(self.said).strip()[-600:]
            if self.running:
                self._ended(self.running, "crashed", f"exit code {code}: ")
            elif len(self.waiting) == before:
                self.check.failed(f"tests: {self.waiting[0]}", f"not started, exit code {code}: {said}")
                return
            elif code and len(self.failed) == failed:  # else the code is due to a test that failed
                self.check.failed("tests", f"exit code {code} after the last test: {said}")
        for name in self.waiting:
            why = "stopped at the time limit" if name == self.running else "no time left"
            self.check.cut_off(f"tests: {name}", why)

    def _process(self, end):
        """Runs the waiting tests: the exit code, and whether the time limit ended the process."""
        self.running, self.said = None, []
        command = self.check.command("saturate_tests", f"--gtest_filter={':'.join(self.waiting)}",
                                     "--gtest_color=no")
        stopped = threading.Event()
        with self.check.start(command, stderr=subprocess.STDOUT, env=self.environment) as process:
            timer = threading.Timer(end - time.monotonic(),
                                    lambda: (stopped.set(), self.check.end_group(process)))
            timer.start()
            try:
                for line in process.stdout:
                    self._take(line)
                return process.wait(), stopped.is_set()
            finally:
                timer.cancel()

    def _take(self, line):
        self.said.append(line)
        found = LINE.search(line)
        if not found:
            return
        kind, name = found.groups()
        if kind == "RUN":
            self.running, self.said, self.began = name, [], time.monotonic()
        elif name == self.running:  # the closing list repeats the names of failed tests
            self._ended(name, RESULTS[kind])

    def _ended(self, name, result, how=""):
        seconds = round(time.monotonic() - self.began, 3)
        self.running, self.result = None, result  # of the last test
        self.waiting.remove(name)
        if result in ("failed", "crashed"):
            self.failed.append((name, result, seconds, how + "".join(self.said).strip()[-600:]))
        self.check.results.test(name, result, seconds)


def settle(check, failed, environment):
    """Runs tests that failed beside others again, each alone; that result counts."""
    for name, result, seconds, text in failed:
        alone = Shard(check, [name], environment)
        alone.run()
        if alone.waiting or alone.failed:
            check.failed(f"tests: {name}", alone.failed[0][3] if alone.failed else text)
        elif alone.result != "skipped":
            check.results.test(name, f"{alone.result} alone, {result} beside others", seconds)


def run_tests(check, gpu_filter, root, memory_mib, resume=False):
    """Runs all tests that the filter matches; with `resume` without those that passed or were skipped before. `root`:
    where the tests find the command and the project's files, unless they were built here."""
    listing = check.run("tests", check.command("saturate_tests", "--gtest_list_tests",
                                               f"--gtest_filter={gpu_filter}"))
    if listing is None:
        return
    names = names_of(listing)
    if not names:
        check.failed("tests", f"saturate_tests has no test {gpu_filter}")
        return
    if resume:
        known = {test["name"] for test in check.results.content["tests"]
                 if test["result"].startswith(("passed", "skipped"))}
        names = [name for name in names if name not in known]
    cores = len(os.sched_getaffinity(0))
    count = shard_count(len(names), cores, memory_mib)
    environment = os.environ | {"OMP_NUM_THREADS": str(max(1, cores // count))}
    if root:
        environment["SATURATE_TEST_ROOT"] = str(root)
    shards = [Shard(check, names[first::count], environment) for first in range(count)]
    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        for running in [threads.submit(shard.run) for shard in shards]:
            running.result()
    failed = [entry for shard in shards for entry in shard.failed]
    if count > 1:
        settle(check, failed, environment)
    else:
        for name, _, _, text in failed:
            check.failed(f"tests: {name}", text)
