"""Runs programs within the time limit of their part."""

import collections
import contextlib
import os
import signal
import subprocess
import time

LEAST_SECONDS = 5  # with less time left, no program is started
MINUTES = 8  # of a part, unless they are given
SLACK = 2  # a job is cut off after this many times its expected seconds, so that time is left for the others


class Check:
    """`programs`: their paths by name. `minutes`: limit of each part; the jobs' limits are in proportion. `deadline`:
    in minutes after `since`. `under`: a command under which each of the programs runs."""

    def __init__(self, results, programs, minutes, deadline=None, under=(), since=None):
        self.results, self.programs, self.under = results, programs, list(under)
        self.part_seconds, self.slack = 60 * minutes, SLACK * minutes / MINUTES
        self.end = (time.monotonic() if since is None else since) + 60 * (deadline or float("inf"))
        self.used = collections.Counter()
        self.part, self.name, self.whole, self.began, self.limit = None, None, True, 0.0, 0.0
        self.running = set()

    @contextlib.contextmanager
    def job(self, part, name, seconds):
        """Limits a job, which should take `seconds`. It counts as done if nothing of it failed or was cut off."""
        self.part, self.name, self.whole, self.began = part, name, True, time.monotonic()
        self.limit = self.slack * seconds
        self.results.begin(name)
        try:
            yield
        except Exception as error:  # the other jobs still run
            self.failed(name, repr(error))
        self.used[part] += time.monotonic() - self.began
        self.name = None
        if self.whole:
            self.results.done(name)

    def left(self):
        """Seconds."""
        now = time.monotonic()
        return min(self.end - now, min(self.limit, self.part_seconds - self.used[self.part]) - (now - self.began))

    def failed(self, name, text):
        self.whole = False
        self.results.note("failures", name, text)

    def cut_off(self, name, text):
        self.whole = False
        self.results.note("skipped", name, text)

    def command(self, program, *arguments):
        return [*self.under, self.programs[program], *arguments]

    @contextlib.contextmanager
    def start(self, command, **options):
        """A process; at the end, everything that it started, which may hold its pipes, is killed."""
        with subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              text=True, errors="replace", start_new_session=True, **options) as process:
            self.running.add(process)
            try:
                yield process
            finally:
                self.end_group(process)
                self.running.discard(process)

    @staticmethod
    def end_group(process):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def stop(self):
        """Ends all processes; the job in progress is skipped."""
        self.end_all()
        if self.name:
            self.cut_off(self.name, "stopped by a signal")

    def end_all(self):
        for process in list(self.running):
            self.end_group(process)

    def run(self, name, command):
        """The command's output, or None if it failed or had no time."""
        left = self.left()
        if left < LEAST_SECONDS:
            self.cut_off(name, "no time left")
            return None
        print(f"gpu-check: {name}", flush=True)
        with self.start(command, stderr=subprocess.PIPE) as process:
            try:
                stdout, stderr = process.communicate(timeout=left)
            except subprocess.TimeoutExpired:
                self.cut_off(name, "stopped at the time limit")
                return None
        if process.returncode != 0:
            said = (stderr or stdout).strip()[-600:]
            self.failed(name, f"exit code {process.returncode}: {said}")
            return None
        return stdout
