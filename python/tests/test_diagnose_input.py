"""What-ifs of a DataLoader's arguments: which there are, and that copies deliver the same samples."""

import itertools
import multiprocessing
import os
import time

import pytest

from saturate.diagnosing import conclude

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset  # noqa: E402

from saturate.loader_what_ifs import (  # noqa: E402
    Endless, cores, epoch_start, loader_what_ifs, own_batches, persistent_remedy, rebuilt)
from saturate.patches import calls_of, without_calls  # noqa: E402
from saturate.step_what_ifs import _move_counts, step_what_ifs  # noqa: E402
from saturate.observing import Observation  # noqa: E402
from saturate.turns import Arm, Gain, Remedy, WhatIf  # noqa: E402
from timed_loop import Loop, names  # noqa: E402


class ImageFolder(Dataset):
    __module__ = "torchvision.datasets.folder"  # stands for torchvision's

    def __init__(self):
        self.samples = [(f"photos/a/{number}.png", number % 3) for number in range(10)]
        self.decoded = []

    def loader(self, path):
        self.decoded.append(path)
        return torch.full((2, 3), int(path.split("/")[-1][:-4]))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        return self.loader(path) * 2, label


OF_FOLDER = ("decode-cache", "saturate-loader")  # not tried for another dataset


def by_name(loader):
    return {what_if.name: what_if for what_if in loader_what_ifs(loader, has_gpu=False)}


def test_decoded_images_are_kept():
    dataset = ImageFolder()
    what_if = by_name(DataLoader(dataset, batch_size=4))["decode-cache"]
    assert not what_if.skipped
    batches = list(itertools.islice(what_if.batches(), 4))  # two batches of 4, again and again
    assert [batch[0][:, 0, 0].tolist() for batch in batches] == [[0, 2, 4, 6], [8, 10, 12, 14]] * 2
    assert len(dataset.decoded) == 1 + len(dataset)  # one to learn its size
    dataset[0]
    assert len(dataset.decoded) == 2 + len(dataset)  # the user's dataset decodes as before


def test_what_ifs_follow_the_arguments(monkeypatch):
    data = list(range(64))
    none = by_name(DataLoader(data, batch_size=4))
    assert {"data-loading", "pin-memory", "batch-size", *OF_FOLDER} == set(none) and none["pin-memory"].skipped
    some = by_name(DataLoader(data, batch_size=4, num_workers=2))
    assert {"workers-too-few", "workers-too-many", "prefetch"} <= set(some) and "data-loading" not in some
    numbers = {1: [2, 4, 16], 2: [4, 8, 16], 8: [16, 32]}
    with monkeypatch.context() as patch:
        patch.setattr("saturate.loader_what_ifs.cores", lambda: 16)
        for now, more in numbers.items():
            found = loader_what_ifs(DataLoader(data, batch_size=4, num_workers=now), has_gpu=False)
            assert [each.remedy.edit.arguments["num_workers"] for each in found if each.name == "workers-too-few"] == more
    assert "batch-size" not in by_name(DataLoader(data, batch_sampler=[[0, 1], [2]]))
    assert by_name(DataLoader(data[:5], batch_size=4))["batch-size"].skipped
    others = loader_what_ifs([1, 2], has_gpu=False)
    assert {each.name for each in others} > {"prefetch", "batch-size"}
    assert all("no DataLoader" in each.skipped for each in others)
    assert cores() == len(os.sched_getaffinity(0))
    assert persistent_remedy().edit is None  # tune could not measure it


@pytest.mark.parametrize("named", [{"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None},
                                   {"batch_sampler": [[0, 3], [1]]}])
def test_a_copy_delivers_the_same_batches_without_end(named):
    loader = DataLoader(list(range(10)), **named)
    once = [torch.as_tensor(batch).tolist() for batch in loader]
    again = [torch.as_tensor(batch).tolist() for batch in itertools.islice(rebuilt(loader), 2 * len(once))]
    assert again == 2 * once


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(6))


class Unsized(Dataset):
    def __getitem__(self, index):
        return index


class OwnFolder(Dataset):
    """The names of torchvision's attributes, with other meanings."""

    samples = ["a", "b"]

    def loader(self):
        raise NotImplementedError

    def __len__(self):
        return 2


def test_datasets_without_length_or_with_attributes_of_other_meanings():
    numbers = torch.utils.data.SequentialSampler(range(8))
    for loader in (DataLoader(Stream(), batch_size=4), DataLoader(Unsized(), batch_size=4, sampler=numbers)):
        assert set(by_name(loader)) == {"data-loading", "pin-memory", *OF_FOLDER}
    for dataset in (OwnFolder(), torch.utils.data.Subset(ImageFolder(), [1, 2])):
        found = by_name(DataLoader(dataset, batch_size=2))
        assert {found[name].skipped for name in OF_FOLDER} == {"the dataset is not torchvision's ImageFolder"}
    assert "batch_size" in by_name(DataLoader(ImageFolder(), batch_size=None))["decode-cache"].skipped


