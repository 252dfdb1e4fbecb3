"""A run folder that saturate.report() reads (metrics.jsonl and host.json), and TensorBoard's events."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import math
import os
import platform
import sys
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from ._core import Error, __version__, without_queries
from .device_time import DeviceReading
from .phases import NAMES
from .telemetry import device_peak_memory, peak_memory
from .world import is_rank_0

# The scalars of a record, for TensorBoard, under the command's names.
SCALARS = ("loss", "lr", "images_per_s", "memory_peak_bytes")

# Whether saturate runs this script, perhaps several times, to measure it: no run is kept.
is_measured_script = False


def keeps_runs() -> bool:
    """Whether this process writes runs and reports: that of rank 0, unless saturate measures its script."""
    return is_rank_0() and not is_measured_script


class Reading(NamedTuple):
    """The counts up to a time."""

    time_ns: int
    steps: int
    samples: int
    phases: List[int]                          # nanoseconds
    workers: Tuple[int, ...]                   # see WorkerTimes.read()
    device: Optional[DeviceReading]


def finite(value: Optional[float]) -> Optional[float]:
    """None for numbers that JSON lacks."""
    return value if value is not None and math.isfinite(value) else None


def shown(text: str) -> str:
    """As UTF-8 can encode it, and without the queries of URLs."""
    return without_queries(text.encode("utf-8", "backslashreplace").decode())


def host() -> Dict[str, Any]:
    torch = sys.modules.get("torch")
    return {"system": platform.platform(), "cores": len(os.sched_getaffinity(0)), "python": platform.python_version(),
            "saturate": f"{__version__} (saturate.watch)", "torch": getattr(torch, "__version__", "n/a"),
            "program": shown(" ".join(sys.argv))}


class RunFolder:
    """Writes records, each to the system at once. If the folder holds a run, one beside it is made: FOLDER-2, -3 ..."""

    def __init__(self, folder: Any) -> None:
        self.path = asked = os.fspath(folder)
        for number in itertools.count(2):
            is_new = not os.path.exists(self.path)
            os.makedirs(self.path, exist_ok=True)
            self._metrics = os.path.join(self.path, "metrics.jsonl")
            try:
                self._file = open(self._metrics, "x", encoding="utf-8")
                break
            except FileExistsError:
                self.path = f"{os.path.abspath(asked)}-{number}"
        try:
            with contextlib.suppress(OSError):  # the file system has no locks
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a report takes it for a run in progress
            with open(os.path.join(self.path, "host.json"), "w", encoding="utf-8") as file:
                json.dump(host(), file, indent=2)
            if self.path != asked:
                warnings.warn(f"there is a run already in {asked}: this one is written to {self.path} "
                              "(saturate.watch). If one program does this again and again, it watches two loaders in "
                              "turn, and each watch ends the one before: watch only the training loader")
        except BaseException:
            self.close()
            with contextlib.suppress(OSError):
                os.remove(os.path.join(self.path, "host.json"))
                if is_new:
                    os.rmdir(self.path)
            raise

    def write(self, record: Dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def leave_to_parent(self) -> None:
        """Called in a forked process: closes its copy of the file, which would keep the lock after the parent's end."""
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), self._file.fileno(), inheritable=False)

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            with contextlib.suppress(OSError):
                if os.path.getsize(self._metrics) == 0:  # without a record it is not a run
                    os.remove(self._metrics)


def summary_writer() -> Any:
    """TensorBoard's writer that torch comes with."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise Error(f"TensorBoard's events cannot be written: {error} (tensorboard). Install torch and the package "
                    "tensorboard, or leave tensorboard out") from error
    return SummaryWriter


class EventFiles:
    """TensorBoard's events."""

    def __init__(self, writer: Any) -> None:
        self._writer, self.path = writer, writer.log_dir

    def write(self, record: Dict[str, Any]) -> None:
        if record["kind"] != "step":
            return
        values = {**{name: record[name] for name in SCALARS}, **record["telemetry"]}
        if record["workers"]:
            values["worker_s_per_batch"] = record["workers"]["busy_s"] / max(1, record["workers"]["batches"])
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(f"{name}/train", value, record["step"])
        for group, title in (("phases", "share_of_time"), ("device_phases", "share_of_device_time")):
            spent = record[group] or {}
            total = sum(spent.values())
            for name, seconds in spent.items():
                if total > 0:
                    self._writer.add_scalar(f"{title}/{name}", seconds / total, record["step"])

    def close(self) -> None:
        self._writer.close()


