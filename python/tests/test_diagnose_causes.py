"""saturate.diagnose() names planted causes, by a clock that they move, and says what it did not try."""

import copy
import io
import json
import pathlib
import pickle
import random
import re
import shutil
import subprocess
import sys
import time

import pytest

import saturate

torch = pytest.importorskip("torch")

from fake_gpu import FakeTransfers  # noqa: E402
from sample_sets import PNG  # noqa: E402
from saturate.loader_what_ifs import have_same_data, loader_what_ifs  # noqa: E402
from saturate.observing import Observation  # noqa: E402
from saturate.patches import LOADING, Copies, calls_of, without_calls  # noqa: E402
from saturate.session import NAMES  # noqa: E402
from saturate.step_what_ifs import step_what_ifs, unscaling  # noqa: E402
from saturate.turns import ahead_of  # noqa: E402
from timed_loop import Loop, names  # noqa: E402


NOT_TIMED = ("fused-optimizer", "foreach-optimizer", "channels-last", "autocast-bf16", "batch-size", "compile")


class Slow:
    """Takes time to be printed or saved."""

    def __init__(self, clock):
        self.clock = clock

    def __str__(self):
        self.clock.now += 0.5
        return ""

    def __reduce__(self):
        return str, (str(self),)


@pytest.mark.parametrize("cause, call, every", [
    ("checkpoint-saves", lambda slow: torch.save(slow, io.BytesIO()), 2),
    ("print-in-loop", lambda slow: print(slow), 10)])
def test_calls_that_begin_later_are_found(monkeypatch, cause, call, every):
    """Also rare ones that take long."""
    steps = []

    def extra(loop):
        steps.append(any(group.get("fused") for group in loop.optimizer.param_groups))
        if any(steps) and not steps[-1] and len(steps) % every == 0:
            call(Slow(loop.clock))

    loop = Loop(extra=extra)
    monkeypatch.setattr(time, "perf_counter", loop.clock)
    found = loop.diagnose(only=["fused-optimizer", cause])
    assert sorted(names(found.causes)) == sorted(["fused-optimizer", cause])


@pytest.mark.parametrize("seed", [2, 3, 6])
def test_a_small_gain_of_what_was_seen_is_measured_until_it_is_clear(seed):
    """Times of turns vary by up to 9 %, so that three rounds show nothing."""
    noise, drawn = random.Random(seed), []

    def extra(loop):
        turn = int(loop.clock.now)
        drawn.extend(noise.uniform(-0.09, 0.09) for _ in range(turn + 1 - len(drawn)))
        loop.clock.now += 0.1 * (0.07 * torch.is_anomaly_enabled() + drawn[turn])

    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        found = Loop(extra=extra).diagnose(seconds=75, skip=[*NOT_TIMED, "saturate-loader"])
    assert names(found.causes) == ["anomaly-mode"] and found.causes[0].gain == pytest.approx(1.07, abs=0.03)


@pytest.mark.parametrize("cause, option, optimizer", [
    ("fused-optimizer", "fused", torch.optim.AdamW), ("foreach-optimizer", "foreach", torch.optim.RMSprop)])
def test_an_optimizer_of_many_calls(cause, option, optimizer):
    def extra(loop):
        loop.clock.now += 0 if loop.optimizer.param_groups[0][option] else 0.1

    loop = Loop(extra=extra)
    loop.optimizer = optimizer(loop.model.parameters())
    found = loop.diagnose(only=["fused-optimizer", "foreach-optimizer"])
    assert names(found.causes) == [cause] and found.causes[0].gain == pytest.approx(2, rel=0.01)
    assert found.causes[0].remedy.edit.arguments == {option: True}
    assert loop.optimizer.param_groups[0][option] is None


@pytest.mark.parametrize("optimizer, is_tried", [(0.003, False), (0.02, True)])
def test_an_optimizer_that_takes_little_of_a_step_is_not_tried_in_other_forms(monkeypatch, optimizer, is_tried):
    """Noise would sooner or later be taken for a gain."""
    loop = Loop(compute=0.1)
    loop.optimizer.register_step_pre_hook(lambda *_: setattr(loop.clock, "now", loop.clock.now + optimizer))
    update = loop.optimizer.step
    outer = torch.optim.SGD(loop.model.parameters(), lr=0)  # one that calls another one, as wrappers do
    outer.register_step_pre_hook(lambda *_: update() and None)
    loop.optimizer = outer
    monkeypatch.setattr(time, "perf_counter", loop.clock)
    found = loop.diagnose(only=["fused-optimizer"], seen=Observation)
    assert ("optimizers take only 2.9 % of a step" in str(found)) == (not is_tried)
    assert names(found.idle) == (["fused-optimizer"] if is_tried else [])