def test_workers_of_a_stream_must_divide_it_themselves():
    """Without that each sample comes once for each worker, which is no gain that could be applied unseen."""
    stream = by_name(DataLoader(Stream(), batch_size=4))["data-loading"]
    assert stream.alters and stream.remedy.edit is None and "get_worker_info" in stream.remedy.text
    usual = by_name(DataLoader(list(range(8)), batch_size=4))["data-loading"]
    assert not usual.alters and usual.remedy.edit


@pytest.fixture(params=["spawn", "fork"])
def start_method(request):
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(request.param, force=True)
    yield request.param
    multiprocessing.set_start_method(before, force=True)


def test_the_first_workers_are_forked_since_others_would_run_the_script(start_method):
    class Here(Dataset):  # cannot be sent to a process
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return os.getppid()

    loader = DataLoader(Here())
    what_if = by_name(loader)["data-loading"]
    assert next(iter(rebuilt(loader, num_workers=1))).tolist() == [os.getpid()]
    assert what_if.remedy.edit.arguments.get("multiprocessing_context") == (None if start_method == "fork" else "fork")
    assert any("__main__" in line for line in what_if.remedy.lines) == (start_method != "fork")
    own = DataLoader(Here(), num_workers=1)
    assert rebuilt(own, num_workers=2).multiprocessing_context is None  # as the loop has them
    assert list(by_name(own)["workers-too-few"].remedy.edit.arguments) == ["num_workers"]


def test_the_start_method_stays_undecided():
    context = multiprocessing.get_start_method(allow_none=True)
    try:
        multiprocessing.set_start_method(None, force=True)
        by_name(DataLoader([1, 2]))
        assert multiprocessing.get_start_method(allow_none=True) is None
    finally:
        multiprocessing.set_start_method(context, force=True)


def test_a_copy_keeps_what_newer_arguments_say():
    named = {"pin_memory_device": "cpu"} if hasattr(DataLoader([1]), "pin_memory_device") else {}
    if hasattr(DataLoader([1]), "in_order"):  # from torch 2.6 on
        named["in_order"] = False
    made = rebuilt(DataLoader([1, 2], num_workers=1, persistent_workers=True, **named))
    assert made.persistent_workers and {name: getattr(made, name) for name in named} == named
    assert not rebuilt(DataLoader([1, 2], num_workers=1, persistent_workers=True), num_workers=0).persistent_workers