class Outputs:
    """One that cannot be written is closed with a warning, since the training is to go on."""

    def __init__(self, run: Optional[RunFolder] = None) -> None:
        self.run = run  # also after it is closed
        self.open: List[Any] = [] if run is None else [run]

    def write(self, record: Dict[str, Any]) -> None:
        self._with_each(lambda output: output.write(record))

    def close(self) -> None:
        self._with_each(lambda output: output.close())
        self.open.clear()

    def leave_to_parent(self) -> None:
        """Called in a forked process."""
        if self.run is not None and self.run in self.open:
            self.run.leave_to_parent()

    def _with_each(self, call: Callable[[Any], None]) -> None:
        for output in list(self.open):
            try:
                call(output)
            except Exception as error:
                self.open.remove(output)
                with contextlib.suppress(Exception):
                    output.close()
                warnings.warn(f"saturate.watch writes nothing more into {output.path}, and the program continues: "
                              f"{error}. Correct that, and start a new watch")


def open_outputs(out: Any, tensorboard: Union[bool, str, os.PathLike[str]]) -> Outputs:
    """Rank 0's; other ranks have none, nor has a script that is measured."""
    if tensorboard is True and out is None:
        raise Error("there is no folder for TensorBoard's events (tensorboard). Give out= too, or the folder in place "
                    "of True")
    if not keeps_runs():
        return Outputs()
    kind = None if tensorboard is False else summary_writer()
    try:
        outputs = Outputs(None if out is None else RunFolder(out))
    except OSError as failure:
        raise Error(f"the watch cannot be written: {failure} ({os.fspath(out)}). Give out= another folder, or make "
                    "room") from failure
    if kind is not None:
        try:
            folder: Any = os.path.join(outputs.open[0].path, "tb") if tensorboard is True else tensorboard
            outputs.open.append(EventFiles(kind(os.fspath(folder))))
        except BaseException:
            outputs.close()
            raise
    return outputs


def device_phases(before: Reading, now: Reading) -> Optional[Dict[str, float]]:
    """A GPU's seconds by phase between the two; None if nothing was measured. Measured steps stand for all others,
    parts with an evaluation for themselves."""
    last, first = now.device, before.device
    if last is None or first is None or (last.steps, last.spent_in_parts) == (first.steps, first.spent_in_parts):
        return None
    others = last.steps_in_parts - first.steps_in_parts
    scale = (now.steps - before.steps - others) / max(1, last.steps - first.steps)
    return {name: ((spent - earlier) * scale + part - earlier_part) / 1e9 for name, spent, earlier, part, earlier_part
            in zip(NAMES, last.spent, first.spent, last.spent_in_parts, first.spent_in_parts)}


def worker_times(before: Reading, now: Reading, count: int) -> Optional[Dict[str, float]]:
    busy, cpu, batches = (value - earlier for value, earlier in zip(now.workers, before.workers))
    if not batches and not count:
        return None
    return {"count": count, "batches": batches, "busy_s": busy / 1e9, "cpu_s": cpu / 1e9}


def record_of(kind: str, epoch: float, before: Reading, now: Reading, begin_ns: int, workers: int) -> Dict[str, Any]:
    """A line of metrics.jsonl of the time from `before` on, without the loss, the rate and the telemetry."""
    phases = {name: (spent - earlier) / 1e9 for name, spent, earlier in zip(NAMES, now.phases, before.phases)}
    training_s = sum(phases.values()) - phases["evaluation"] - phases["checkpoint"]
    images = now.samples - before.samples
    return {"kind": kind, "step": now.steps, "epoch": epoch, "samples": now.samples,
            "time_s": (now.time_ns - begin_ns) / 1e9, "loss": None, "accuracy": None, "accuracy5": None, "lr": None,
            "images_per_s": images / training_s if images and training_s > 0 else None, "phases": phases,
            "memory_peak_bytes": peak_memory(), "tensor_peak_bytes": None, "telemetry": None, "streams": None,
            "device_phases": device_phases(before, now), "workers": worker_times(before, now, workers),
            "device_memory_peak_bytes": device_peak_memory()}
