"""saturate.diagnose() puts back what is not torch's too, and steps may change their batches."""

import collections
import dataclasses
import gc
import random
import signal

import pytest

import saturate

torch = pytest.importorskip("torch")

from saturate.observing import Observation  # noqa: E402
from saturate.restoring import Kept  # noqa: E402
from saturate.session import Session  # noqa: E402
from saturate.turns import held  # noqa: E402


class OwnAdam(torch.optim.Adam):
    """As those of other packages: torch's state_dict() refers to its tensors and dicts."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.calls = 0

    def step(self, closure=None):
        self.calls += 1
        return super().step(closure)


def test_an_optimizer_that_is_not_of_torch():
    model = torch.nn.Linear(3, 1)
    optimizer = OwnAdam(model.parameters())

    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()

    def state():
        moments = [each["exp_avg"].clone() for each in optimizer.state.values()]
        steps = [int(each["step"]) for each in optimizer.state.values()]
        return moments, steps, optimizer.calls, optimizer.param_groups[0]["lr"]

    step()
    kept, before = Kept(torch), state()
    for _ in range(2):  # it is restored again and again
        step()
        optimizer.param_groups[0]["lr"] = 0.5
        kept.restore()
        after = state()
        assert all(a.equal(b) for a, b in zip(before[0], after[0])) and before[1:] == after[1:]


def test_an_object_whose_state_is_its_own():
    class Average:
        def __init__(self):
            self.values = {"mean": torch.zeros(2), "seen": [1]}

        def state_dict(self):
            return self.values

        def load_state_dict(self, values):
            self.values = values

    average = Average()
    kept = Kept(torch, [average])
    for _ in range(2):
        average.values["mean"].add_(1)
        average.values["seen"].append(2)
        kept.restore()
        assert average.values["mean"].tolist() == [0, 0] and average.values["seen"] == [1]


def test_arrays_sets_and_deques_are_restored():
    numpy = pytest.importorskip("numpy")

    class Sampler:
        def __init__(self):
            self.order, self.seen, self.last = numpy.arange(8), {1}, collections.deque([1, 2], maxlen=2)

    sampler, given = Sampler(), {3}
    kept = Kept(torch, [given], samplers=[sampler])
    for _ in range(2):
        given.clear()
        order = sampler.order
        numpy.random.shuffle(sampler.order)
        sampler.seen.add(2)
        sampler.last.append(3)
        kept.restore()
        assert sampler.order is order and order.tolist() == list(range(8))
        assert sampler.seen == {1} and list(sampler.last) == [1, 2] and given == {3}


def test_expanded_tensors_and_modules_without_their_init():
    class HalfBuilt(torch.nn.Module):
        def __init__(self):
            HalfBuilt.last = self
            self.layer = torch.nn.Linear(2, 2)  # before super().__init__(), an error

    with pytest.raises(AttributeError):
        HalfBuilt()
    loss = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0]).expand(20))
    kept = Kept(torch, [loss])
    loss.pos_weight.set_(torch.tensor([4.0]).expand(20))
    kept.restore()
    assert loss.pos_weight.tolist() == [3.0] * 20
    del HalfBuilt.last


def test_all_else_is_restored_if_a_part_cannot_be():
    class Failing:
        def state_dict(self):
            return {}

        def load_state_dict(self, _):
            raise RuntimeError("not again")

    values = [1]
    kept = Kept(torch, [Failing(), values])
    values[0] = 2
    with pytest.raises(RuntimeError, match="not again"):
        kept.restore()
    assert values == [1]


def test_a_second_interrupt_waits_until_all_is_restored():
    class Interrupting:
        def state_dict(self):
            return {}

        def load_state_dict(self, _):
            signal.raise_signal(signal.SIGINT)

    counts, handler = {"steps": 0}, signal.getsignal(signal.SIGINT)
    kept = Kept(torch, [Interrupting(), counts])
    counts["steps"] = 1
    with pytest.raises(KeyboardInterrupt):
        kept.restore()
    assert counts == {"steps": 0} and signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("is_given", [False, True])
def test_modules_that_the_garbage_collector_does_not_list(monkeypatch, is_given):
    model = torch.nn.Sequential(torch.nn.Linear(2, 1))
    before = model[0].weight.detach().clone()
    gc.freeze()
    try:
        if is_given:
            monkeypatch.setattr("saturate.restoring._tracked", list)
        kept = Kept(torch, [model] if is_given else [])
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
    torch.nn.init.ones_(model[0].weight)
    kept.restore()
    assert model[0].weight.equal(before)


def test_an_optimizer_of_parameters_that_have_no_values_yet():
    model = torch.nn.Sequential(torch.nn.LazyLinear(1), torch.nn.Linear(2, 1, device="meta"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = Kept(torch)
    model[0](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.2
    kept.restore()
    assert optimizer.param_groups[0]["lr"] == 0.1 and model[0].weight.shape == (1, 3)


@pytest.mark.parametrize("is_given", [False, True])
def test_a_dataset_that_samplers_hold_is_not_copied_unless_it_is_given(is_given):
    data = [torch.zeros(2), {"a": torch.zeros(2)}]
    loader = torch.utils.data.DataLoader(data, shuffle=True)
    session = Session(torch, loader, Observation(torch), seconds=1, only=[], skip=[], objects=[data] * is_given)
    data[0].add_(1)
    data[1]["a"].add_(1)
    sampler = loader.sampler
    sampler.data_source = None
    session._kept.restore()
    assert [data[0][0], data[1]["a"][0]] == [1 - is_given] * 2 and sampler.data_source is data


def test_attributes_and_buffers_that_a_module_replaces():
    class Averaging(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("ema", torch.zeros(2))
            self.last, self.calls = torch.zeros(2), 0

        def forward(self, values):
            self.ema = self.ema * 0.9 + values
            self.last, self.calls, self.size = values, self.calls + 1, len(values)
            return values

    module = Averaging().train()
    ema, last = module.ema, module.last
    kept = Kept(torch)
    for _ in range(2):
        module.eval()(torch.ones(2))
        kept.restore()
        assert module.ema is ema and module.last is last and module.calls == 0 and module.training
        assert not hasattr(module, "size") and ema.tolist() == [0, 0] and list(module.state_dict()) == ["ema"]


def test_a_module_that_lists_its_parameters_itself():
    class Agent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.actor, self.scale = torch.nn.Linear(2, 1), torch.nn.Parameter(torch.ones(1))

        def parameters(self):
            return self.actor.parameters()

        def named_parameters(self):
            return self.actor.named_parameters()

        def buffers(self):
            return iter(())

    agent = Agent()
    kept = Kept(torch)
    torch.nn.init.zeros_(agent.scale)
    kept.restore()
    assert agent.scale.tolist() == [1]


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_frozen_module_of_torchscript_has_no_mode():
    frozen = torch.jit.freeze(torch.jit.script(torch.nn.Linear(2, 2)).eval())
    assert not hasattr(frozen, "training")
    Kept(torch).restore()


def test_generators_of_random_numbers():
    numpy = pytest.importorskip("numpy.random")

    class Owner:
        def __init__(self):
            self.generator = torch.Generator().manual_seed(1)

    owner, inside, closed = Owner(), {"a": (torch.Generator().manual_seed(2),)}, torch.Generator().manual_seed(3)
    given = [random.Random(4), numpy.default_rng(5), numpy.RandomState(6), numpy.MT19937(7), torch.Generator()]

    def draw():
        found = [torch.rand(1, generator=each).item() for each in (owner.generator, inside["a"][0], closed, given[4])]
        return [*found, given[0].random(), given[1].random(), given[2].rand(), given[3].random_raw()]

    kept = Kept(torch, given)
    drawn = draw()
    for _ in range(2):
        kept.restore()
        assert draw() == drawn
        draw()


@pytest.mark.parametrize("value", [3, frozenset([1]), iter([1])])
def test_what_cannot_be_kept_is_refused(value):
    with pytest.raises(TypeError, match=f"state has a {type(value).__name__}, which cannot be restored"):
        Kept(torch, [value])


Pair = collections.namedtuple("Pair", "images labels")


def test_a_held_batch_is_the_same_in_each_step():
    given = collections.UserDict(images=torch.ones(2), parts=[Pair(torch.zeros(1), "a"), (3,)], noise=torch.ones(1))
    arm = held({"labels": torch.ones(1), "inputs": given})
    first = arm.next()["inputs"]["images"]
    for _ in range(3):
        batch = arm.next()
        assert batch["inputs"]["images"] is first  # as long as no step writes to it
        assert batch.pop("labels").tolist() == [1]
    for _ in range(3):
        inputs = arm.next()["inputs"]
        assert inputs["images"].tolist() == [1, 1] and not inputs["noise"].requires_grad
        assert type(inputs) is collections.UserDict and type(inputs["parts"][0]) is Pair
        assert inputs["parts"][0].images.tolist() == [0] and len(inputs["parts"]) == 2
        inputs["images"].mul_(2)
        inputs["noise"].requires_grad_()
        inputs["parts"][0].images.unsqueeze_(0)
        inputs["parts"].pop()
        inputs.clear()


@dataclasses.dataclass(frozen=True)
class Sentences:
    tokens: torch.Tensor
    parts: list


class Graphs:
    def __init__(self):
        self.x, self.fields, self.itself = torch.ones(2, 2), {"y": torch.zeros(2)}, self


class Uncopyable:
    def __copy__(self):
        raise TypeError("not this")


class Handle:
    def __init__(self):
        self.of = {1}

    def __del__(self):
        self.of.clear()


def test_a_held_batch_of_objects_is_the_same_in_each_step():
    uncopyable, handle = Uncopyable(), Handle()
    arm = held((Sentences(torch.ones(2, 4), [torch.ones(1)]), Graphs(), uncopyable, handle))
    for _ in range(3):
        sentences, graphs, last, _ = arm.next()
        assert handle.of == {1}  # no copy of the handle was made, whose end would have cleared it
        assert sentences.tokens.shape == (2, 4) and sentences.parts[0].tolist() == [1] and last is uncopyable
        assert graphs.x.tolist() == [[1, 1]] * 2 and list(graphs.fields) == ["y"]
        vars(sentences)["tokens"] = sentences.tokens[:, :-1]
        sentences.parts.pop().sub_(1)
        graphs.x.sub_(1)
        graphs.x = torch.cat([graphs.x, graphs.x], 1)
        graphs.fields.clear()


def test_a_step_may_take_its_batch_apart():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        labels = batch.pop("labels")
        batch["images"].sub_(labels)
        assert batch["images"].tolist() == [[0, 0]] * 2
        optimizer.zero_grad()
        model(batch["images"]).sum().backward()
        optimizer.step()

    data = [{"images": torch.ones(2), "labels": torch.ones(2)} for _ in range(8)]
    found = saturate.diagnose(step, torch.utils.data.DataLoader(data, batch_size=2), seconds=0.5, only=[])
    assert found.rate > 0


def test_a_schedule_of_few_steps():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4)
    before = optimizer.param_groups[0]["lr"]

    def step(batch):
        (weight * batch.sum()).backward()
        optimizer.step()
        schedule.step()

    found = saturate.diagnose(step, torch.utils.data.DataLoader(list(range(8))), seconds=0.5, only=[])
    assert found.rate > 0 and schedule.last_epoch == 0 and optimizer.param_groups[0]["lr"] == before
    optimizer.step()
    for _ in range(4):
        schedule.step()
    with pytest.raises(ValueError, match="Tried to step"):  # as before
        schedule.step()


class Moving(torch.utils.data.DataLoader):
    """As Accelerate's loaders, it does more with a batch, counts its epochs, and has no state although it looks so."""

    epochs = 0

    def __iter__(self):
        for batch in super().__iter__():
            yield {"moved": batch}
        self.epochs += 1

    def state_dict(self):
        return self.no_state

    def load_state_dict(self, _):
        raise NotImplementedError


def test_a_loader_with_an_iteration_of_its_own_is_iterated_itself():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(batch):
        (weight * batch["moved"].sum()).backward()
        optimizer.step()

    generator = torch.Generator().manual_seed(3)
    loader = Moving(list(range(8)), batch_size=2, shuffle=True, generator=generator)
    found = saturate.diagnose(step, loader, seconds=0.5, skip=["compile"])
    assert found.rate > 0 and generator.get_state().equal(torch.Generator().manual_seed(3).get_state())
    assert loader.epochs == 0
    assert "no DataLoader" in dict(found.skipped)["batch-size"]
