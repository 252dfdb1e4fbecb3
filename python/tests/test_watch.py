"""saturate.watch(): phases of a loop, hooks that leave no trace, and a folder that the report reads. Needs numpy and
pytest, and torch for most tests."""

import copy
import json
import subprocess
import sys
import threading
import types

import pytest

import saturate
from saturate.phases import BACKWARD, EVALUATION, FORWARD, HOST, NAMES, OPTIMIZER, WAIT, PhaseClock, size_of

SYNTH = "synth:size=24,count=60"


class Ticking:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now


def test_a_clock_charges_one_phase_at_a_time():
    time = Ticking()
    clock = PhaseClock(time)
    for phase, before in ((FORWARD, 1), (WAIT, 10)):
        time.now += before
        clock.enter(phase)
    time.now += 100
    clock.leave()
    time.now += 1000
    clock.leave()
    time.now += 10000
    clock.leave()  # nothing is open
    clock.enter(BACKWARD)
    time.now += 100000
    clock.settle()  # an exception left it open
    time.now += 1000000
    clock.settle()
    spent = {NAMES[i]: value for i, value in enumerate(clock.spent) if value}
    assert spent == {"host": 1010001, "forward": 1010, "wait": 100, "backward": 100000}
    assert sum(clock.spent) == time.now and clock.phase == HOST


def test_other_threads_change_nothing():
    time = Ticking()
    clock = PhaseClock(time)
    thread = threading.Thread(target=lambda: (clock.enter(FORWARD), clock.leave(), clock.leave()))
    thread.start()
    thread.join()
    assert clock.phase == HOST and sum(clock.spent) == 0


def test_sizes_of_batches():
    import numpy as np

    images = np.zeros((5, 3, 2, 2))
    for batch in (images, (images, 1), [images], {"a": images}, ((images, 2), 3), ["a"] * 5,
                  (tuple([images[0]] * 5), tuple([{}] * 5)), [{"image": images[0], "label": 1}] * 5, [(images[0], 1)] * 5,
                  [{"image": images}, {"label": images}], ((images, images), (images, images)),
                  [{"data": images}], [[images, images], images],
                  types.SimpleNamespace(num_graphs=5)):
        assert size_of(batch) == 5
    assert size_of([(images[0], 1)]) == 1
    assert size_of(3) == size_of(()) == size_of(np.zeros(())) == 0


def test_a_loop_without_torch_counts_batches(tmp_path):
    loader = saturate.Loader(SYNTH, batch=16, size=8)
    with saturate.watch(loader, out=tmp_path / "run") as watch:
        for _ in range(2):
            for _ in watch:
                pass
        assert len(watch) == 4
    assert watch.steps == 8 and watch.samples == 120
    assert "8 steps, 120 samples" in str(watch) and "wait" in str(watch)
    *_, end = records(tmp_path / "run")
    assert (end["kind"], end["step"], end["samples"], end["epoch"]) == ("end", 8, 120, 2.0)
    assert sum(end["phases"].values()) == pytest.approx(end["time_s"]) and list(end["phases"]) == list(NAMES)
    watch.close()
    with pytest.raises(saturate.Error, match="closed"):
        watch.step()


ONE_LINE = """
import os, sys, saturate
loader = [["a"] * 16] * 4
for epoch in range(2):
    for number, _ in enumerate(saturate.watch(loader, out=sys.argv[1])):
        if epoch == 1 and number == 1:
            break
if os.fork() == 0:
    sys.exit()  # the watch is not this process's
os.wait()
"""


def test_a_watch_in_one_line_goes_on_in_the_next_epoch_and_ends_with_the_program(tmp_path):
    subprocess.run([sys.executable, "-W", "ignore", "-c", ONE_LINE, str(tmp_path / "run")], check=True, timeout=60)
    *_, end = records(tmp_path / "run")
    assert (end["kind"], end["step"], end["samples"], end["epoch"]) == ("end", 6, 96, 1.5)


