"""Hosts on one machine, for tests and measurements: network namespaces that a virtual cable can join.

A host is a process with separate namespaces for network, mounts and IPC, and a separate /dev/shm. The system ends it
when this process ends, in whatever way, and with it everything that was started in it.
Needs root, iproute2 and util-linux; `missing()` checks.
"""

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import time

PR_SET_PDEATHSIG = 1
SETUP = "mount -t tmpfs tmpfs /dev/shm && ip link set lo up && echo ready && exec sleep infinity"
_libc = ctypes.CDLL(None)


def end_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def missing():
    """The reason why there can be no hosts here; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [name for name in ("ip", "ss", "tc", "unshare", "nsenter") if not shutil.which(name)]
    if absent:
        return f"there is no {', '.join(absent)} (apt-get install iproute2 util-linux)"
    try:
        with Host("10.77.0.1") as one, Host("10.77.0.2") as other:
            join(one, other)
    except (RuntimeError, subprocess.CalledProcessError) as error:
        return f"this system allows no network namespaces ({error})"
    return None


class Host:
    def __init__(self, address):
        self.address, self.started = address, []
        self.holder = subprocess.Popen(["unshare", "--net", "--mount", "--ipc", "sh", "-c", SETUP],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       preexec_fn=end_with_parent)
        if self.holder.stdout.readline() != "ready\n":
            self.holder.kill()
            raise RuntimeError(self.holder.communicate()[1].strip() or "unshare failed")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        for process in [*self.started, self.holder]:
            process.kill()
            process.wait()
        for stream in (self.holder.stdout, self.holder.stderr):
            stream.close()

    def kill(self):
        """Ends everything that runs in this host."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def inside(self, command):
        spaces = [f"--{name}=/proc/{self.holder.pid}/ns/{file}"
                  for name, file in (("net", "net"), ("mount", "mnt"), ("ipc", "ipc"))]
        return ["nsenter", *spaces, *map(str, command)]

    def start(self, command, **options):
        """Starts a process in this host; paths in `command` must be absolute."""
        self.started.append(subprocess.Popen(self.inside(command), preexec_fn=end_with_parent, **options))
        return self.started[-1]

    def run(self, command):
        """The output of a short command."""
        return subprocess.run(self.inside(command), check=True, capture_output=True, text=True).stdout

    def processes(self):
        """The processes in this host's network, without zombies."""
        space, found = os.readlink(f"/proc/{self.holder.pid}/ns/net"), []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink(f"/proc/{name}/ns/net") == space and int(name) != self.holder.pid:
                    found.append(int(name))
            except OSError:  # it has ended
                pass
        return found

    def wait_until_empty(self, seconds):
        end = time.monotonic() + seconds
        while self.processes() and time.monotonic() < end:
            time.sleep(0.02)
        return not self.processes()

    def listening(self):
        """ADDRESS:PORT of all listening sockets."""
        return sorted(line.split()[3] for line in self.run(["ss", "-Hltn"]).splitlines())

    def shared_memory(self):
        """Names in /dev/shm, and System V segments."""
        segments = self.run(["cat", "/proc/sysvipc/shm"]).splitlines()[1:]
        return self.run(["ls", "/dev/shm"]).split() + segments

    def link(self, state):
        self.run(["ip", "link", "set", "eth0", state])

    def shape(self, mbit, delay_ms=0.0):
        """Limits what this host sends through the cable to this rate, after this delay; a delay needs netem."""
        if delay_ms:
            how = ["netem", "delay", f"{delay_ms}ms", "rate", f"{mbit}mbit", "limit", "100000"]
        else:
            how = ["tbf", "rate", f"{mbit}mbit", "burst", "256kb", "latency", "100ms"]
        self.run(["tc", "qdisc", "replace", "dev", "eth0", "root", *how])


def join(one, other):
    subprocess.run(["ip", "link", "add", "eth0", "netns", str(one.holder.pid), "type", "veth", "peer", "name", "eth0",
                    "netns", str(other.holder.pid)], check=True, capture_output=True)
    for host in (one, other):
        host.run(["ip", "address", "add", f"{host.address}/24", "dev", "eth0"])
        host.link("up")


def can_shape(delay_ms=0.0):
    """Whether the kernel has tbf, or netem for a delay."""
    with Host("10.77.0.1") as one, Host("10.77.0.2") as other:
        join(one, other)
        try:
            one.shape(1000, delay_ms)
        except subprocess.CalledProcessError:
            return False
    return True


def parse_links(text):
    """{name: (Mbit/s, delay in ms)}, of an option's text "NAME=MBIT/S:MS,..."."""
    links = {}
    for part in text.split(","):
        try:
            name, figures = part.split("=")
            mbit, delay_ms = map(float, figures.split(":"))
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{part}': write NAME=MBIT/S:MS, such as slow=200:20") from None
        links[name] = (mbit, delay_ms)
    return links
