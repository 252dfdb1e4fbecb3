"""saturate.watch(): the steps that are measured in detail, which stand for the others. Needs pytest and torch."""

import inspect
import itertools
import pickle

import pytest

import saturate
from saturate import sampling, watching
from saturate._core import PhaseClock
from saturate.phases import EVALUATION, FORWARD, HOST, WAIT
from saturate.sampling import BEGINNING, EVERY_NS, MOST_NS

torch = pytest.importorskip("torch")
MS = 10**6


class Loop:
    """A loop whose parts move the clock."""

    def __init__(self, monkeypatch):
        self.now, self.forward_ms = 0, 1.0
        monkeypatch.setattr(watching, "PhaseClock", lambda: PhaseClock(lambda: self.now))
        loop = self

        class Model(torch.nn.Linear):
            def forward(self, inputs):
                loop.run(loop.forward_ms)
                return super().forward(inputs)

        self.model = Model(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.model.weight.register_hook(lambda _: self.run(2))

    def run(self, milliseconds):
        self.now += round(milliseconds * MS)

    def step(self):
        self.model(torch.ones(1, 2)).sum().backward()
        self.optimizer.step()
        self.run(0.5)


def hooks(loop):
    from torch.optim import optimizer

    model = loop.model
    return (len(model._forward_hooks), len(model._forward_pre_hooks),
            *(each.__self__.function is not None for each in optimizer._global_optimizer_pre_hooks.values()),
            torch.autograd.backward.func is not torch.autograd.backward.__wrapped__)


def milliseconds(watch):
    return {name: round(seconds * 1e3, 3) for name, seconds in watch.phases.items() if seconds}


def test_short_steps_have_no_hooks_but_for_few_that_stand_for_them(monkeypatch):
    loop, measured = Loop(monkeypatch), 0
    with saturate.watch() as watch:
        for _ in range(1000):
            measured += watch._clock.is_detailed
            assert hooks(loop) == ((1, 1, True, True) if watch._clock.is_detailed and watch.steps > 0 else
                                   (0, 0, True, True) if watch.steps == 0 else (0, 0, False, False))
            loop.step()
            watch.step()
        assert milliseconds(watch) == {"forward": 1000, "backward": 2000, "host": 500}
    expected = BEGINNING + 1000 * 3.5 * MS / EVERY_NS
    assert expected * 0.8 < measured < expected * 1.2
    assert not hasattr(torch.autograd.backward, "func")


def test_steps_that_become_long_are_measured_soon(monkeypatch):
    loop, measured = Loop(monkeypatch), []
    with saturate.watch() as watch:
        for number in range(120):
            loop.forward_ms = 1.0 if number < 60 else MOST_NS / MS
            measured.append(watch._clock.is_detailed)
            loop.step()
            watch.step()
    assert not all(measured[:60]) and all(measured[63:])


def test_every_long_step_is_measured(monkeypatch):
    loop, seen = Loop(monkeypatch), []
    loop.forward_ms = 2 * EVERY_NS / MS
    with saturate.watch() as watch:
        for _ in range(30):
            seen.append(watch._clock.is_detailed)
            loop.step()
            watch.step()
    assert all(seen)


def test_what_changes_is_followed(monkeypatch):
    loop = Loop(monkeypatch)
    with saturate.watch() as watch:
        for forward_ms in (1.0, 6.0):
            loop.forward_ms = forward_ms
            before = milliseconds(watch)
            for _ in range(2000):
                loop.step()
                watch.step()
        forward = milliseconds(watch)["forward"] - before["forward"]
    assert forward == pytest.approx(2000 * 6.0, rel=0.1)


def test_a_first_step_that_compiles_does_not_stand_for_others(monkeypatch):
    loop = Loop(monkeypatch)
    with saturate.watch() as watch:
        for number in range(1000):
            loop.forward_ms = 30000.0 if number == 0 else 20000.0 if number == BEGINNING - 1 else 1.0
            loop.step()
            watch.step()
        assert milliseconds(watch) == {"forward": 50998, "backward": 2000, "host": 500}


@pytest.mark.parametrize("is_without_gradients", [True, False])
def test_an_evaluation_between_short_steps_is_seen(monkeypatch, is_without_gradients):
    loop = Loop(monkeypatch)
    data = torch.utils.data.DataLoader(torch.zeros(100, 2))
    evaluations = 0
    with saturate.watch() as watch:
        for number in range(300):
            loop.step()
            if number >= 50 + 100 * evaluations and not watch._clock.is_detailed:
                evaluations += 1
                with torch.set_grad_enabled(not is_without_gradients):
                    for inputs in data:
                        loop.model(inputs)
            watch.step()
        found = milliseconds(watch)
    assert evaluations == 3
    if is_without_gradients:
        assert found == {"forward": 300, "backward": 600, "host": 150, "evaluation": 300}
    else:  # seen when the step is three times as long as others
        assert sum(found.values()) == 1350 and found["backward"] == pytest.approx(600, rel=0.1)
        assert 450 < found["forward"] <= 600


def test_what_no_hook_sees_is_the_hosts(monkeypatch):
    loop = Loop(monkeypatch)
    with saturate.watch() as watch:
        for number in range(1, 301):
            loop.step()
            if number % 100 == 50:
                loop.run(5000)
            watch.step()
        found = milliseconds(watch)
    assert sum(found.values()) == 16050 and found["host"] == pytest.approx(15150, rel=0.001)


def test_a_long_optimizer_step_after_several_batches_is_the_optimizers(monkeypatch):
    loop = Loop(monkeypatch)

    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            loop.run(20)
            return super().step(closure)

    optimizer = Optimizer(loop.model.parameters(), lr=0.1)
    with saturate.watch() as watch:
        for number in range(8000):
            loop.step()
            if number % 4 == 3:
                optimizer.step()
            watch.step()
        found = milliseconds(watch)
    assert found["optimizer"] == pytest.approx(2000 * 20, rel=0.15)
    assert found["forward"] == pytest.approx(8000, rel=0.3)


def test_waiting_is_always_measured(monkeypatch):
    loop, number = Loop(monkeypatch), 0

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 500

        def __getitem__(self, index):
            loop.run(7 if index % 3 == 0 else 1)
            return torch.ones(2)

    with saturate.watch(torch.utils.data.DataLoader(Data())) as watch:
        for number, _ in enumerate(watch):
            loop.step()
        assert watch.steps == 500 and watch.samples == 500
    assert number == 499
    assert milliseconds(watch) == {"wait": 1502, "forward": 500, "backward": 1000, "host": 250}


def test_a_backward_that_others_wrap_between_measured_steps_is_still_measured(monkeypatch):
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)  # restores it
    loop, called = Loop(monkeypatch), []
    with saturate.watch() as watch:
        for number in range(600):
            if number in (100, 300):
                def theirs(*arguments, _call=torch.autograd.backward, **named):
                    called.append(number)
                    return _call(*arguments, **named)

                monkeypatch.setattr(torch.autograd, "backward", theirs)
            loop.step()
            watch.step()
        assert milliseconds(watch) == {"forward": 600, "backward": 1200, "host": 300}
    assert len(called) == 500 + 300
    loop.step()
    assert len(called) == 802


