"""Loops and loaders that are built in other ways than most."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import types

import pytest

torch = pytest.importorskip("torch")

import saturate  # noqa: E402
from saturate.observing import Observation  # noqa: E402
from saturate.patches import calls_of, uncounted_saves, without_calls  # noqa: E402
from saturate.step_what_ifs import _channels_last, step_what_ifs  # noqa: E402
from test_diagnose_script import PLAIN, TIMED, run, script, timed  # noqa: E402,F401
from timed_loop import Data, Loop, names, synth_loop  # noqa: E402

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


def test_a_script_that_fails_without_a_change_tells_what_was_measured(script, monkeypatch):  # noqa: F811
    monkeypatch.setattr("saturate.session.Session._persistence",  # called when the loop as it is has been measured
                        lambda session: setattr(session._clock, "is_measured", True))
    text = TIMED.replace("zero_grad()", "zero_grad(set_to_none=False)").replace(
        "optimizer.step();", "optimizer.step(); assert not hasattr(builtins.clock, 'is_measured'), 'wrong';")
    told = []
    with pytest.raises(AssertionError, match="wrong"):
        timed(monkeypatch, script, text, only=["set-to-none"], if_failed=told.append)
    found, = told
    assert found.rate == pytest.approx(20, rel=0.01) and found.verdict == "undecided"
    assert found.skipped == [("set-to-none", "there was no time: the script failed: wrong")]


def test_a_script_behind_a_link_finds_its_neighbours(tmp_path, capsys):
    from saturate.running import run_script

    (tmp_path / "real").mkdir()
    (tmp_path / "real/beside_it.py").write_text("print('found')")
    (tmp_path / "real/train.py").write_text("import beside_it\nprint(__file__)")
    link = tmp_path / "link.py"
    link.symlink_to("real/train.py")
    run_script(str(link), [])
    assert capsys.readouterr().out.split() == ["found", str(link)]


def test_the_loss_that_tune_compares_is_not_scaled(script):  # noqa: F811
    from saturate.measuring import measure_script

    text = PLAIN.replace("loss.backward()", "scaler.scale(loss).backward()").replace(
        "optimizer.step()", "scaler.step(optimizer)\n            scaler.update()")
    script.write_text(text.replace(
        "    held_out =", '    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)\n    held_out ='))
    assert 0 < measure_script(str(script), ["50"], 20)["loss"] < 1000


def test_tune_compares_losses_after_as_many_steps():
    from saturate.measuring import MeasuredLoop

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


def test_checkpoints_are_whole_although_their_saves_do_not_count(tmp_path, monkeypatch):
    """However they are saved: in Lightning's way into memory first, and over a file that is there."""
    uncounted, lightning = [], types.ModuleType("lightning.fabric.plugins.io.torch_io")

    def atomic_save(checkpoint, path):
        torch.save(checkpoint, buffer)
        path.write_bytes(buffer.getvalue())

    @contextlib.contextmanager
    def noting():
        uncounted.append(1)
        yield

    lightning._atomic_save, buffer = atomic_save, io.BytesIO()
    monkeypatch.setitem(sys.modules, lightning.__name__, lightning)
    torch.save(0, tmp_path / "opened")
    with uncounted_saves(calls_of(torch), noting)():
        lightning._atomic_save(1, tmp_path / "last")
        with open(tmp_path / "opened", "wb") as file:
            torch.save(2, f=file)
        handle, path = tempfile.mkstemp(dir=tmp_path)
        os.close(handle)
        torch.save(3, path)
        os.replace(path, tmp_path / "moved")
    torch.save(4, tmp_path / "later")
    assert [torch.load(tmp_path / name) for name in ("last", "opened", "moved", "later")] == [1, 2, 3, 4]
    assert len(uncounted) == 3


@pytest.mark.parametrize("cause, module, kind, name", [
    ("logging", "wandb", "", "log"), ("logging", "tensorboardX", "SummaryWriter", "add_scalar"),
    ("logging", "mlflow", "", "log_metrics"), ("checkpoint-saves", "safetensors.torch", "", "serialize_file")])
