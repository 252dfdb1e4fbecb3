"""saturate.diagnose(): statistics of the command, what-ifs in turns, and everything as before at the end. The time of
most tests is a clock that the parts of a step move."""

import collections
import copy
import io
import json
import math
import random

import pytest

import saturate
from saturate._core import is_worth, may_be_worth, paired_gain

torch = pytest.importorskip("torch")

from timed_loop import Loop, names, synth_loop  # noqa: E402


def test_the_statistics_are_those_of_the_command():
    """The values of tests/advise_gain_test.cpp."""
    ratio, low, high = paired_gain([100, 110, 95, 102], [150, 160, 147, 149])
    assert (ratio, low, high) == pytest.approx((1.490217, 1.424049, 1.559460), abs=1e-4)
    x = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
    y = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]
    gain = paired_gain([math.exp(each) for each in x], [math.exp(each) for each in y])
    assert [math.log(each) for each in gain] == pytest.approx([-0.46, -0.786, -0.010], abs=1e-9)
    with pytest.raises(saturate.Error, match="rounds"):
        paired_gain([1, 2], [])


def test_the_thresholds_are_those_of_the_command():
    assert is_worth((1.06, 1.01, 1.1), False) and not is_worth((1.06, 1.01, 1.1), True)
    assert not is_worth((1.5, 0.99, 2), False) and may_be_worth((1.5, 0.99, 2), False)
    assert not may_be_worth((1.1, 0.99, 1.2), False) and not may_be_worth((1.5, 1.4, 1.6), False)


NOT_TIMED = ("fused-optimizer", "channels-last", "autocast-bf16", "threads", "batch-size",
             "compile")  # as fast, to this clock


def test_slow_samples_are_loaded_by_workers():
    found = Loop(load=0.05).diagnose(only=["data-loading", "fused-optimizer"])
    assert found.verdict == "cause" and names(found.causes) == ["data-loading"]
    assert found.causes[0].gain == pytest.approx(5, rel=0.01)  # 0.4 s of 0.5
    assert any("num_workers=" in line for line in found.causes[0].remedy.lines)
    assert found.rate == pytest.approx(2, rel=0.01)


def test_slow_steps_with_many_batches_ahead_are_measured_in_time():
    """Batches that are loaded meanwhile do not matter to steps that are the limit."""
    loop = Loop(compute=1, num_workers=2, prefetch_factor=16)
    found = loop.diagnose(seconds=60, only=["fused-optimizer", "batch-size", "channels-last"])
    assert loop.clock.now < 90
    assert len(found.causes + found.uncertain + found.idle) >= 1


@pytest.mark.parametrize("compute, seconds, measured", [(0.02, (0, 75), 3), (1, (60, 330), 3), (60, (60, 4000), 0)])
def test_a_diagnosis_takes_as_long_as_its_changes(compute, seconds, measured):
    loop = Loop(compute=compute)
    found = loop.diagnose(seconds=None, only=["fused-optimizer", "batch-size", "channels-last"])
    assert seconds[0] < loop.clock.now < seconds[1]
    assert len(found.causes + found.uncertain + found.idle) >= measured
    given = [int(why.split("give ")[1].split(" seconds or more")[0]) for _, why in found.skipped]
    assert bool(given) == (not measured) and all(each > loop.clock.now for each in given)


def item(loop):
    float(loop.model[0].bias.sum())  # torch itself calls item() and tolist()


def save(loop):
    torch.save({"a": 1}, io.BytesIO())


