"""Turns of saturate.diagnose(): which steps count. Needs pytest and torch."""

import contextlib
import itertools
import types
from unittest import mock

import pytest

import saturate

torch = pytest.importorskip("torch")

from torch.utils.data._utils import signal_handling  # noqa: E402

from saturate.group_turns import GroupArm, GroupTurns  # noqa: E402
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
        steps, made = turns.steps(arm, contextlib.nullcontext, 0.0, 2), 0
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


@pytest.mark.parametrize("interrupted", [(), (3,), (2, 3)])
def test_a_turn_that_other_processes_make_too_has_as_many_steps(interrupted):
    """Also if a step is interrupted, so that its time does not count, or if all are. begin_step is called for each."""
    turns, arm, begun = Turns(lambda: None, Clock()), Arm(lambda: itertools.repeat(torch.zeros(8, 1))), []
    steps, made = turns.fixed(arm, lambda: contextlib.nullcontext(lambda: begun.append(made)), 2), 0
    with pytest.raises(StopIteration) as end:
        next(steps)
        for made in range(1, 99):  # the first one settles
            if made in interrupted:
                turns.interrupted()
            turns.clock.now += 5 if interrupted == (made,) else 0.1
            next(steps)
    assert made == len(begun) == 3 and end.value.value.steps_per_s == pytest.approx(10)


def test_a_changed_loader_that_fails_does_not_end_the_turn_for_which_others_wait():
    def failing():
        yield 1
        raise OSError("no room")

    before = signal_handling._error_if_any_worker_fails
    arm = GroupArm(failing, Arm(lambda: itertools.repeat(7)))
    arm.check()
    assert signal_handling._error_if_any_worker_fails is not before  # a killed worker does not end a step
    assert [arm.next() for _ in range(4)] == [1, 7, 7, 7]
    with pytest.raises(saturate.Error, match="no room"):
        arm.check()
    arm.close()
    assert signal_handling._error_if_any_worker_fails is before


@pytest.mark.parametrize("workers, steps", [(0, 5), (1, 5), (4, 8), (8, 8), (16, 5)])
def test_a_turn_has_as_many_batches_of_each_worker(workers, steps):
    """All workers may deliver theirs at the same time."""
    assert GroupTurns._steps_of(types.SimpleNamespace(steps=5, most_workers=9),
                                types.SimpleNamespace(workers=workers)) == steps


def test_loading_takes_a_number_of_batches_that_does_not_depend_on_time():
    numbers, turns = itertools.count(), Turns(lambda: None, Clock(1.0))
    arm = Arm(lambda: (torch.zeros(8, 1) for _ in numbers))
    arm.next()
    for ahead, given in ((0, 7), (3, 17), (99, 123)):
        arm.ahead = ahead
        turns.loading(arm, float("inf"), 5)
        assert next(numbers) == given


def test_objects_are_sent_from_the_modules_gpu():
    """The script need not have made it the current one. Processes that wait for one that evaluates are slower."""
    current, used, own = [0], [], []

    @contextlib.contextmanager
    def on(device):
        current.append(device.index)
        yield
        current.pop()

    def note(*_):
        used.append(current[-1])

    def gather(gathered, value):
        note()
        gathered[:] = [value, value]
        if value and isinstance(value[0], list):  # seconds of a step
            own.extend(value[0])
            gathered[1] = ([10 * each for each in value[0]], *value[1:])

    group = mock.MagicMock(**{"get_world_size.return_value": 2, "get_rank.return_value": 0, "barrier.side_effect": note,
                              "broadcast_object_list.side_effect": note, "all_gather_object.side_effect": gather,
                              "distributed_c10d._get_default_store.return_value.compare_set.return_value": b"all"})
    weight = types.SimpleNamespace(device=torch.device("cuda", 1))
    module = types.SimpleNamespace(parameters=lambda: iter([weight]), no_sync=contextlib.nullcontext)
    fake = types.SimpleNamespace(distributed=group, cuda=types.SimpleNamespace(device=on))
    turns = GroupTurns(fake, Turns(lambda: None), [module], Arm(lambda: itertools.repeat(torch.zeros(8, 1))))
    for _ in turns.run(0.01, False):
        assert current == [0]
    assert set(used) == {1} and turns.results[0].before == [1 / each for each in own]
