"""Which steps of a loop are measured in detail. They stand for the others, since hooks take up to 0.1 ms of a step."""

from __future__ import annotations

import collections
import statistics
from typing import Deque, List, Optional

from .phases import ELSEWHERE, HOST, NAMES, PhaseClock

BEGINNING = 8          # steps that are all measured in detail, and of which the first SEARCH_STEPS
SEARCH_STEPS = 2       # also look for modules, and are not typical
EVERY_NS = 150 * 10**6  # then one step in about this time is: each one, if steps are longer;
MOST_NS = 10 * EVERY_NS  # in this time in any case
STEPS = 32             # measured ones that stand for the others
LONG = 10              # times the median of these: such a step is not typical
JITTER = 0.618         # of EVERY_NS, modulo 1: loops do things in every tenth step


class Sampling:
    """Ends a loop's steps, and divides the time of those not measured as in typical measured ones."""

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock
        self._before: Optional[List[int]] = list(clock.spent)  # None: the step was measured only from some point on
        self._typical: Deque[List[int]] = collections.deque(maxlen=STEPS)
        self._count = 0                                 # of intervals
        self._interval = (clock.begin, 0)               # its beginning, and the steps until then
        # From this number of steps on, or this time, the next step is measured. A time alone would choose steps that
        # follow long ones.
        self.next_step, self.next_ns = 0, clock.begin

    def ends_measured(self, now: int, steps: int) -> bool:
        """After a measured step, or if is_due(): whether the next step is to be measured. `now`: of settle()."""
        clock = self._clock
        if clock.is_detailed and self._before is not None and steps > SEARCH_STEPS:
            self._typical.append([0 if phase in ELSEWHERE else spent - before for phase, (spent, before)
                                  in enumerate(zip(clock.spent, self._before[:len(NAMES)]))])
            median = statistics.median(map(sum, self._typical))
            clock.set_typical(round(median), round(LONG * median))
        is_due = self.is_due(now, steps)
        if is_due:
            self._begin_interval(now, steps)
        is_measured = is_due or steps < BEGINNING
        self._before = list(clock.spent) if is_measured else None
        return is_measured

    def is_due(self, now: int, steps: int) -> bool:
        return steps >= self.next_step or now >= self.next_ns

    def _begin_interval(self, now: int, steps: int) -> None:
        begin_ns, begin = self._interval
        step_ns = max(1, (now - begin_ns) // max(1, steps - begin))
        self._interval = now, steps
        self._count += 1
        self.next_step = steps + max(1, round(EVERY_NS / step_ns * (0.5 + self._count * JITTER % 1)))
        self.next_ns = now + MOST_NS

    def spent(self) -> List[int]:
        """Nanoseconds by phase so far."""
        clock = self._clock
        rest = clock.take_unknown()
        if rest:
            sums = [sum(each) for each in zip(*self._typical_steps())] or [0] * len(NAMES)
            total = sum(sums) or 1
            parts = [rest * each // total for each in sums]
            parts[HOST] += rest - sum(parts)
            for phase, part in enumerate(parts):
                clock.spent[phase] += part
        return clock.spent[:len(NAMES)]

    def _typical_steps(self) -> List[List[int]]:
        median = statistics.median(map(sum, self._typical)) if self._typical else 0
        return [each for each in self._typical if sum(each) <= LONG * median]
