"""A run folder that `saturate report` reads: metrics.jsonl and host.json."""

from __future__ import annotations

import json
import math
import os
import platform
import resource
import sys
import time
from typing import Any, Dict, List, Optional

from ._core import Error, __version__
from .phases import NAMES

PAGE = os.sysconf("SC_PAGE_SIZE")


def peak_memory() -> int:
    """Bytes of this process, on the host, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def finite(value: Optional[float]) -> Optional[float]:
    """None for numbers that JSON lacks."""
    return value if value is not None and math.isfinite(value) else None


class Telemetry:
    """This process's resources since the last reading. Without Linux's /proc values are null."""

    def __init__(self) -> None:
        self._last = self._now()

    @staticmethod
    def _now() -> Dict[str, Optional[float]]:
        io: Dict[str, int] = {}
        try:
            with open("/proc/self/io") as file:
                io = {name: int(value) for name, value in (line.split(":") for line in file)}
        except (OSError, ValueError):
            pass
        return {"time": time.perf_counter(), "cpu": time.process_time(), "read": io.get("read_bytes"),
                "write": io.get("write_bytes")}

    def read(self) -> Dict[str, Optional[float]]:
        now, last = self._now(), self._last
        self._last = now
        seconds = (now["time"] or 0) - (last["time"] or 0)

        def rate(name: str) -> Optional[float]:
            value, before = now[name], last[name]
            return None if value is None or before is None or seconds <= 0 else (value - before) / seconds

        return {"cores": rate("cpu"), "rss_bytes": resident_memory(), "disk_read_bytes_per_s": rate("read"),
                "disk_write_bytes_per_s": rate("write")}


def resident_memory() -> Optional[int]:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, ValueError, IndexError):
        return None


def host() -> Dict[str, Any]:
    torch = sys.modules.get("torch")
    return {"system": platform.platform(), "cores": len(os.sched_getaffinity(0)), "python": platform.python_version(),
            "saturate": f"{__version__} (saturate.watch)", "torch": getattr(torch, "__version__", "n/a"),
            "program": " ".join(sys.argv)}


class RunFolder:
    """Writes records, each to the system at once."""

    def __init__(self, folder: Any) -> None:
        self.path = os.fspath(folder)
        metrics = os.path.join(self.path, "metrics.jsonl")
        os.makedirs(self.path, exist_ok=True)
        try:
            self._file = open(metrics, "x", encoding="utf-8")
        except FileExistsError:
            raise Error(f"there is a run already ({metrics}). Name another folder with out=") from None
        with open(os.path.join(self.path, "host.json"), "w", encoding="utf-8") as file:
            json.dump(host(), file, indent=2)

    def write(self, record: Dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def record_of(kind: str, step: int, epoch: float, samples: int, time_s: float, period: List[int], images: int,
              loss: Optional[float], lr: Optional[float], telemetry: Dict[str, Any]) -> Dict[str, Any]:
    """A line of metrics.jsonl. `period`: nanoseconds by phase; `images`: samples in it."""
    phases = {name: spent / 1e9 for name, spent in zip(NAMES, period)}
    training_s = sum(phases.values()) - phases["evaluation"] - phases["checkpoint"]
    return {"kind": kind, "step": step, "epoch": epoch, "samples": samples, "time_s": time_s,
            "loss": finite(loss), "accuracy": None, "accuracy5": None, "lr": finite(lr),
            "images_per_s": images / training_s if images and training_s > 0 else None, "phases": phases,
            "memory_peak_bytes": peak_memory(), "tensor_peak_bytes": None, "telemetry": telemetry, "streams": None,
            "device_phases": None}