def test_persistent_workers_of_a_stream_are_not_started_again_in_turns():
    class WithProcess(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([os.getpid()] * 2)

    loader = DataLoader(WithProcess(), num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    arm = Arm(own_batches(loader))
    assert len({int(arm.next()) for _ in range(6)}) == 1
    arm.close()


def test_streams_and_empty_samplers():
    assert [batch.tolist() for batch in rebuilt(DataLoader(Stream(), batch_size=4))] == [[0, 1, 2, 3], [4, 5]]
    assert list(Endless([])) == []
    assert epoch_start(DataLoader(list(range(8)), batch_size=4), False, iter(range(99)).__next__, 2) == [1, 1]


class Counting(Dataset):
    def __init__(self):
        self.loaded = multiprocessing.get_context("fork").Value("i", 0)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        with self.loaded.get_lock():
            self.loaded.value += 1
        return index


@pytest.mark.parametrize("is_persistent", [False, True])
def test_the_start_of_an_epoch_loads_nothing_for_the_one_before(is_persistent):
    data = Counting()
    loader = DataLoader(data, batch_size=2, num_workers=1, prefetch_factor=4, multiprocessing_context="fork")
    assert len(epoch_start(loader, is_persistent, time.perf_counter, 2)) == 2
    assert data.loaded.value == 3 * 2  # one batch in each epoch


def test_values_that_a_step_reads_are_those_of_its_first_time():
    values = iter(range(10))
    with without_calls("item-in-loop", calls_of(torch))():
        read = [torch.tensor(float(next(values))).item() for _ in range(3)]
        other = torch.tensor(float(next(values))).item()
        assert (torch.tensor(7.0).item(), torch.tensor(8.0).item()) == (7, 8)  # two places on one line
    assert read == [0, 0, 0] and other == 3 and torch.tensor(5.0).item() == 5


@pytest.mark.parametrize("read, is_condition", [
    (float, False), (int, False), (str, False), ("{:.2f}".format, False), (lambda value: f"{value}", False),
    (bool, True), (lambda value: 1 if value > 1 else 0, True)])
def test_reads_of_a_value_are_seen(read, is_condition):
    """Also where torch calls item() itself."""
    seen = Observation(torch)
    with seen.active():
        first = read(torch.tensor(2.0))
    seen.steps = 1
    assert seen.counted.calls == {"item-in-loop": 1} and seen.is_often("item-in-loop")
    with without_calls("item-in-loop", calls_of(torch))():
        again = "[read(torch.tensor(value)) for value in (2.0, 0.0)]"  # as new code, which Python has not specialised
        assert eval(again, {"read": read, "torch": torch}) == [
            first, read(torch.tensor(0.0)) if is_condition else first]


def test_a_step_that_waits_for_a_value_ends():
    def step(error):
        while error.item() > 1:
            error = error / 2
        while error > 0.1:  # a condition reads the value itself
            error = error / 2
        return error

    with without_calls("item-in-loop", calls_of(torch))() as begin_step:
        for _ in range(3):
            begin_step()
            assert step(torch.tensor(2.0)).tolist() < 0.1


def test_a_compiled_model_is_not_compiled_again():
    model = torch.nn.Linear(2, 2)
    for given, is_tried in ((model, True), (torch.compile(model, backend="eager"), False)):
        found = [each.name for each in step_what_ifs(Observation(torch, given), has_gpu=True, seconds=300)]
        assert ("compile" in found) == is_tried
    model.compile(backend="eager")
    assert "compile" not in [each.name for each in step_what_ifs(Observation(torch, model), True, 300)]


def test_a_model_is_compiled_once_for_all_turns(graphs, monkeypatch):
    (found, backend), compiled, model = graphs, torch.compile, torch.nn.Linear(2, 2)
    monkeypatch.setattr(torch, "compile", lambda call: compiled(call, backend=backend))
    what_ifs = {each.name: each for each in step_what_ifs(Observation(torch, model), has_gpu=True, seconds=300)}
    inputs, before = torch.ones(1, 2), dict(vars(model))
    expected = model(inputs)
    for _ in range(2):
        with what_ifs["compile"].change():
            assert model(inputs).equal(expected) and len(found) == 1
        assert vars(model) == before and model._compiled_call_impl is None
        assert model(inputs).equal(expected) and len(found) == 1


def test_counts_of_a_capturable_optimizer_stay_on_the_gpu():
    class OnGpu:  # stands for a parameter, and for its count of steps
        is_cuda, device = True, "cuda"

        def to(self, device):
            return device

    class Optimizer:
        parameters = [OnGpu(), OnGpu(), OnGpu()]  # the last one was never updated
        param_groups = [{"params": parameters[:1], "capturable": True}, {"params": parameters[1:]}]

    for to_gpu, moved in ((True, "cuda"), (False, "cpu")):
        kept, plain = ({"step": OnGpu()} for _ in range(2))
        Optimizer.state = dict(zip(Optimizer.parameters, (kept, plain)))
        _move_counts(Optimizer, to_gpu)
        assert isinstance(kept["step"], OnGpu) and plain["step"] == moved and len(Optimizer.state) == 2


def test_settings_that_cannot_be_read_are_skipped(monkeypatch):
    class Refusing:
        @property
        def allow_tf32(self):
            raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch.backends.cuda, "matmul", Refusing())
    for has_gpu, reason in ((True, "refuses"), (False, "GPU")):
        found = {each.name: each for each in step_what_ifs(Observation(torch), has_gpu, 1)}
        assert reason in found["tf32"].skipped


def test_an_error_comes_before_a_change_with_a_price():
    class Session:
        start_share, pace, is_complete, held_rate, loader_rate = 0.0, None, True, None, None
        needed_s = staticmethod(lambda: 60.0)
        results = [WhatIf("autocast-bf16", Remedy(""), is_trade=True, gain=Gain(3, 2, 4)),
                   WhatIf("data-loading", Remedy(""), gain=Gain(1.3, 1.2, 1.4)),
                   WhatIf("data-loading", Remedy("four"), gain=Gain(1.5, 1.4, 1.6)),
                   WhatIf("prefetch", Remedy(""), gain=Gain(1.01, 0.99, 1.02))]

    found = conclude(Session)
    assert [cause.name for cause in found.causes] == ["data-loading", "autocast-bf16"] and found.verdict == "cause"
    assert found.causes[0].remedy.text == "four" and [cause.name for cause in found.idle] == ["prefetch"]
    Session.start_share = 0.5  # half of an epoch is its beginning
    first, second = conclude(Session).causes  # no longer clear
    assert first.name == "autocast-bf16" and second.gain == pytest.approx(1 / (0.5 + 0.5 / 1.5))


def test_without_time_for_any_change_of_the_input_its_limit_is_the_cause():
    found = Loop(load=0.02, compute=0.02).diagnose(seconds=2)
    assert found.verdict == "cause" and names(found.causes) == ["data-loading"]
    assert found.causes[0].gain == pytest.approx(9, rel=0.01) and "data-loading" not in dict(found.skipped)


def test_what_can_gain_most_is_measured_first():
    loop = Loop(load=0.02, compute=0.02, extra=lambda _: torch.rand(10).tolist())
    found = loop.diagnose(seconds=8)  # enough for one
    assert names(found.causes) == ["data-loading"] and not found.causes[0].remedy.text.startswith("Load batches")


def test_a_measured_change_of_the_input_replaces_its_limit():
    class Session:
        start_share, pace, is_complete, held_rate, loader_rate = 0.0, None, True, 9.0, 1.0
        held_gain, needed_s, is_wanted = Gain(9, 8, 10), staticmethod(lambda: 60.0), staticmethod(lambda _: True)
        results = [WhatIf("data-loading", Remedy("two"), batches=list, gain=Gain(1.8, 1.7, 1.9)),
                   WhatIf("data-loading", Remedy("four"), batches=list)]

    assert [cause.remedy.text for cause in conclude(Session).causes] == ["two"]