@pytest.mark.parametrize("given", ["compiled", "original"])
def test_compiled_code_is_not_compiled_again_and_again(monkeypatch, graphs, given):
    loop, (found, backend) = Loop(monkeypatch), graphs
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with saturate.watch(model=compiled if given == "compiled" else model) as watch:
        for _ in range(300):
            compiled(torch.ones(1, 2)).sum().backward()
            loop.run(3)
            watch.step()
    assert len(found) == 1


@pytest.mark.parametrize("watched", ["module", "nothing"])
def test_a_module_compiled_in_place_is_not_compiled_again_and_again(monkeypatch, graphs, watched):
    loop, (found, backend) = Loop(monkeypatch), graphs
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    if watched == "module":
        model.compile(fullgraph=True, backend=backend)
    with saturate.watch(model=model if watched == "module" else None) as watch:
        for number in range(400):
            if watched == "nothing" and number == 20:  # it was found before
                model.compile(fullgraph=True, backend=backend)
            model(torch.ones(1, 2)).sum().backward()
            loop.run(3)
            watch.step()
    assert len(found) == 1


def run(monkeypatch, part, steps):
    """A watch of so many short steps, of which part(number, loop) is one, and the same with each step measured."""
    found = []
    for beginning in (10**9, BEGINNING):
        monkeypatch.setattr(sampling, "BEGINNING", beginning)
        loop = Loop(monkeypatch)
        with saturate.watch() as watch:
            for number in range(steps):
                part(number, loop)
                watch.step()
            spent = watch.phases
        total = sum(spent.values())
        found.append({name: seconds / total for name, seconds in spent.items()})
    return found


