"""A GPU's time by phase, from CUDA events that are read once the GPU has passed them, so that nothing waits for it.

Tests use events that a test moves.
"""

from __future__ import annotations

import collections
from typing import Any, Callable, Deque, List, NamedTuple, Optional, Tuple

RING = 256  # events that the GPU may be behind
STEP_END, PART_END = -1, -2  # in place of a phase: the end of a measured step, and of a part of a step


class DeviceReading(NamedTuple):
    """Counts of DeviceTime so far."""

    steps: int
    spent: List[int]
    steps_in_parts: int
    spent_in_parts: List[int]


class DeviceTime:
    """Events on the stream of the loop: a phase's time is from its event to the next one, as in the command's
    `device_phases`. Time between two phases counts for the first."""

    def __init__(self, count: int, make_event: Callable[[], Any], is_usable: Callable[[], bool]) -> None:
        self._make, self._is_usable = make_event, is_usable
        self._free: List[Any] = []
        self._made = 0
        self._placed: Deque[Tuple[Any, int]] = collections.deque()  # the latter, or an end
        self._current = [0] * count  # nanoseconds of the step or part that has not ended
        self.steps = 0               # measured, and passed by the GPU
        self.spent = [0] * count     # nanoseconds in these
        self.steps_in_parts = 0      # in which a part begins that is measured from the beginning of the step on
        self.spent_in_parts = [0] * count
        self._measures = True        # this step, or the rest of it
        self._end = STEP_END

    def mark(self, phase: int) -> None:
        """From here on the stream's time belongs to `phase`."""
        if self._measures and not (self._placed and self._placed[-1][1] == phase):
            self._place(phase)

    def end_step(self, measure_next: bool) -> None:
        if self._measures:
            self._place(self._end)
            self.read()
        self._measures, self._end = measure_next, STEP_END

    def make_part(self) -> None:
        """Measures the rest of this step as a part: it has an evaluation, and stands for no other step."""
        self.steps_in_parts += self._measures and self._end == STEP_END
        self._measures, self._end = True, PART_END

    def _place(self, phase: int) -> None:
        if not self._is_usable():
            return
        if not self._free and self._made == RING:
            self.read()
        if not self._free and self._made == RING:  # the GPU is far behind: the rest of the step is not measured
            self._placed[-1] = (self._placed[-1][0], PART_END)
            self._measures = False
            return
        if not self._free:
            self._free.append(self._make())
            self._made += 1
        event = self._free[-1]
        try:
            event.record()
        except RuntimeError:  # such as on a device that failed: the loop's own call reports it
            self._measures = False
            return
        self._placed.append((self._free.pop(), phase))

    def read(self) -> None:
        """Adds what the GPU has passed. Does not wait for it."""
        try:
            while self._is_usable() and len(self._placed) > 1 and (
                    self._placed[0][0].query() and self._placed[1][0].query()):
                event, phase = self._placed.popleft()
                if phase >= 0:  # the later event of another stream may be passed first
                    self._current[phase] += max(0, round(event.elapsed_time(self._placed[0][0]) * 1e6))
                    self._end_current(self._placed[0][1])
                self._free.append(event)
        except RuntimeError:  # such as on a device that failed: the loop's own call reports it
            self._measures = False

    def reading(self) -> DeviceReading:
        self.read()
        return DeviceReading(self.steps, list(self.spent), self.steps_in_parts, list(self.spent_in_parts))

    def _end_current(self, end: int) -> None:
        if end >= 0:
            return
        self.steps += end == STEP_END
        total = self.spent if end == STEP_END else self.spent_in_parts
        for phase, value in enumerate(self._current):
            total[phase] += value
            self._current[phase] = 0


def used_gpus(torch: Any) -> List[int]:
    """Those that hold tensors, the one with most of them first; the current one if none does."""
    held = {index: torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count())}
    return sorted((index for index in held if held[index]), key=lambda index: -held[index]) or [
        torch.cuda.current_device()]


def synchronize(torch: Any) -> None:
    """Waits for all GPUs that the loop uses, which may not be the current one."""
    for index in used_gpus(torch):
        torch.cuda.synchronize(index)


def cuda_time(torch: Any, count: int) -> Optional[DeviceTime]:
    """None without a GPU. Events are made once the loop uses it, and none while it captures a graph."""
    if not torch.cuda.is_available():
        return None
    return DeviceTime(count, lambda: torch.cuda.Event(enable_timing=True),
                      lambda: torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing())
