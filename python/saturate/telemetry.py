"""The resources that a process uses, by the names of the command's telemetry (docs/watch.md)."""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import Any, Dict, Optional

from .device_time import used_gpus

PAGE = os.sysconf("SC_PAGE_SIZE")

Values = Dict[str, Optional[float]]


def peak_memory() -> int:
    """Bytes of this process, on the host, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def device_peak_memory() -> Optional[int]:
    """Bytes of tensors so far on the GPU that holds most of them; None if the loop uses none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.max_memory_allocated(used_gpus(torch)[0]))


def resident_memory() -> Optional[int]:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, ValueError, IndexError):
        return None


def _disk_bytes() -> Dict[str, int]:
    try:
        with open("/proc/self/io") as file:
            return {name: int(value) for name, value in (line.split(":") for line in file)}
    except (OSError, ValueError):
        return {}


def _network_bytes() -> Values:
    try:
        with open("/proc/net/dev") as file:
            rows = [line.replace(":", " ").split() for line in file if ":" in line]
        outside = [row for row in rows if row[0] != "lo"]
        return {"receive": sum(int(row[1]) for row in outside), "send": sum(int(row[9]) for row in outside)}
    except (OSError, ValueError, IndexError):
        return {}


class Gpu:
    """The loop's GPU, read through NVIDIA's package nvidia-ml-py if it is installed; other processes' work counts.
    This has not been tried on a GPU."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._has_failed = False

    def read(self) -> Values:
        torch = sys.modules.get("torch")
        if self._has_failed or torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return {}
        try:
            import pynvml as nvml

            if self._handle is None:
                nvml.nvmlInit()
                uuid = str(torch.cuda.get_device_properties(used_gpus(torch)[0]).uuid)
                self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
            handle = self._handle
            busy = nvml.nvmlDeviceGetUtilizationRates(handle)
            return {"gpu_busy": busy.gpu / 100, "gpu_memory_busy": busy.memory / 100,
                    "gpu_memory_bytes": nvml.nvmlDeviceGetMemoryInfo(handle).used,
                    "gpu_power_w": nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                    "gpu_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                    "gpu_celsius": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)}
        except Exception:  # no package, no driver, or a GPU without one of the values; the loop must go on
            self._has_failed = True
            return {}


class Telemetry:
    """Values of this process and its machine since the last reading. Unknown ones are null."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._last = self._now()

    @staticmethod
    def _now() -> Values:
        return {"time": time.perf_counter(), "cpu": time.process_time(), **_disk_bytes(), **_network_bytes()}

    def read(self) -> Values:
        now, last = self._now(), self._last
        self._last = now
        seconds = (now["time"] or 0) - (last["time"] or 0)

        def rate(name: str) -> Optional[float]:
            value, before = now.get(name), last.get(name)
            return None if value is None or before is None or seconds <= 0 else (value - before) / seconds

        return {"cores": rate("cpu"), "rss_bytes": resident_memory(), "disk_read_bytes_per_s": rate("read_bytes"),
                "disk_write_bytes_per_s": rate("write_bytes"), "net_receive_bytes_per_s": rate("receive"),
                "net_send_bytes_per_s": rate("send"), **self._gpu.read()}
