"""saturate.watch() and saturate.diagnose() beside what else a program does with torch: patches, torch.compile, saved
models. Outputs that fail do not end a training. Needs pytest and torch."""

import builtins
import contextlib
import copy
import functools
import io
import json
import pickle
import pickletools
import subprocess
import sys
import zipfile

import pytest

import saturate
from saturate import watching
from saturate.phases import PhaseClock
from saturate.records import RunFolder

torch = pytest.importorskip("torch")

from saturate.observing import Observation  # noqa: E402
from saturate.patches import calls_of, without_calls  # noqa: E402
from saturate.scripts import run_script  # noqa: E402


def test_what_others_replace_during_a_watch_stays_and_calls_nothing_of_it(monkeypatch):
    before, called = torch.autograd.backward, []
    kind = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    monkeypatch.setattr(kind, "__init__", kind.__init__)  # restores it
    monkeypatch.setattr(torch.autograd, "backward", before)
    loader = torch.utils.data.DataLoader([1, 2], num_workers=1, multiprocessing_context="fork")
    with saturate.watch() as watch:
        for owner, name in ((torch.autograd, "backward"), (kind, "__init__")):
            def theirs(*arguments, _call=getattr(owner, name), **named):
                called.append(1)
                return _call(*arguments, **named)

            monkeypatch.setattr(owner, name, theirs)
        watch.step()
    spent, weight = watch.phases, torch.ones(2, requires_grad=True)
    weight.sum().backward()
    assert len(list(loader)) == 2 and len(called) == 2 and weight.grad.tolist() == [1, 1]
    assert torch.autograd.backward is not before
    assert watch.phases == spent and watch.workers is None


@pytest.mark.parametrize("scope", ["observed", "silent"])
def test_what_a_script_replaces_while_it_is_diagnosed_stays(monkeypatch, capsys, scope):
    monkeypatch.setattr(builtins, "print", builtins.print)  # restores it
    seen = Observation(torch)
    with seen.active() if scope == "observed" else without_calls("print-in-loop", calls_of(torch))():
        monkeypatch.setattr(builtins, "print", functools.partial(builtins.print, "rank 0:"))
        print("during")
    print("after")
    assert capsys.readouterr().out.splitlines() == ["rank 0: during"] * (scope == "observed") + ["rank 0: after"]
    assert seen.counted.calls == ({"print-in-loop": 1} if scope == "observed" else {})


def test_a_module_that_is_saved_or_copied_meanwhile_has_nothing_of_saturate():
    model, file = torch.nn.Linear(2, 2), io.BytesIO()
    with saturate.watch(model=model) as watch:
        torch.save(model, file)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    with zipfile.ZipFile(file) as archive:
        name, = [name for name in archive.namelist() if name.endswith("data.pkl")]
        assert "saturate" not in "".join(str(value) for _, value, _ in pickletools.genops(archive.read(name)))
    file.seek(0)
    copies.append(torch.load(file, weights_only=False))
    inputs, spent = torch.ones(1, 2), watch.phases
    copies.append(pickle.loads(pickle.dumps(copies[-1], 2)))
    assert all(each(inputs).equal(model(inputs)) for each in copies) and watch.phases == spent


@pytest.fixture
def model():
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))


@pytest.mark.filterwarnings("ignore:.*global hooks")
@pytest.mark.parametrize("given, compilations", [("nothing", 2), ("compiled", 1), ("original", 1)])
def test_a_compiled_model_stays_one_graph(graphs, model, given, compilations):
    found, backend = graphs
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with saturate.watch(model={"nothing": None, "compiled": compiled, "original": model}[given]) as watch:
        for number in range(3):
            compiled(torch.ones(1, 2)).sum().backward()
            watch.step()
            assert len(found) == (1 if number < watching.SEARCH_STEPS else compilations)
        spent = watch.phases
        with torch.no_grad():
            compiled(torch.ones(1, 2))
    if given != "original":  # which is called in compiled code
        assert spent["forward"] > 0 and watch.phases["evaluation"] > 0
    assert watch.phases["forward"] == spent["forward"]


def test_a_model_that_is_compiled_in_place_stays_one_graph(graphs, model):
    found, backend = graphs
    model.compile(fullgraph=True, backend=backend)
    call = model._compiled_call_impl
    with saturate.watch(model=model) as watch:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            watch.step()
    assert len(found) == 1 and watch.phases["forward"] > 0 and model._compiled_call_impl is call


def test_a_collective_in_compiled_code_stays_there(graphs, tmp_path):
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch was built without Gloo")
    found, backend = graphs

    def summed(values):
        total = values * 2
        torch.distributed.all_reduce(total)
        return total + 1

    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with saturate.watch():
            assert torch.compile(summed, fullgraph=True, backend=backend)(torch.ones(2)).tolist() == [3, 3]
    finally:
        torch.distributed.destroy_process_group()
    assert len(found) == 1


def test_a_copy_made_meanwhile_can_be_compiled(graphs, model):
    found, backend = graphs
    with saturate.watch(model=model[1]):
        copied = copy.deepcopy(model)
    torch.compile(copied, fullgraph=True, backend=backend)(torch.ones(1, 2))
    assert len(found) == 1


@pytest.mark.filterwarnings("ignore:.*global hooks")
def test_a_diagnosis_sees_a_compiled_model_and_keeps_its_graph(graphs, model):
    found, backend = graphs
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    seen = Observation(torch)
    with seen.active():
        compiled(torch.ones(1, 2))
        model.compile(fullgraph=True, backend=backend)
        model(torch.ones(1, 2))
    assert len(found) == 2 and seen.modules == [compiled]


