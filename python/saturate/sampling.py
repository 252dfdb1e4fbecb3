"""Which steps of a loop are measured in detail. They stand for the others, since hooks take up to 0.1 ms of a step."""

from __future__ import annotations

import collections
import random
import statistics
from typing import Deque, List, Optional, Tuple

from ._core import PhaseClock
from .phases import HOST, NAMES, WAIT

BEGINNING = 8            # steps that are all measured in detail, and of which the first SEARCH_STEPS
SEARCH_STEPS = 2         # also look for modules, and stand for none
EVERY_NS = 250 * 10**6   # then one step in about this time is: each one, if steps are longer;
MOST_NS = 10 * EVERY_NS  # in this time in any case
STEPS = 20               # measured ones that stand for the others
LONG = 10                # times the median of these: such a step stands only for others that are as long
INTERVALS = 16           # between measured steps, that tell the mean length of a step

Sums = List[int]  # nanoseconds by phase


class Sampling:
    """Ends a loop's steps, and divides the time of those not measured as in measured ones of a similar length."""

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock
        self._before: Optional[Sums] = clock.spent  # None: this step stands for none
        self._steps: Deque[Sums] = collections.deque(maxlen=STEPS)
        self._divided = [0] * len(NAMES)
        self._search = 0  # steps, for a long one
        self._random = random.Random(1)  # since loops do things in every tenth step
        self._begins: Deque[Tuple[int, int]] = collections.deque([(clock.begin, 0)], maxlen=INTERVALS)  # (time, steps)
        # From this number of steps on, or this time, the next step is measured. A time alone would choose steps that
        # follow long ones.
        self.next_step, self.next_ns = 0, clock.begin

    def skip_step(self) -> None:
        """This step is like no other: it has an evaluation, or is not measured from its beginning on."""
        self._before = None

    def search_long(self) -> None:
        """After a long step that was not measured: measures the next ones, unless such a step is known."""
        if not any(sum(each) > self._clock.longest for each in self._steps):
            self._search, self.next_step = STEPS, 0

    def ends_measured(self, now: int, steps: int) -> bool:
        """After a measured step, or if is_due(): whether the next step is to be measured. `now`: of settle()."""
        clock = self._clock
        if clock.is_detailed and self._before is not None and steps > SEARCH_STEPS:
            self._steps.append([0 if phase == WAIT else spent - before for phase, (spent, before)
                                in enumerate(zip(clock.spent, self._before[:len(NAMES)]))])
            clock.longest = round(LONG * statistics.median(map(sum, self._steps)))
            self._search = 0 if sum(self._steps[-1]) > clock.longest else max(0, self._search - 1)
        is_due = self.is_due(now, steps)
        if is_due:
            self._begin_interval(now, steps)
        is_measured = is_due or steps < BEGINNING or self._search > 0
        self._before = clock.spent if is_measured else None
        return is_measured

    def is_due(self, now: int, steps: int) -> bool:
        return steps >= self.next_step or now >= self.next_ns

    def _begin_interval(self, now: int, steps: int) -> None:
        begin_ns, begin = self._begins[0]
        step_ns = max(1, (now - begin_ns) // max(1, steps - begin))
        self._begins.append((now, steps))
        self.next_step = steps + max(1, round(EVERY_NS / step_ns * (0.5 + self._random.random())))
        self.next_ns = now + MOST_NS

    def spent(self) -> Sums:
        """Nanoseconds by phase so far."""
        usual, long = self._clock.take_unknown()
        if usual or long:
            longest = self._clock.longest
            self._divide(usual, [each for each in self._steps if sum(each) <= longest])
            self._divide(long, [each for each in self._steps if sum(each) > longest])
        return [measured + divided for measured, divided in zip(self._clock.spent, self._divided)]

    def _divide(self, time_ns: int, steps: List[Sums]) -> None:
        """As in these steps; the host's if there are none."""
        sums = [sum(each) for each in zip(*steps)] or [0] * len(NAMES)
        total = sum(sums) or 1
        parts = [time_ns * each // total for each in sums]
        parts[HOST] += time_ns - sum(parts)
        for phase, part in enumerate(parts):
            self._divided[phase] += part