def test_calls_of_other_packages(monkeypatch, cause, module, kind, name):
    loop, stand_in = Loop(compute=0.1), types.ModuleType(module)
    owner = type(kind, (), {}) if kind else stand_in

    def slow(*_):
        loop.clock.now += 0.1

    setattr(owner, name, slow)
    if kind:
        setattr(stand_in, kind, owner)
    monkeypatch.setitem(sys.modules, module, stand_in)
    loop.extra = lambda _: getattr(owner() if kind else owner, name)()
    found = loop.diagnose(only=[cause])
    assert names(found.causes) == [cause] and found.causes[0].gain == pytest.approx(2, rel=0.01)
    assert vars(owner)[name] is slow


def test_other_ways_to_wait_for_a_gpu_are_reads(monkeypatch):
    waits = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: waits.append(1))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    with without_calls("item-in-loop", calls_of(torch))():
        torch.cuda.synchronize()
        eval("torch.cuda.synchronize()", {"torch": torch, "__name__": "saturate.device_time"})  # at the end of a turn
        copies = [torch.full((2,), value).cpu() for value in (1.0, 5.0)]  # as of weights, for a checkpoint
    assert waits == [1] and [each.tolist() for each in copies] == [[1, 1], [5, 5]]


@pytest.mark.parametrize("name, settings", [
    ("tf32", [(torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")]),
    ("cudnn-benchmark", [(torch.backends.cudnn, "benchmark")])])
def test_settings_of_a_gpu_are_on_meanwhile(name, settings):
    what_if = {each.name: each for each in step_what_ifs(Observation(torch), True, 1)}[name]
    before = [getattr(*each) for each in settings]
    with what_if.change():
        assert all(getattr(*each) for each in settings)
    assert [getattr(*each) for each in settings] == before and not all(before)
    assert what_if.remedy.lines == (what_if.remedy.edit.added,)


def test_autocast_is_for_the_inside_of_a_model():
    class Model(torch.nn.Linear):
        def forward(self, images):
            made = super().forward(images)
            inside.append(made.dtype)
            return {"logits": [made], "count": len(made)}

    model, inside = Model(2, 2), []
    what_if = {each.name: each for each in step_what_ifs(Observation(torch, model), False, 1)}["autocast-bf16"]
    with what_if.change():
        logits, = model(torch.ones(1, 2))["logits"]
        logits.sum().backward()
    model(torch.ones(1, 2))
    assert inside == [torch.bfloat16, torch.float32] and "forward" not in vars(model)
    assert logits.dtype == model.weight.grad.dtype == torch.float32


def test_what_may_fail_is_tried_last(script, monkeypatch):  # noqa: F811
    monkeypatch.setattr(Observation, "optimizer_s", None)
    text = TIMED.replace("loss.backward()", "assert len(images) == 4, 'no memory'; loss.backward()")
    found = timed(monkeypatch, script, text, 99999, only=["batch-size", "fused-optimizer"])
    assert dict(found.skipped) == {"batch-size": "the script failed with it: no memory"}
    assert names(found.idle) == ["fused-optimizer"]


@pytest.mark.parametrize("found, reason", [
    (None, "torch cannot be imported"), (types.SimpleNamespace(__version__="2.3.1+cpu"), "torch 2.3.1.cpu is too old")])
def test_a_torch_that_is_missing_or_too_old_is_an_error(script, monkeypatch, found, reason):  # noqa: F811
    from saturate.measuring import measure_script
    from saturate.scripts import diagnose_script

    monkeypatch.setitem(sys.modules, "torch", found)
    with pytest.raises(saturate.Error, match=reason):
        diagnose_script(str(script), [])
    with pytest.raises(saturate.Error, match=reason):
        measure_script(str(script), [], 1)


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
    images = []
    with what_if.change():
        assert all(each.is_contiguous(memory_format=torch.channels_last) for each in tensors)
        model.register_forward_pre_hook(lambda *given: images.append(given[2]["input"]), with_kwargs=True)
        model(input=torch.ones(1, 3, 5, 5))
    assert images[0].is_contiguous(memory_format=torch.channels_last)
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
    assert "an epoch has fewer than 32 samples" in dict(loop.diagnose(only=["batch-size"]).skipped)["batch-size"]


def test_a_watched_loader_of_saturate_is_measured():
    """It is not copied: its place is restored in the middle of its iteration."""
    loader, step = synth_loop()
    before = loader.state_dict()
    found = saturate.diagnose(step, saturate.watch(loader), seconds=6, only=["set-to-none"])
    assert "set-to-none" in names([*found.causes, *found.uncertain, *found.idle]) and loader.state_dict() == before