def test_a_watch_whose_loop_has_ended_is_closed_by_the_next():
    loader = saturate.Loader(SYNTH, batch=16, size=8)
    first = saturate.watch(loader)
    batches = iter(first)
    next(batches)
    with pytest.raises(saturate.Error, match="another watch"):
        saturate.watch()
    batches.close()
    assert saturate.watch(loader) is first and first.steps == 1
    with saturate.watch() as second, pytest.raises(saturate.Error, match="closed"):
        assert second is not first
        first.step()


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_watch_that_was_not_iterated_gives_way(tmp_path):
    loader, other = (saturate.Loader(SYNTH, batch=16, size=8) for _ in range(2))
    len(saturate.watch(loader, out=tmp_path / "a"))
    for _ in saturate.watch(other, out=tmp_path / "b"):
        pass
    with pytest.warns(UserWarning, match="watch only the training loader"):  # two loaders in turn
        saturate.watch(loader, out=tmp_path / "a").close()
    assert len(records(tmp_path / "a")) == len(records(tmp_path / "a-2")) == 1


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(saturate.Error, match=r"cannot be written: .*file.*Give out="):
        saturate.watch(out=tmp_path / "file/run")
    monkeypatch.setattr("saturate.records.host", lambda: {"note": open("/dev/full", "w").write("x" * 100_000)})
    with pytest.raises(saturate.Error, match="No space left"):
        saturate.watch(out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_watch_at_a_time_and_one_run_in_a_folder(tmp_path):
    with saturate.watch(out=tmp_path / "run"), pytest.raises(saturate.Error, match="another watch"):
        saturate.watch()
    for steps in (2, 3):
        with pytest.warns(UserWarning, match=f"written to .*run-{steps}"):
            watch = saturate.watch(out=tmp_path / "run")
        for _ in range(steps):
            watch.step()
        watch.close()
    assert [records(tmp_path / name)[-1]["step"] for name in ("run", "run-2", "run-3")] == [0, 2, 3]
    with saturate.watch() as watch, pytest.raises(saturate.Error, match="the loader"):
        next(iter(watch))


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


class Delays:
    """Stands for the clock: each part of a step moves it by a known time."""

    def __init__(self, monkeypatch, torch):
        from saturate import watching

        self.torch, self.time = torch, Ticking()
        monkeypatch.setattr(watching, "PhaseClock", lambda: PhaseClock(self.time))
        delays = self

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = torch.nn.Linear(2, 2)

            def forward(self, inputs):
                delays.time.now += 3
                return Slow.apply(self.inner(inputs))

        class Slow(torch.autograd.Function):
            @staticmethod
            def forward(context, inputs):
                return inputs.clone()

            @staticmethod
            def backward(context, gradient):
                delays.time.now += 5
                return gradient

        class Optimizer(torch.optim.SGD):
            def step(self, closure=None):
                delays.time.now += 7
                return super().step(closure)

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 6

            def __getitem__(self, index):
                delays.time.now += 11
                return torch.ones(2), 0

        self.model = Model()
        self.optimizer = Optimizer(self.model.parameters(), lr=0.5)
        self.loader = torch.utils.data.DataLoader(Data(), batch_size=2)

    def step(self, batch):
        self.optimizer.zero_grad()
        self.time.now += 13
        loss = self.model(batch[0]).sum()
        loss.backward()
        self.optimizer.step()
        return loss


PER_STEP = {"wait": 22, "forward": 3, "backward": 5, "optimizer": 7, "host": 13}


@pytest.mark.parametrize("gives_model", [False, True])
def test_the_phases_of_a_bare_loop(monkeypatch, torch, gives_model):
    loop = Delays(monkeypatch, torch)
    with saturate.watch(model=loop.model if gives_model else None) as watch:
        for _ in range(2):
            for batch in loop.loader:
                watch.step(loss=loop.step(batch))
        with torch.no_grad():
            loop.model(torch.ones(1, 2))
    assert watch.steps == 6 and watch.samples == 12
    spent = {name: round(seconds * 1e9) for name, seconds in watch.phases.items() if seconds}
    assert spent == {**{name: 6 * value for name, value in PER_STEP.items()}, "evaluation": 3}


def test_the_phases_of_a_wrapped_loader(monkeypatch, torch):
    loop = Delays(monkeypatch, torch)
    with saturate.watch(loop.loader) as watch:
        for number, batch in enumerate(watch):
            if number == 1:  # accumulation: no optimizer step
                loop.model(batch[0]).sum().backward()
            else:
                loop.step(batch)
    assert watch.steps == 2 and watch.samples == 6
    spent = {name: round(seconds * 1e9) for name, seconds in watch.phases.items() if seconds}
    assert spent == {"wait": 66, "forward": 9, "backward": 15, "optimizer": 14, "host": 26}


def test_samples_are_those_of_training(monkeypatch, torch):
    loop = Delays(monkeypatch, torch)
    with saturate.watch(loop.loader) as watch:
        for batch in watch:
            loop.step(batch)
            next(iter(loop.loader))
    assert (watch.steps, watch.samples) == (3, 6)
    with saturate.watch() as watch:
        next(iter(loop.loader))
        with torch.no_grad():
            next(iter(loop.loader))
    assert watch.samples == 2


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_module_of_torchscript_counts_as_the_host(monkeypatch, torch):
    loop = Delays(monkeypatch, torch)
    teacher = torch.jit.freeze(torch.jit.script(torch.nn.Linear(2, 2)).eval())
    for model in (None, teacher):
        with saturate.watch(loop.loader, model=model) as watch:
            for batch in watch:
                teacher(batch[0])
                loop.step(batch)
        spent = {name: round(seconds * 1e9) for name, seconds in watch.phases.items() if seconds}
        forward = 0 if model else 3
        expected = {**PER_STEP, "forward": forward, "host": PER_STEP["host"] + 3 - forward}
        assert spent == {name: 3 * value for name, value in expected.items() if value}


def test_an_exception_ends_its_phase(monkeypatch, torch):
    loop = Delays(monkeypatch, torch)
    with saturate.watch() as watch:
        with pytest.raises(RuntimeError):
            loop.model(torch.ones(1, 3))
        loop.time.now += 1000
        watch.step()
        loop.step(next(iter(loop.loader)))
        watch.step()
    assert round(watch.phases["host"] * 1e9) == 1013 and round(watch.phases["forward"] * 1e9) == 6


def test_it_leaves_no_trace(torch):
    from saturate.iteration import Iteration
    from torch.nn.modules import module as modules
    from torch.optim import optimizer as optimizers

    def state(model):
        return (Iteration.__next__, torch.autograd.backward, torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
                torch.Tensor.to, dict(modules._global_forward_hooks), dict(modules._global_forward_pre_hooks),
                dict(optimizers._global_optimizer_pre_hooks), dict(optimizers._global_optimizer_post_hooks),
                dict(model._forward_hooks), dict(model._forward_pre_hooks))

    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    before = state(model)
    for steps in (0, 1, 5):
        with saturate.watch() as watch:
            for _ in range(steps):
                model(torch.ones(1, 2)).sum().backward()
                watch.step()
            assert state(model) != before
        assert state(model) == before


def test_gradients_are_those_without_it(torch):
    def trained(watched):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 2))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(5):
            loss = model(torch.randn(3, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if watched:
                watched.step(loss=loss)
        return [parameter.detach().clone() for parameter in model.parameters()]

    with saturate.watch() as watch:
        found = trained(watch)
    assert all(a.equal(b) for a, b in zip(found, trained(None)))


def test_records_have_the_schema_of_the_command(monkeypatch, torch, tmp_path):
    from saturate import watching

    monkeypatch.setattr(watching, "RECORD_NS", 0)
    loop = Delays(monkeypatch, torch)
    with saturate.watch(loop.loader, out=tmp_path) as watch:
        for batch in watch:
            loop.time.now += 10**9
            watch.step(loss=loop.step(batch))
    *steps, end = records(tmp_path)
    assert [record["step"] for record in steps] == [1, 2, 3] and end["kind"] == "end"
    assert all(record["kind"] == "step" and record["lr"] == 0.5 and record["loss"] is not None for record in steps)
    assert [record["samples"] for record in steps] == [2, 4, 6]
    for record in (*steps, end):
        assert record["images_per_s"] == pytest.approx(2 / 1.00000005) and record["telemetry"]["rss_bytes"] > 10**6
    assert sum(steps[1]["phases"].values()) == pytest.approx(1.00000005)
    documented = {"kind", "step", "epoch", "samples", "time_s", "loss", "accuracy", "accuracy5", "lr", "images_per_s",
                  "phases", "memory_peak_bytes"}
    assert all(documented <= set(record) for record in (*steps, end))


def test_the_command_makes_a_report_of_it(torch, tmp_path, saturate_command):
    model = torch.nn.Linear(8 * 8 * 3, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = saturate.Loader(SYNTH, batch=10, size=8, to="torch")
    with saturate.watch(loader, out=tmp_path / "run") as watch:
        for images, labels in watch:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images.flatten(1)), labels).backward()
            optimizer.step()
    result = subprocess.run([saturate_command, "report", str(tmp_path / "run")], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "warning" not in result.stderr
    page = (tmp_path / "run/report.html").read_text()
    assert '"optimizer"' in page and "saturate.watch" in page


def test_a_training_function_finds_the_loaders_attributes(torch):
    data = torch.utils.data
    loader = data.DataLoader(data.TensorDataset(torch.arange(8.0)), batch_size=2,
                             sampler=data.DistributedSampler(range(8), 2, 0))
    watched = saturate.watch(loader)
    assert (len(watched.dataset), watched.batch_size, len(watched)) == (8, 2, 2)
    watched.sampler.set_epoch(3)
    assert loader.sampler.epoch == 3 and not hasattr(watched, "missing")
    watched.close()
    with saturate.watch() as alone, pytest.raises(AttributeError, match="'Watch' object has no attribute 'dataset'"):
        alone.dataset
    assert copy.copy(watched) is watched and copy.deepcopy([watched])[0] is watched


def test_a_watched_loader_keeps_its_position():
    first, second = (saturate.Loader("synth:size=8,count=12", batch=4, size=8, shuffle=False) for _ in range(2))
    watched = saturate.watch(first)
    next(iter(watched))
    second.load_state_dict(watched.state_dict())
    watched.close()
    assert len(list(second)) == 2