def assert_alike(every, some, within=0.05):
    assert all(abs(every[name] - some[name]) < within for name in every), (every, some)


def test_a_teacher_without_gradients_is_a_part_of_each_step(monkeypatch):
    def part(_, loop):
        with torch.no_grad():
            loop.model(torch.ones(1, 2))
        loop.step()

    every, some = run(monkeypatch, part, 2000)
    assert every["evaluation"] > 0.2
    assert_alike(every, some, 0.001)


@pytest.mark.parametrize("period, milliseconds", [(4, 20), (10, 100), (16, 300), (3, 500), (5, 150)])
def test_steps_of_two_kinds_count_by_kind(monkeypatch, period, milliseconds):
    def part(number, loop):
        loop.step()
        if number % period == period - 1:
            loop.forward_ms = milliseconds
            loop.model(torch.ones(1, 2))
            loop.forward_ms = 1.0

    every, some = run(monkeypatch, part, 4000)
    assert_alike(every, some)


def test_steps_that_become_long_count_at_once(monkeypatch):
    def part(number, loop):
        loop.forward_ms = 1.0 if number < 500 else 60.0
        loop.step()

    every, some = run(monkeypatch, part, 1000)
    assert_alike(every, some)


def test_an_evaluation_whose_batches_are_loaded_with_gradients_on(monkeypatch):
    data = torch.utils.data.DataLoader(torch.zeros(20, 2))
    training = torch.utils.data.DataLoader(torch.zeros(2, 2))
    train = itertools.chain.from_iterable(training for _ in range(2000))

    def part(number, loop):
        next(train)
        loop.step()
        if number % 10 == 9:
            for inputs in data:
                with torch.no_grad():
                    loop.model(inputs)

    every, some = run(monkeypatch, part, 2000)
    assert every["evaluation"] > 0.2
    assert_alike(every, some)


def test_a_hook_of_the_optimizers_may_end_a_step(monkeypatch):
    from torch.optim import optimizer

    loop = Loop(monkeypatch)
    with saturate.watch() as watch:
        handle = optimizer.register_optimizer_step_post_hook(lambda *_: watch.step())
        for _ in range(300):
            loop.step()
        handle.remove()
        assert watch.steps == 300


def test_a_clock_that_is_not_detailed_knows_only_wait():
    now = [0]
    clock = PhaseClock(lambda: now[0])
    now[0] = 5
    clock.set_detailed(False)
    clock.longest = 30
    for phase, until in ((WAIT, 10), (None, 100)):
        if phase is not None:
            clock.enter(phase)
            now[0] = until
            clock.leave()
        now[0] = until
    clock.settle()
    assert (clock.spent[HOST], clock.spent[WAIT], clock.spent[FORWARD], clock.spent[EVALUATION]) == (5, 5, 0, 0)
    assert clock.take_unknown() == (0, 90) and clock.take_unknown() == (0, 0)


@pytest.mark.parametrize("register", ["register_optimizer_step_pre_hook", "register_optimizer_step_post_hook"])
def test_a_global_hook_of_an_optimizer_may_end_a_step(monkeypatch, register):
    from torch.optim import optimizer

    loop = Loop(monkeypatch)
    with saturate.watch() as watch, getattr(optimizer, register)(lambda *_: watch.step()):
        for _ in range(100):
            loop.step()
    assert watch.steps == 100


def test_what_stays_between_measured_steps_is_pickled_by_name(monkeypatch):
    loop, backward = Loop(monkeypatch), torch.autograd.backward
    with saturate.watch() as watch:
        for _ in range(20):
            assert torch.autograd.backward is not backward
            assert pickle.loads(pickle.dumps(torch.autograd.backward)) is torch.autograd.backward
            loop.step()
            watch.step()
    assert torch.autograd.backward is backward


def test_step_is_an_ordinary_method():
    with saturate.watch() as watch:
        assert inspect.signature(watch.step).bind(loss=1.0) and watch.step == watch.step
        assert "`loss`, a number" in inspect.getdoc(watch.step)
        for wrong in (lambda: watch.step(1.0), lambda: watch.step(los=1.0), lambda: watch.step(loss=1.0, lost=1.0)):
            with pytest.raises(TypeError, match="only loss="):
                wrong()
        watch.step()
    assert watch.steps == 1
