"""saturate.watch(): what it counts, and what it must not do to a loop. Needs pytest, and torch for some tests."""

import collections
import copy
import gc
import json
import subprocess
import sys
import types
import weakref

import pytest

import saturate
from saturate._core import BatchIterator, Hook, StepCounter

SYNTH = "synth:size=24,count=60"


class Batches(list):
    """A loader that can be referred to weakly."""


def counted(batch):
    with saturate.watch([batch] * 2) as watch:
        for _ in watch:
            pass
    return watch.samples / 2


@pytest.mark.parametrize("data, shown", [("https://host/x.shard?X-Amz-Signature=hidden", "https://host/x.shard"),
                                         ("caf\udce9", "caf\\udce9")])  # a byte that is not of UTF-8
def test_records_hold_the_command_without_signatures(tmp_path, monkeypatch, data, shown):
    monkeypatch.setattr("sys.argv", ["train.py", "--data", data])
    with saturate.watch(out=tmp_path / "run") as watch:
        watch.step()
    assert json.loads((tmp_path / "run/host.json").read_text())["program"] == f"train.py --data {shown}"


def test_a_start_that_fails_leaves_no_run(tmp_path, monkeypatch):
    def full():
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(saturate.Error, match="No space"):
        patch.setattr("saturate.records.host", full)
        saturate.watch(out=tmp_path)
    assert tmp_path.exists() and not list(tmp_path.iterdir())
    saturate.watch(out=tmp_path).close()
    assert (tmp_path / "metrics.jsonl").exists()


