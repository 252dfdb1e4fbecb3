"""Turns of saturate.diagnose(): which steps count. Needs pytest and torch."""

import contextlib
import itertools

import pytest

torch = pytest.importorskip("torch")

from saturate.turns import Arm, Turns  # noqa: E402


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_steps_that_each_begin_an_iteration_count():
    turns, arm = Turns(lambda: None, Clock()), Arm(lambda: itertools.repeat(torch.zeros(8, 1)))
    for steps_before in (5, 2):  # the first three do not count; in the next turn all do
        steps, made = turns.fixed(arm, contextlib.nullcontext, 2), 0
        with pytest.raises(StopIteration) as end:
            next(steps)
            for made in range(1, 99):
                turns.interrupted()
                turns.clock.now += 0.1
                next(steps)
        assert made == steps_before + 1 and end.value.value.steps_per_s == pytest.approx(10)