def test_images_in_another_order():
    def extra(loop):
        loop.clock.now += 0 if loop.model[0].weight.is_contiguous(memory_format=torch.channels_last) else 0.1

    assert names(Loop(extra=extra).diagnose(only=["channels-last", "fused-optimizer"]).causes) == ["channels-last"]


class Folder(torch.utils.data.Dataset):
    __module__ = "torchvision.datasets.folder"  # stands for torchvision's ImageFolder
    target_transform = None

    def __init__(self, root, clock):
        self.root, self.clock = str(root), clock
        self.samples = [(str(path), 0) for path in sorted(root.rglob("*.png"))]
        self.transform = None

    def __len__(self):
        return len(self.samples)

    def loader(self, path):
        self.clock.now += 0.05
        return torch.zeros(3, 8, 8)

    def __getitem__(self, index):
        return self.loader(self.samples[index][0]).clone(), 0


Folder.__name__ = Folder.__qualname__ = "ImageFolder"


@pytest.mark.parametrize("cause", ["decode-cache", "saturate-loader"])
def test_slow_decoding(tmp_path, monkeypatch, cause):
    folder = pytest.importorskip("torchvision.datasets.folder")
    transforms = pytest.importorskip("torchvision.transforms")
    (tmp_path / "photos/a").mkdir(parents=True)
    for number in range(16):
        shutil.copy(PNG, tmp_path / f"photos/a/{number}.png")
    loop, decode = Loop(), folder.default_loader

    def slow(path):
        loop.clock.now += 0.05
        return decode(path)

    monkeypatch.setattr(folder, "default_loader", slow)
    augment = transforms.Compose([transforms.RandomResizedCrop(8), transforms.ToTensor()])
    loop.loader = torch.utils.data.DataLoader(folder.ImageFolder(tmp_path / "photos", augment, loader=slow), 8)
    found = loop.diagnose(seconds=60, only=[cause])
    assert names(found.causes) == [cause] and found.causes[0].gain == pytest.approx(5, rel=0.05)


def test_a_batch_of_decoded_images_is_as_large_as_the_loops(tmp_path):
    (tmp_path / "photos").mkdir()
    folder = Folder(tmp_path / "photos", Loop().clock)
    folder.samples = [(f"{number}.png", 0) for number in range(700)]
    found = {each.name: each for each in loader_what_ifs(torch.utils.data.DataLoader(folder, batch_size=512), False)}
    made = found["decode-cache"].batches()
    assert len(next(iter(made))[0]) == 512
    assert pickle.loads(pickle.dumps(made.dataset.loader))("3.png").shape == (3, 8, 8)  # for workers


class Sleeping(torch.utils.data.Dataset):
    def __init__(self, seconds, size):
        self.seconds, self.size = seconds, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.zeros(3, 8, 8), 0


def small_step():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(batch):
        (weight * batch[1].sum()).sum().backward()
        optimizer.step()

    return step


def test_too_few_workers():
    """They sleep, so that cores do not matter. On a busy machine there is time for less than is planned."""
    loader = torch.utils.data.DataLoader(Sleeping(0.01, 4000), batch_size=4, num_workers=1)
    found = saturate.diagnose(small_step(), loader, seconds=10, only=["workers-too-few"])
    assert names(found.causes) == ["workers-too-few"] and found.causes[0].gain > 1.3


class Uneven(Sleeping):
    """Each fourth sample is slow."""

    def __getitem__(self, index):
        return super().__getitem__(index) if index % 4 == 3 else (torch.zeros(3, 8, 8), 0)


def test_too_few_batches_ahead():
    """Four steps take 40 ms, and 60 ms if 20 of the slow batch's 30 ms are waited for."""
    loader, step = torch.utils.data.DataLoader(Uneven(0.03, 64), num_workers=1, prefetch_factor=1), small_step()
    found = saturate.diagnose(lambda batch: (step(batch), time.sleep(0.01)), loader, seconds=30, only=["prefetch"])
    assert names(found.causes) == ["prefetch"] and found.causes[0].gain > 1.1, found
    assert found.causes[0].remedy.edit.arguments == {"prefetch_factor": 4}