@pytest.mark.parametrize("cause, owner, attribute, call", [
    ("item-in-loop", torch.Tensor, "__float__", item),
    ("checkpoint-saves", torch, "save", save),
    ("print-in-loop", __import__("builtins"), "print", lambda loop: print("loss")),
    ("logging", __import__("os"), "fsync", lambda loop: __import__("os").fsync(loop.file.fileno())),
])
def test_calls_of_a_step(monkeypatch, tmp_path, cause, owner, attribute, call):
    loop, original = Loop(compute=0.1, extra=call), getattr(owner, attribute)
    loop.file = open(tmp_path / "log", "w")

    def slower(*arguments, **named):
        loop.clock.now += 0.1
        return original(*arguments, **named)

    monkeypatch.setattr(owner, attribute, slower)
    before = vars(owner).get(attribute)
    found = loop.diagnose(skip=NOT_TIMED)
    loop.file.close()
    assert names(found.causes) == [cause]
    assert found.causes[0].gain == pytest.approx(2, rel=0.01)
    assert vars(owner).get(attribute) is before


def test_anomaly_mode_is_found_and_comes_back():
    def extra(loop):
        loop.clock.now += 0.3 * torch.is_anomaly_enabled()

    loop = Loop(extra=extra)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        found = loop.diagnose(skip=NOT_TIMED)
        assert torch.is_anomaly_enabled() and not torch.is_anomaly_check_nan_enabled()
    assert names(found.causes) == ["anomaly-mode"] and found.causes[0].gain == pytest.approx(4, rel=0.01)


def test_a_profiler_around_the_loop_is_found_and_comes_back(monkeypatch):
    def toggled(is_enabled, kinds):
        is_on.append(is_enabled)
        toggle(is_enabled, kinds)

    def extra(loop):
        loop.clock.now += 0.3 * is_on[-1]

    is_on, toggle = [True], torch._C._autograd._toggle_collection_dynamic
    monkeypatch.setattr(torch._C._autograd, "_toggle_collection_dynamic", toggled)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        found = Loop(extra=extra).diagnose(only=["profiler-on"])
    assert names(found.causes) == ["profiler-on"] and found.causes[0].gain == pytest.approx(4, rel=0.01) and is_on[-1]


def test_gradients_filled_with_zeros():
    loop = Loop()

    def zeroing(loop):
        begin = loop.model[0].weight.grad
        loop.optimizer.zero_grad(set_to_none=False)
        loop.clock.now += 0.1 if loop.model[0].weight.grad is begin else 0

    loop.extra = zeroing
    found = loop.diagnose(skip=NOT_TIMED)
    assert names(found.causes) == ["set-to-none"] and found.causes[0].gain == pytest.approx(2, rel=0.01)


def test_a_healthy_loop():
    found = Loop().diagnose(skip=("batch-size",))
    assert found.verdict == "healthy" and not found.causes
    reasons = dict(found.skipped)
    assert "the step is the limit" in reasons["data-loading"]
    assert "GPU" in reasons["pin-memory"] and "GPU" in reasons["tf32"]
    text = str(found)
    assert text.startswith("healthy") and max(len(line) for line in text.splitlines()) <= 80
    json.dumps(found.to_dict())