def test_the_hooks_that_time_optimizers_are_compiled_once(graphs):
    """In compiled code they do nothing: torch would leave the graph to read the time."""
    from torch.optim import optimizer as optimizers

    found, backend = graphs
    seen = Observation(torch)

    def update(values):  # as an optimizer's step()
        for hook in optimizers._global_optimizer_pre_hooks.values():
            hook(None, (), {})
        updated = values + 1
        for hook in optimizers._global_optimizer_post_hooks.values():
            hook(None, (), {})
        return updated

    compiled = torch.compile(update, fullgraph=True, backend=backend)
    with seen.timed():
        for _ in range(3):
            with seen.looking():
                assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert len(found) == 1 and seen.optimizer_s is None


class Failing:
    path = "failing"

    def __init__(self, where):
        self.where, self.written, self.closed = where, 0, 0

    def write(self, _):
        self.written += 1
        if self.where == "write":
            raise OSError(28, "No space left on device")

    def close(self):
        self.closed += 1
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("where", ["write", "close"])
def test_an_output_that_fails_is_left_with_one_warning(monkeypatch, tmp_path, where):
    monkeypatch.setattr(watching, "RECORD_NS", 0)
    failing = Failing(where)
    with pytest.warns(UserWarning, match="into failing") as warnings, saturate.watch(out=tmp_path) as watch:
        watch._outputs.open.insert(0, failing)
        for _ in range(3):
            watch.step()
    assert failing.written == (1 if where == "write" else 4) and failing.closed >= 1
    assert len([each for each in warnings if "failing" in str(each.message)]) == 1
    assert [json.loads(line)["kind"] for line in open(tmp_path / "metrics.jsonl")] == ["step"] * 3 + ["end"]
    assert not watch._outputs.open


def test_a_full_disk_ends_no_training(monkeypatch, tmp_path):
    monkeypatch.setattr(watching, "RECORD_NS", 0)
    with pytest.warns(UserWarning, match="No space left"), saturate.watch(out=tmp_path) as watch:
        folder, = watch._outputs.open
        assert isinstance(folder, RunFolder)
        folder._file.close()
        folder._file = open("/dev/full", "w")
        for _ in range(2):
            watch.step()
    assert watch.steps == 2


def test_a_script_that_is_measured_keeps_no_run(tmp_path):
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text("import sys, saturate\nwith saturate.watch(out=sys.argv[1]) as watch:\n    watch.step()\n")
    run_script(str(script), [str(run)])
    assert not run.exists()
    saturate.watch(out=run).close()
    assert run.exists()


def test_a_close_that_fails_removes_its_hooks_and_closes_its_outputs(monkeypatch, tmp_path):
    watch = saturate.watch(out=tmp_path)
    watch.step()
    monkeypatch.setattr(watch, "_end_others_step", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        watch.close()
    assert not watch._is_open and not watch._outputs.open
    assert [json.loads(line)["kind"] for line in open(tmp_path / "metrics.jsonl")] == ["step", "end"]


def test_a_manual_loop_that_fetches_ahead_counts_each_step_once():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(torch.utils.data.DataLoader(torch.zeros(6, 1)))
    with saturate.watch() as watch:
        batch = next(batches)
        while batch is not None:
            model(batch).sum().backward()
            optimizer.step()
            batch = next(batches, None)
            watch.step()
    assert watch.steps == 6


def test_a_step_of_a_closed_watch_is_an_error():
    watch = saturate.watch()
    for batch in torch.utils.data.DataLoader(torch.zeros(3, 1)):
        batch.sum()
    watch.close()
    with pytest.raises(saturate.Error, match="closed"):
        watch.step()


@pytest.mark.parametrize("size", [3, 2])
def test_a_loader_of_another_part_of_the_data_has_its_own_watch(tmp_path, size):
    data, kept = torch.zeros(6, 1), []
    for count in (3, size):
        sampler = torch.utils.data.SubsetRandomSampler(range(count))
        with pytest.warns(UserWarning) if kept and count != 3 else contextlib.nullcontext():
            kept.append(saturate.watch(torch.utils.data.DataLoader(data, sampler=sampler), out=tmp_path / "run"))
        for _ in kept[-1]:
            pass
    kept[-1].close()
    assert (kept[0] is kept[1]) == (size == 3)


def test_a_loss_of_several_values_is_refused_at_once(tmp_path):
    with saturate.watch(out=tmp_path) as watch:
        for loss in (0.5, torch.ones(()), torch.ones(1, 1), None):
            watch.step(loss=loss)
        with pytest.raises(ValueError, match=r"\(2, 3\).*mean"):
            watch.step(loss=torch.ones(2, 3))


def test_a_long_run_writes_fewer_records(monkeypatch, tmp_path):
    now = [0]
    monkeypatch.setattr(watching, "PhaseClock", lambda: PhaseClock(lambda: now[0]))
    with saturate.watch(out=tmp_path) as watch:
        for until in (5, 3600, 3630):
            now[0] = (until - 5) * 10**9
            while now[0] < until * 10**9:
                now[0] += 10**9 // 2
                watch.step()
    times = [json.loads(line)["time_s"] for line in open(tmp_path / "metrics.jsonl")][:-1]
    assert times == [1, 2, 3, 4, 5, 3595.5, 3596.5, 3597.5, 3598.5, 3599.5, 3625.5, 3630]


def test_a_forked_process_may_watch_its_own_loop():
    script = """
import os, saturate
with saturate.watch():
    child = os.fork()
    if child == 0:
        with saturate.watch([["a"]] * 3) as watch:
            for _ in watch:
                pass
        os._exit(0 if watch.steps == 3 else 2)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)