def test_workers_that_start_in_each_epoch():
    loader = torch.utils.data.DataLoader(Sleeping(0.0, 64), batch_size=8, num_workers=1,
                                         worker_init_fn=lambda _: time.sleep(0.2))
    found = saturate.diagnose(small_step(), loader, seconds=1, only=["persistent-workers"])
    assert names(found.causes) == ["persistent-workers"]


@pytest.mark.parametrize("pin_memory", [False, True])
def test_copies_that_wait(monkeypatch, pin_memory):
    """A held batch would gain nothing: it is not pinned, or is copied as the others."""
    loop = Loop(pin_memory=pin_memory)
    FakeTransfers(monkeypatch, torch, loop.clock, 0.1)

    def step(batch):
        images, *rest = batch
        images.to("cuda", *blocking)
        assert not set(vars(images)) & {"to", "cuda"}
        Loop.step(loop, batch)

    loop.step, blocking = step, (torch.float32, False)
    found = loop.diagnose(only=["pin-memory"], has_gpu=True)
    assert names(found.causes) == ["pin-memory"] and found.causes[0].gain == pytest.approx(2, rel=0.01)
    pinned, copied = found.causes[0].remedy.lines
    assert "pin_memory=True" in pinned and ".to(device, non_blocking=True)" in copied
    loop.step = lambda batch: (batch[0].to("cuda", non_blocking=True), Loop.step(loop, batch))
    assert names(loop.diagnose(only=["pin-memory"], has_gpu=True).causes) == ["pin-memory"] * (not pin_memory)


@pytest.mark.filterwarnings("error:Dynamo does not know")
@pytest.mark.parametrize("change", [
    lambda: Observation(torch).active(), without_calls("item-in-loop", calls_of(torch))])
def test_conditions_in_compiled_code_are_compiled_as_they_are(change):
    def function(value):
        return value + 1 if value.sum() > 0 else value

    torch._dynamo.reset()
    with change():
        assert torch.compile(function, backend="eager")(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("is_without_waiting", [False, True])
def test_pinned_batches_stay_as_they_are(monkeypatch, is_without_waiting):
    """A loop may save one, or copy it to show it later."""
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: True)
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2)])
    pixels, file = torch.arange(4.0), io.BytesIO()
    opaque, copies = torch.ones(2).to_mkldnn(), Copies(is_without_waiting)
    with copies.active():
        assert copies.add([packed, pixels, opaque])[1] is pixels
        assert pickle.loads(pickle.dumps(torch.Tensor.to)) is torch.Tensor.to
        torch.save(copy.deepcopy(pixels), file)
        assert torch.load(io.BytesIO(file.getvalue()), weights_only=True).equal(pixels) and not vars(pixels)
        assert packed.to("cpu").data.tolist() == [1, 1]
        assert pixels.to(torch.float64).dtype == torch.float64
    assert not {"to", "cuda"} & set(vars(torch.Tensor))


def test_only_the_first_copy_of_a_pinned_batch_changes(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: True)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_, **named: (calls.append(named), tensor)[1])
    copies, batch = Copies(True), [torch.ones(1), torch.ones(1)]
    copies.add(batch)  # before it is active
    original = torch.Tensor.to
    with copies.active():
        assert torch.Tensor.to is original  # torchvision would keep it if it is imported now
        copies.add(batch)
        for each in (batch[0], batch[0], torch.ones(1), batch[1]):
            each.to("cuda")
    assert calls == [{"non_blocking": True}, {}, {}, {"non_blocking": True}]


def test_what_a_scaler_does_changes_no_gradient(monkeypatch):
    kinds, check = [], torch._amp_foreach_non_finite_check_and_unscale_
    monkeypatch.setattr(torch, "_amp_foreach_non_finite_check_and_unscale_", lambda grads, *rest: (
        kinds.extend(each.dtype for each in grads), check(grads, *rest)))
    weights = [torch.nn.Parameter(torch.ones(2, dtype=kind)) for kind in (torch.float32, torch.bfloat16, torch.float32)]
    for each in weights[:2]:
        each.grad = torch.full_like(each, 3.0)
    unscaling(torch)(torch.optim.SGD(weights, lr=0.1))
    assert weights[0].grad.tolist() == weights[1].grad.tolist() == [3, 3] and weights[2].grad is None
    assert kinds == [torch.float32]  # the check refuses others on a GPU