class Iterable:
    """Batches of a loader, and nothing that could be changed."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


def test_a_slow_input_without_arguments_is_inferred():
    loop = Loop(load=0.05)
    loop.loader = Iterable(loop.loader)
    found = loop.diagnose(skip=NOT_TIMED)
    assert found.verdict == "cause" and names(found.causes) == ["data-loading"]
    assert found.causes[0].gain == pytest.approx(5, rel=0.01) and "inferred" in found.causes[0].remedy.lines[0]
    assert loop.diagnose(skip=[*NOT_TIMED, "data-loading"]).verdict == "healthy"
    loop = Loop()
    loop.loader = Iterable(loop.loader)
    assert loop.diagnose(skip=NOT_TIMED).verdict == "healthy"


def test_too_little_time_is_undecided():
    found = Loop().diagnose(seconds=1e-3)
    assert found.verdict == "undecided" and any("time" in why for _, why in found.skipped)


def test_a_larger_batch():
    found = Loop(compute=0.1).diagnose(only=["batch-size"])
    assert names(found.causes) == ["batch-size"] and found.causes[0].gain == pytest.approx(2, rel=0.01)
    assert found.causes[0].alters


def test_batches_without_a_step_are_no_gain():
    loop = Loop()
    step = loop.step
    loop.step = lambda batch: step(batch) if len(batch[1]) == 8 else None
    found = loop.diagnose(only=["batch-size"])
    assert not found.causes and dict(found.skipped)["batch-size"] == "the loop skips many of its batches"


def test_sparse_gradients_are_not_updated_by_fused_optimizers():
    from saturate.observing import Observation
    from saturate.step_what_ifs import step_what_ifs

    for sparse in (True, False):
        table = torch.nn.Embedding(4, 2, sparse=sparse)
        seen = Observation(torch, table, torch.optim.SGD(table.parameters(), lr=0.1))
        fused, = [each for each in step_what_ifs(seen, False, 60) if each.name == "fused-optimizer"]
        assert ("sparse" in fused.skipped) == sparse


def test_a_failing_what_if_is_skipped_and_a_failing_step_is_raised():
    loop = Loop()

    def refuses(loop):
        is_fused = bool(loop.optimizer.param_groups[0].get("fused"))
        tried.append(is_fused)
        if is_fused != is_after and any(tried):
            tried.clear()
            raise failure

    loop.extra = refuses
    for failure, text, is_after in ((RuntimeError("no fused\nsteps"), "no fused", False),
                                    (SystemExit(4), "exit code 4", False), (SystemExit(5), "exit code 5", True)):
        tried = []
        assert dict(loop.diagnose(only=["fused-optimizer"]).skipped)["fused-optimizer"] == f"it failed: {text}"
    assert loop.optimizer.param_groups[0].get("fused") is None

    def fails(loop):
        raise ZeroDivisionError

    loop.extra = fails
    with pytest.raises(ZeroDivisionError):
        loop.diagnose()


def test_a_failure_after_a_change_of_the_input_is_the_steps_own():
    loop, step, from_workers = Loop(load=0.05), Loop.step, []

    def failing(batch):
        from_workers.append(batch[0].is_shared())
        if any(from_workers) and not from_workers[-1]:
            raise ZeroDivisionError
        step(loop, batch)

    loop.step = failing
    with pytest.raises(ZeroDivisionError):
        loop.diagnose(only=["data-loading"])


def test_ctrl_c_in_a_step_that_exits_ends_the_diagnosis():
    def exits(loop):
        steps.append(1)
        if any(group.get("fused") for group in loop.optimizer.param_groups):
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                raise SystemExit(1)

    steps = []
    with pytest.raises(SystemExit):
        Loop(extra=exits).diagnose(only=["fused-optimizer"])


def state_of(loop, scheduler):
    tensors = [*loop.model.parameters(), *loop.model.buffers()]
    return copy.deepcopy([[each.detach().clone() for each in tensors],
                          [None if each.grad is None else each.grad.clone() for each in loop.model.parameters()],
                          [each.stride() for each in tensors], loop.optimizer.state_dict(), scheduler.state_dict(),
                          torch.get_rng_state(), random.getstate(), loop.loader.generator.get_state(),
                          [module.training for module in loop.model.modules()]])


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.equal(b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(left, right) for left, right in zip(a, b))
    return a == b


@pytest.mark.parametrize("steps_before", [0, 3])
def test_everything_is_as_before_to_the_bit(steps_before):
    """Also if no step was made before, and the rest of an iteration in progress."""
    import numpy

    def trained(diagnosed):
        torch.manual_seed(1)
        random.seed(2)
        numpy.random.seed(3)
        loop = Loop(load=0.001, generator=torch.Generator().manual_seed(4))
        scheduler = torch.optim.lr_scheduler.StepLR(loop.optimizer, 2)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(torch.zeros(()))  # its tensors are made now
        weights = [id(each) for each in loop.model.parameters()]

        def extra(loop):
            scheduler.step()
            scaler.update(scaler.get_scale() + 1)
            random.random()
            numpy.random.rand()

        loop.extra = extra
        batches = iter(loop.loader)
        for _ in range(steps_before):
            loop.step(next(batches))
        if diagnosed:
            before = state_of(loop, scheduler)
            addresses = [each.data_ptr() for each in loop.model.parameters()]
            found = loop.diagnose(seconds=60)
            measured = names([*found.causes, *found.uncertain, *found.idle])
            assert {"data-loading", "fused-optimizer", "channels-last"} <= set(measured)
            assert same(state_of(loop, scheduler), before)
            assert [each.data_ptr() for each in loop.model.parameters()] == addresses
            assert [id(each) for each in loop.model.parameters()] == weights
        for batch in batches:
            loop.step(batch)
        return state_of(loop, scheduler), scaler.state_dict(), random.random(), numpy.random.rand()

    assert same(trained(True), trained(False))


@pytest.mark.parametrize("is_again", [False, True])
def test_an_interrupt_restores_too(monkeypatch, is_again):
    """Also another one while the workers are ended."""
    loop, steps = Loop(), []
    before = [each.detach().clone() for each in loop.model.parameters()]

    def interrupt(_):
        steps.append(1)
        if len(steps) >= 40:
            raise KeyboardInterrupt

    loop.extra = interrupt
    if is_again:
        monkeypatch.setattr("saturate.turns.Arm.close", interrupt)
    with pytest.raises(KeyboardInterrupt):
        loop.diagnose()
    assert all(a.equal(b) for a, b in zip(before, loop.model.parameters())) and not loop.optimizer.state


def test_objects_of_the_user_are_restored():
    class Average:
        def __init__(self):
            self.value = 1.0

        def state_dict(self):
            return {"value": self.value}

        def load_state_dict(self, state):
            self.value = state["value"]

    average, counts, replay = Average(), {"steps": 0}, collections.deque([torch.zeros(2)], maxlen=4)
    kept, chosen = replay[0], {torch.zeros(1)}
    loop = Loop()

    def step(batch):
        loop.step(batch)
        average.value += 1
        counts["steps"] += 1
        replay[0].add_(1)
        replay.append(torch.ones(2))
        next(iter(chosen)).add_(1)

    saturate.diagnose(step, loop.loader, seconds=0.5, state=[average, counts, replay, chosen], only=[])
    assert average.value == 1.0 and counts == {"steps": 0}
    assert len(replay) == 1 and replay[0] is kept and kept.eq(0).all()
    assert [each.item() for each in chosen] == [0]


def test_a_loader_of_saturate_keeps_its_place():
    loader, step = synth_loop()
    batches = iter(loader)
    first = next(batches)
    before = loader.state_dict()
    found = saturate.diagnose(step, loader, seconds=1)
    assert found.rate > 0 and loader.state_dict() == before
    second = next(batches)
    assert loader.state_dict()["batch"] == 2  # it goes on counting
    both = [first, second, *batches, *loader]
    same_arguments = saturate.Loader("synth:size=24,count=60", batch=16, size=8, to="torch")
    again = [*same_arguments, *same_arguments]
    assert all(a[0].equal(b[0]) for a, b in zip(both, again)) and len(both) == len(again)
    assert loader.state_dict() == same_arguments.state_dict()


def test_wrong_arguments():
    loop = Loop()
    with pytest.raises(saturate.Error, match="iterator"):
        saturate.diagnose(loop.step, iter(loop.loader))
    with pytest.raises(TypeError, match="function"):
        saturate.diagnose(loop.loader, loop.step)
    with pytest.raises(ValueError, match="seconds"):
        saturate.diagnose(loop.step, loop.loader, seconds=0)
    with pytest.raises(saturate.Error, match="no batch"):
        saturate.diagnose(loop.step, [])
    for named in ({"sampler": iter(range(64))}, {"batch_sampler": (range(8) for _ in range(8))}):
        with pytest.raises(saturate.Error, match="sampler is an iterator"):
            saturate.diagnose(loop.step, torch.utils.data.DataLoader(loop.loader.dataset, **named))
