"""Loops and loaders that are built in other ways than most."""

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import saturate  # noqa: E402
from saturate.observing import Observation  # noqa: E402
from saturate.patches import calls_of, without_calls  # noqa: E402
from saturate.step_what_ifs import _channels_last  # noqa: E402
from test_diagnose_script import PLAIN, TIMED, run, script, timed  # noqa: E402,F401
from timed_loop import Data, Loop  # noqa: E402

LOADER = "DataLoader(Data(), batch_size=4, shuffle=True)"
MAPPED = """class Mapped(DataLoader):
    def _get_iterator(self):
        return ((images + 1, labels) for images, labels in super(Mapped, self)._get_iterator())


def main("""
KEPT = """class Repeat:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from self.sampler


class Kept(DataLoader):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self._length = super().__len__()
        object.__setattr__(self, "batch_sampler", Repeat(self.batch_sampler))
        self._kept = super().__iter__()

    def __len__(self):
        return self._length

    def __iter__(self):
        for _ in range(self._length):
            yield next(self._kept)


def main("""
STEP = """            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step(); builtins.clock.now += 0.01
            if number == len(loader) - 1:
                break
"""
AFTER_EACH_PASS = """            own = torch.nn.functional.cross_entropy(model(images), labels)
            loss = own + loss if number else own
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(); builtins.clock.now += 0.01
"""


def test_a_loader_with_iterators_of_its_own_is_not_copied(script, tmp_path):  # noqa: F811
    script.write_text(PLAIN.replace("def main(", MAPPED).replace(LOADER, LOADER.replace("DataLoader", "Mapped")))
    alone = subprocess.run([sys.executable, script, "1"], capture_output=True, text=True, timeout=300)
    done = run("diagnose", "--seconds", 2, "--json", tmp_path / "found.json", script, 1)
    assert done.returncode == 0 and done.stdout == alone.stdout and "[[" in done.stdout, done.stderr
    assert "_get_iterator" in json.loads((tmp_path / "found.json").read_text())["refused"]


def test_a_loader_that_keeps_its_iterator_is_not_charged_evaluations(script, monkeypatch):  # noqa: F811
    text = TIMED.replace("def main(", KEPT).replace(LOADER, LOADER.replace("DataLoader", "Kept"))
    found = timed(monkeypatch, script, text, 9999, seconds=1e4, only=["set-to-none"])
    assert not found.refused and found.rate > 10  # an evaluation takes 100 s, and a step 0.05 s


def test_a_script_that_steps_once_after_each_pass(script, monkeypatch):  # noqa: F811
    assert STEP in TIMED
    text = TIMED.replace(STEP, AFTER_EACH_PASS).replace("builtins.clock.now += 100\n", "pass\n")
    found = timed(monkeypatch, script, text, 2000, seconds=1e3, only=["set-to-none"])
    assert not found.refused and found.rate > 0


def test_the_loss_that_tune_compares_is_not_scaled(script):  # noqa: F811
    from saturate.scripts import measure_script

    text = PLAIN.replace("loss.backward()", "scaler.scale(loss).backward()").replace(
        "optimizer.step()", "scaler.step(optimizer)\n            scaler.update()")
    script.write_text(text.replace(
        "    held_out =", '    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)\n    held_out ='))
    assert 0 < measure_script(str(script), ["50"], 20)["loss"] < 1000


def test_tune_compares_losses_after_as_many_steps():
    from saturate.scripts import MeasuredLoop

    loop = MeasuredLoop(torch, "train.py", steps=4)
    loop.losses = [4.0, 3.0, 2.0, 1.0, 0.5, 0.25]  # two steps more, while a loader's queue settled
    assert loop.loss() == 1


def test_a_script_that_sets_the_number_of_threads(script, monkeypatch):  # noqa: F811
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        text = TIMED.replace("import sys", "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport sys", 1)
        timed(monkeypatch, script, text, 9999, seconds=1e4, only=["set-to-none"])
        assert torch.get_num_threads() == 1
    finally:
        monkeypatch.setenv("OMP_NUM_THREADS", "")  # what the script set is undone with it
        torch.set_num_threads(before)


def test_checkpoints_that_are_not_saved_are_not_renamed(tmp_path):
    (tmp_path / "other").write_text("")
    with without_calls("checkpoint-saves", calls_of(torch))():
        torch.save({}, tmp_path / "a.tmp")
        os.replace(tmp_path / "a.tmp", tmp_path / "a")
        (tmp_path / "a.tmp").rename(tmp_path / "a")
        os.replace(tmp_path / "other", tmp_path / "moved")
        with pytest.raises(FileNotFoundError):
            os.replace(tmp_path / "none", tmp_path / "a")
    assert [each.name for each in tmp_path.iterdir()] == ["moved"]


def test_whole_numbers_on_the_host_are_read_anew():
    with without_calls("item-in-loop", calls_of(torch))() as begin_step:
        for number in range(3):
            begin_step()
            assert int(torch.tensor(number)) == number
            assert float(torch.tensor(float(number))) == 0.0, "the first value"


def test_channels_last_takes_what_is_updated_together():
    model = torch.nn.Conv2d(3, 4, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3, 5, 5)).sum().backward()
    optimizer.step()
    (what_if,) = _channels_last(Observation(torch, model, optimizer))
    state = optimizer.state[model.weight]
    tensors = [model.weight, model.weight.grad, state["exp_avg"], state["exp_avg_sq"]]
    values = [each.detach().clone() for each in tensors]
    with what_if.change():
        assert all(each.is_contiguous(memory_format=torch.channels_last) for each in tensors)
    assert all(each.is_contiguous() and each.equal(value) for each, value in zip(tensors, values))


class Transformed(torch.utils.data.Dataset):
    def __init__(self):
        self.transform = torch.nn.Identity()

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return self.transform(torch.full((6,), float(index))), index % 2


def test_transforms_that_are_modules_are_no_forward_pass():
    dataset, model = Transformed(), torch.nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    found = set()
    for images, labels in saturate.watch(torch.utils.data.DataLoader(dataset, batch_size=4)):
        found |= {name for name, each in (("transform", dataset.transform), ("model", model)) if each._forward_hooks}
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    assert "transform" not in found


def test_larger_batches_with_a_partial_last_one_are_no_gain():
    class BySample(Loop):
        def step(self, batch):
            self.compute = 0.01 * len(batch[1])
            super().step(batch)

    loop = BySample()
    loop.loader = torch.utils.data.DataLoader(Data(loop.clock, 1e-4, size=40), batch_size=16, shuffle=True)
    found = loop.diagnose(only=["batch-size"])  # 16, 16 and 8 become 32 and 8, in the same time
    assert not found.causes and found.verdict == "healthy"
    few = torch.utils.data.SubsetRandomSampler(range(20))
    loop.loader = torch.utils.data.DataLoader(Data(loop.clock, 1e-4), batch_size=16, sampler=few)
    assert "a pass has fewer than 32 samples" in dict(loop.diagnose(only=["batch-size"]).skipped)["batch-size"]