def test_float16_has_the_cost_of_a_scaler(monkeypatch):
    steps, model = [], torch.nn.Linear(2, 2)
    monkeypatch.setattr("saturate.step_what_ifs.unscaling", lambda _: lambda *_: steps.append(1))
    found = {each.name: each for each in step_what_ifs(Observation(torch, model), has_gpu=True, seconds=1)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for name, expected in ("autocast-bf16", 0), ("autocast-fp16", 1):
        with found[name].change():
            optimizer.step()
        optimizer.step()
        assert len(steps) == expected


def test_what_was_not_tried_is_said():
    """A compiled call is no module's, and a list of batches has no arguments."""
    loop = Loop()
    loop.model.compile(backend="eager")
    loop.loader = list(loop.loader)
    found = loop.diagnose(seconds=30, skip=["data-loading"])
    reasons = dict(found.skipped)
    assert all("outside compiled code" in reasons[name] for name in ("channels-last", "autocast-bf16", "compile"))
    assert "no DataLoader" in reasons["prefetch"] and "fused-optimizer" not in reasons
    assert "channels-last" in str(found)


def test_the_limits_are_said():
    found = Loop(load=0.05).diagnose(only=[])
    assert found.rate == pytest.approx(2, rel=0.01) and found.held_rate == pytest.approx(10, rel=0.01)
    assert found.loader_rate == pytest.approx(2.5, rel=0.01) and found.to_dict()["held_rate"] == found.held_rate
    assert "with one batch held: 10 steps/s; the loader alone: 2.5 batches/s" in str(found)


def test_loaders_of_one_source_have_the_same_data():
    one, same, other = (saturate.Loader("".join(("synth:size=24,count=", count)), batch=16, size=8)
                        for count in ("60", "60", "61"))
    assert have_same_data(one, same) and not have_same_data(one, other)
    array = type("Array", (), {"__eq__": lambda *_: torch.zeros(2)})()  # as of numpy, which is neither true nor false
    assert not have_same_data(one, array) and not have_same_data(array, one)


def test_batches_of_a_loader_of_saturate_are_ahead():
    for given, ahead in ({}, 4), ({"prefetch": 9}, 9):
        with saturate.Loader("synth:size=24,count=60", batch=16, size=8, **given) as loader:
            assert ahead_of(loader) == ahead


def test_conditions_and_what_the_loader_reads_keep_their_values():
    with without_calls("item-in-loop", calls_of(torch))() as begin_step:
        begin_step()
        values = [torch.tensor(value) for value in (1.0, 0.0, 2.0)]
        assert [value.item() for value in values] == [1, 1, 1]
        assert [bool(value) for value in values] == [True, False, True] and ["a", "b", "c"][torch.tensor(2)] == "c"
        lengths = [torch.tensor([3, 1]), torch.tensor([2, 2])]
        assert [each.tolist() for each in lengths] == [[3, 1], [2, 2]]
        assert [each.float().tolist() for each in lengths] == [[3, 1], [3, 1]]
        with LOADING.active():
            assert [value.item() for value in values] == [1, 0, 2]


SATURATE = """
import time, torch, saturate
loader = saturate.Loader("synth:size=8,count=40", batch=4, size=8, to="torch")
held_out = saturate.Loader("synth:size=8,count=8", batch=4, size=8, to="torch", train=False)
model = torch.nn.Linear(192, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for epoch in range(9999):
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images.flatten(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.002)
        print(loss.item())
    for _ in held_out:
        pass
"""


def test_a_script_with_saturates_loader_is_diagnosed(tmp_path):
    (tmp_path / "train.py").write_text(SATURATE)
    answer = tmp_path / "answer.json"
    done = subprocess.run([sys.executable, "-m", "saturate", "diagnose", "--seconds", "3", "--only",
                           "set-to-none,print-in-loop", "--json", answer, tmp_path / "train.py"],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert 0 < json.loads(answer.read_text())["rate"] < 500


def test_the_documentation_has_every_cause():
    page = pathlib.Path(__file__).parents[2] / "docs/diagnose_python.md"
    rows = [line.split("|")[1] for line in page.read_text().splitlines() if line.startswith("| `")]
    assert sorted({name for row in rows for name in re.findall("`([^`]+)`", row)}) == sorted(NAMES)