def test_a_loader_that_is_made_in_each_epoch_continues_the_run(tmp_path):
    for _ in range(3):
        for _ in saturate.watch(saturate.Loader(SYNTH, batch=16, size=8), out=tmp_path / "run"):
            pass
    saturate.watch().close()
    *_, end = (json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    assert (end["kind"], end["step"], end["samples"], end["epoch"]) == ("end", 12, 180, 3.0)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_steps_of_a_framework_s_loop_are_counted(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader, evaluation = (torch.utils.data.DataLoader(torch.zeros(size, 1), batch_size=2) for size in (12, 4))

    def fit(epochs):
        for _ in range(epochs):
            for number, batch in enumerate(loader):
                model(batch).sum().backward()
                if number % 2:  # two batches are accumulated
                    optimizer.step()
            with torch.no_grad():
                for batch in evaluation:
                    model(batch)

    with saturate.watch() as watch:
        fit(4)
        assert (watch.steps, watch.samples) == (12, 48) and not watch._hooks._search
        model(next(iter(loader))).sum().backward()
        optimizer.step()
    assert watch.steps == 13


def test_the_samples_of_unusual_batches():
    raising = type("Raising", (), {"shape": property(lambda self: 1 // 0)})()
    for shape in (None, {}, (2**70,), ("a",), (object(),), 3, ()):
        assert counted(types.SimpleNamespace(shape=shape)) == 0
    assert counted(raising) == counted([]) == counted([raising]) == 0
    array = types.SimpleNamespace(shape=(4, 2))
    encoded = collections.UserDict(name="text", ids=array)
    empty = types.SimpleNamespace(shape=(0,))
    for batch in (array, [array], (array, 1), {"a": array}, {"a": "text", "b": array}, {"a": empty, "b": array}, encoded,
                  [(array,)], ["a"] * 4, types.SimpleNamespace(shape=[4.7])):
        assert counted(batch) == 4


def test_a_batch_that_contains_itself_is_a_recursion_error():
    batch = []
    batch.append(batch)
    with pytest.raises(RecursionError):
        counted(batch)


def test_an_interrupt_while_a_batch_is_counted_ends_the_loop():
    class Interrupted:
        @property
        def shape(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        counted([Interrupted()])


def test_the_loop_alone_has_its_batch():
    class Batch:
        pass

    class Loader:
        def __iter__(self):
            return self

        def __next__(self):
            return Batch()

    with saturate.watch(Loader()) as watch:
        batches = iter(watch)
        batch = next(batches)
        seen = weakref.ref(batch)
        del batch
        assert seen() is None


@pytest.mark.parametrize("is_manual", [False, True])
def test_a_closed_watch_is_freed_with_its_loader(is_manual):
    torch = pytest.importorskip("torch")

    def run():
        model, loader = torch.nn.Linear(1, 1), Batches([torch.zeros(8, 1)] * 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with saturate.watch(loader) as watch:
            for batch in watch:
                model(batch).sum().backward()
                optimizer.step()
                if is_manual:
                    watch.step()
        return [weakref.ref(each) for each in (watch, loader, model, optimizer)]

    found = run()
    gc.collect()
    assert [each() for each in found] == [None] * 4


def test_what_follows_close_does_not_count(tmp_path):
    with saturate.watch([["a"] * 4] * 9, out=tmp_path) as watch:
        for number, _ in enumerate(watch):
            if number == 2:
                watch.close()
                before = watch.phases, str(watch)
    assert (watch.phases, str(watch)) == before and watch.samples == 12


def test_step_without_init_is_an_error():
    with pytest.raises(RuntimeError, match="__init__"):
        saturate.Watch.__new__(saturate.Watch).step()
    for call in (StepCounter.__new__(StepCounter).step, Hook.__new__(Hook).call,
                 BatchIterator.__new__(BatchIterator).__next__):
        with pytest.raises(RuntimeError, match="__init__"):
            call()


def test_an_iterator_of_something_else_is_an_error():
    with pytest.raises(RuntimeError):
        BatchIterator(3)


def test_a_loop_that_ends_early_ends_its_step_and_pass():
    with saturate.watch([["a"] * 4] * 9) as watch:
        for _ in watch:
            break
        assert (watch.steps, watch.samples, watch._loops) == (1, 4, 0)
        with pytest.raises(KeyError, match="mine"):
            for _ in watch:
                raise KeyError("mine")
        assert (watch.steps, watch.samples, watch._loops) == (2, 8, 0)
        batches = iter(watch)
        assert iter(batches) is batches and watch._loops == 0
        assert len(list(batches)) == 9 and list(batches) == [] and watch._loops == 0
        assert watch.steps == 11


def test_an_iterator_that_is_closed_or_lost_ends_its_step_and_pass():
    loader = Batches([["a"]] * 9)
    with saturate.watch(loader) as watch:
        batches = iter(watch)
        batches.close()
        assert list(batches) == []  # as of a generator that is closed before its first value
        batches = iter(watch)
        next(batches)
        batches.close()
        assert list(batches) == [] and (watch.steps, watch._loops) == (1, 0)
        kept = [iter(watch)]
        next(kept[0])
        kept.append(kept)  # a cycle
        del kept, batches
        gc.collect()
        assert (watch.steps, watch._loops) == (2, 0)


def test_two_calls_at_a_time_are_an_error():
    class Nested:
        def __iter__(self):
            return self

        def __next__(self):
            return next(batches)

    with saturate.watch(Nested()) as watch:
        batches = iter(watch)
        with pytest.raises(ValueError, match="already executing"):
            next(batches)
        assert watch._loops == 0


def test_an_error_of_the_loader_ends_the_pass():
    def failing():
        yield ["a"]
        raise OSError("gone")

    class Loader:
        def __iter__(self):
            return failing()

    with saturate.watch(Loader()) as watch:
        batches = iter(watch)
        next(batches)
        with pytest.raises(OSError, match="gone"):
            next(batches)
        assert list(batches) == [] and watch._loops == 0 and watch.steps == 1
    with saturate.watch(3) as watch:
        batches = iter(watch)
        with pytest.raises(TypeError, match="not iterable"):
            next(batches)
        assert list(batches) == [] and watch._begun_epochs == 1

    class Empty:
        def __iter__(self):
            return next(iter([]))

    with saturate.watch(Empty()) as watch, pytest.raises(RuntimeError, match="raised StopIteration"):
        next(iter(watch))


def test_a_loader_that_keeps_its_iterator_is_collected():
    with saturate.watch(Batches([["a"]] * 3)) as watch:
        watch.loader.kept = iter(watch)
        next(watch.loader.kept)
        found = weakref.ref(watch.loader)
    del watch
    gc.collect()
    assert found() is None


def test_a_program_that_ends_few_steps_counts_only_those():
    with saturate.watch([["a"]] * 64) as watch:
        for number, _ in enumerate(watch):
            if number == 0 or number % 16 == 15:
                watch.step()
    assert watch.steps == 5
    with saturate.watch([["a"]] * 64) as watch:  # the first call is late: no step is due
        for number, _ in enumerate(watch):
            if number >= 40:
                watch.step()
    assert watch.steps == 64


def test_a_second_loader_in_each_step_is_usual(monkeypatch):
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    looked = []
    first, second = (DataLoader(torch.zeros(40, 1)) for _ in range(2))
    with saturate.watch(first) as watch:
        look = watch._look_closer
        monkeypatch.setattr(watch, "_look_closer", lambda is_other=False: (looked.append(is_other), look(is_other)))
        others = iter(second)
        for _ in watch:
            next(others)
    assert sum(looked) == 1
    with saturate.watch(first) as watch:  # an evaluation with gradients, after some steps
        # A step that was long, as on a busy machine, is looked at too.
        monkeypatch.setattr(watch, "_look_closer", lambda is_other=False: looked.append(is_other))
        for number, _ in enumerate(watch):
            if number % 10 == 9:
                next(iter(second))
    assert sum(looked) == 5


def test_an_evaluations_loader_that_is_dropped_is_freed():
    first, second = (saturate.Loader("synth:size=24,count=32", batch=16, size=8) for _ in range(2))
    dropped = weakref.ref(second)
    with saturate.watch(first) as watch:
        for _ in watch:
            pass
        next(iter(second))
        del second
        gc.collect()
        assert dropped() is None


LATE = """
import saturate
loader = saturate.Loader("synth:size=24,count=60", batch=16, size=8)
with saturate.watch() as watch:
    import torch
    with torch.no_grad():
        for _ in loader: pass
    assert watch.samples == 0
    for _ in loader: pass
    assert watch.samples == 60
"""


def test_no_grad_counts_also_if_torch_is_imported_later():
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-c", LATE], check=True, timeout=120)


def test_a_forked_process_writes_no_records(tmp_path):
    script = f"""
import os, saturate
from saturate import watching
watching.RECORD_NS = 0
with saturate.watch([["a"]] * 9, out={str(tmp_path)!r}) as watch:
    for number, _ in enumerate(watch):
        if number == 4:
            child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["kind"] for record in records].count("end") == 1
    steps = [record["step"] for record in records]
    assert steps == sorted(steps) and len(set(steps[:-1])) == len(steps) - 1


def test_an_unfinished_loop_is_silent_when_python_ends():
    code = "import saturate; batches = iter(saturate.watch([['a']] * 9)); next(batches)"
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")


def test_the_same_call_continues_while_an_iterator_is_alive():
    loader = Batches([["a"]] * 10)
    for _ in range(3):
        batches = iter(saturate.watch(loader))
        for _ in range(5):
            next(batches)
    watch = saturate.watch(loader)
    assert watch.samples == 15
    batches.close()
    watch.close()


def test_the_epoch_of_a_loader_without_a_length(tmp_path):
    class Loader:
        def __iter__(self):
            return iter([["a"]] * 3)

    with saturate.watch(Loader(), out=tmp_path) as watch:
        for _ in range(2):
            for _ in watch:
                assert watch._epoch() == watch._begun_epochs - 1
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["epoch"] == 2.0


def test_a_module_can_be_scripted_while_its_hooks_are_there():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(4, 2)
    with saturate.watch() as watch:
        for _ in range(3):
            model(torch.zeros(1, 4))
            watch.step()
        assert model._forward_hooks
        before = dict(model._forward_hooks), dict(model._forward_pre_hooks)
        for module in (model, copy.deepcopy(model)):
            assert torch.jit.script(module)(torch.zeros(1, 4)).shape == (1, 2)
        assert (dict(model._forward_hooks), dict(model._forward_pre_hooks)) == before
    assert not model._forward_hooks and torch.jit.script.__module__.startswith("torch")
