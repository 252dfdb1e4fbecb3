"""Turns of saturate.diagnose(): which steps count. Needs pytest and torch."""

import contextlib
import itertools

import pytest

torch = pytest.importorskip("torch")

from saturate.turns import Arm, Turns  # noqa: E402


class Clock:
    def __init__(self, reading=0.0):
        self.now, self.reading = 0.0, reading  # what reading it takes

    def __call__(self):
        self.now += self.reading
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


@pytest.mark.parametrize("loaded, rate", [(0, 10), (50, 6.25)])
def test_what_does_not_count_takes_no_time(loaded, rate):
    """Workers load meanwhile, but steps are no faster than these are alone."""
    turns, arm = Turns(lambda: None, Clock()), Arm(lambda: itertools.repeat(torch.zeros(8, 1)))
    arm.loaded, steps = loaded, turns.fixed(arm, contextlib.nullcontext, 4)
    with pytest.raises(StopIteration) as end:
        next(steps)
        while True:
            turns.clock.now += 0.1
            with turns.uncounted():
                turns.clock.now += 3
            next(steps)
    assert end.value.value.steps_per_s == pytest.approx(rate)


def test_what_was_loaded_ahead_is_no_gain():
    """Batches that workers loaded during a rest do not count, if the loader is the limit."""
    turns, arm = Turns(lambda: None, Clock(1e-6)), Arm(lambda: itertools.repeat(torch.zeros(8, 1)))
    for loaded, settled in ((0, 33), (79, 33), (159, 33), (161, 2)):  # samples/s; a step takes 0.1 s
        arm.loaded, arm.ahead, count = loaded, 32, 0
        steps = turns.steps(arm, contextlib.nullcontext, 1.0)
        with contextlib.suppress(StopIteration):
            next(steps)
            while True:
                turns.clock.now += 0.1
                count += 1
                next(steps)
        assert count == settled + 10
