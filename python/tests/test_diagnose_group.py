"""saturate.diagnose() of several processes: two real ones, whose steps must stay in line, and known times."""

import json
import os
import subprocess
import sys
import types

import pytest

import saturate
from saturate.diagnosing import _order

torch = pytest.importorskip("torch")

from saturate.agreement import Agreed  # noqa: E402
from saturate.group_turns import MIB, GroupTurns, group_what_ifs, with_sizes  # noqa: E402
from saturate.loader_what_ifs import loader_what_ifs  # noqa: E402
from saturate.turns import Pace, Remedy, WhatIf, not_tried  # noqa: E402


def test_a_straggler_and_all_reduces_by_known_times():
    whole = [0.5, 0.5, 0.5]
    sums, straggler = group_what_ifs(whole, [[0.1] * 3, [0.4] * 3])
    assert sums.gain.ratio == pytest.approx(1.25) and straggler.gain.ratio == pytest.approx(2.5)
    assert sums.is_inferred and "at most" in sums.remedy.lines[1]
    assert "Rank 1" in straggler.remedy.text and _order([sums, straggler])[0] is straggler
    sums, straggler = group_what_ifs(whole, [[0.4, 0.41, 0.4, ][:3], [0.41, 0.4, 0.405]])
    assert not straggler.is_worth() and sums.is_worth()


@pytest.mark.parametrize("larger, smaller, text, lines", [
    (0.4, 0.6, "buckets of 100 MiB: 1.25 times", ["bucket_cap_mb=100)", "at most: 2.00 times"]),
    (0.4, 0.3, "buckets of 6.25 MiB: 1.67 times", ["bucket_cap_mb=6.25)", "at most: 2.00 times"]),
    (0.5, 0.6, "less often", ["no_sync", "bucket_cap_mb=100: 1.00 times", "bucket_cap_mb=6.25: 0.83 times",
                                        "at most this"]),
])
def test_the_size_of_buckets_that_pays_by_known_times(larger, smaller, text, lines):
    sums, _ = group_what_ifs([0.5] * 3, [[0.25] * 3] * 2)
    found = with_sizes(sums, {0: [0.5] * 3, 100 * MIB: [larger] * 3, 25 * MIB // 4: [smaller] * 3})
    assert text in found.remedy.text and found.is_inferred == (found is sums)
    assert len(found.remedy.lines) == len(lines) and all(map(str.__contains__, found.remedy.lines, lines))


def test_processes_agree_on_changes_and_rates():
    own = [not_tried("compile", "too short"), WhatIf("tf32", Remedy("ours"), change=lambda: None)]
    theirs = [WhatIf("logging", Remedy("theirs")), not_tried("tf32", "no GPU")]
    found = GroupTurns.agreed_what_ifs(types.SimpleNamespace(gathered=lambda mine: [mine, theirs]), own)
    assert [(each.name, each.remedy.text, each.skipped) for each in found] == [
        ("compile", "", "too short"), ("tf32", "ours", "no GPU"), ("logging", "theirs", "")]
    assert found[1] is own[1]
    other = types.SimpleNamespace(gathered=lambda mine: [mine, Pace(3.0, 5.0, 0.5)])
    assert GroupTurns.agreed_pace(other, Pace(8.0, 4.0)) == Pace(5.0, 5.0, 0.5)
    assert GroupTurns.agreed_pace(other, Pace(8.0, 4.0), is_of_slowest=True) == Pace(4.0, 4.0, 0.5)
    several = [WhatIf("prefetch", Remedy(text), batches=lambda: []) for text in "ab"]
    both = types.SimpleNamespace(gathered=lambda mine: [mine, mine])
    assert [each.remedy.text for each in GroupTurns.agreed_what_ifs(both, several)] == ["a", "b"]
    with pytest.raises(Agreed, match="it failed on rank 1: no room"):
        GroupTurns.from_all(types.SimpleNamespace(gathered=lambda mine: [mine, (None, "no room")]), int)


def test_processes_make_the_same_changes_of_their_loaders(monkeypatch):
    """Those that each could make alone. They share the cores of their machine."""
    def find(now, machine, processes):
        asked.append((machine, processes))
        return loader_what_ifs(torch.utils.data.DataLoader(list(range(64)), batch_size=4, num_workers=now),
                               has_gpu=False, machine=machine)

    def from_all(offer):
        theirs = [(each.name, each.remedy.edit) for each in find(4, 2, 1) if each.name != "prefetch"]
        return [offer(), theirs]

    asked = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    group = types.SimpleNamespace(gathered=lambda mine: [mine, mine, ("another machine", set(range(5)))],
                                  from_all=from_all)
    found = GroupTurns.of_loader(group, lambda *machine: find(2, *machine))
    assert asked[-1] == (2, 2)
    numbers = {each.name: each.remedy.edit.arguments["num_workers"] for each in found if "workers" in each.name}
    assert numbers == {"workers-too-few": 8, "workers-too-many": 0}
    assert sorted(each.name for each in found) == sorted(
        [*numbers, "pin-memory", "batch-size", "prefetch", "decode-cache", "saturate-loader"])
    assert (found[-1].name, found[-1].skipped) == ("prefetch", "the loaders of the processes differ")
    starts = types.SimpleNamespace(from_all=lambda _: [(4, [1.0, 2.0], [0.5, 0.1]), (5, [3.0, 1.0], [0.1, 0.2])])
    assert GroupTurns.slowest_starts(starts, None) == (5, [3.0, 2.0], [0.5, 0.2])
    starts.from_all = lambda _: [None, (5, [3.0], [0.1])]
    assert GroupTurns.slowest_starts(starts, None) is None


PROGRAM = """
import sys, time, torch, saturate
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[1]), world_size=2)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = [each.clone() for each in model.parameters()]

def step(batch):
    optimizer.zero_grad()
    if dist.get_rank() == 1:
        time.sleep(0.03)
    model(batch).sum().backward()
    optimizer.step()

loader = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=2)
found = saturate.diagnose(step, loader, seconds=6)
assert "ddp-buckets" in str(found)
assert "straggler" not in str(saturate.diagnose(step, loader, seconds=1, skip=["straggler"]))
assert all(a.equal(b) for a, b in zip(before, model.parameters()))
print(found.causes[0].name, found.causes[0].remedy.text)
"""


# One message for each of 200 parameters.
MANY = """
import sys, torch, saturate
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[1]), world_size=2)

class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ParameterList([torch.ones(300) for _ in range(200)])

    def forward(self, batch):
        return batch.mean() * sum(each.sum() for each in self.parts)

model = torch.nn.parallel.DistributedDataParallel(Sum(), bucket_cap_mb=0.001, gradient_as_bucket_view=IS_VIEW)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
loader = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=2)

def step(batch):
    optimizer.zero_grad(set_to_none=not IS_VIEW)
    model(batch).backward()
    optimizer.step()

for batch in loader:
    step(batch)
"""
SIZED = """
own = model.reducer, model.logger, model.bucket_bytes_cap, vars(model).get("_bucket_config")
gradients = [each.grad.clone() for each in model.parameters()]
saturate.group_turns.TURN_S = 0.1
found = saturate.diagnose(step, loader, seconds=120, only=["ddp-buckets"])  # few are needed, unless others compute
assert own == (model.reducer, model.logger, model.bucket_bytes_cap, vars(model).get("_bucket_config"))
assert all(each.grad.equal(kept) for each, kept in zip(model.parameters(), gradients))
assert found.causes and "bucket_cap_mb=0.003998)" in str(found), found
"""
TRAINED = """
for batch in loader:
    step(batch)
print([each.tolist() for each in model.parameters()])
"""
HOOKED = """
from saturate.group_turns import sizes_to_try
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
assert sizes_to_try(torch, [model]) == [4192, 262]
model.register_comm_hook(None, default_hooks.allreduce_hook)
assert sizes_to_try(torch, [model]) == []
"""


PLAIN = """
import sys, torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[1]), world_size=2)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=2)
for _ in range(3):
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
print([each.tolist() for each in model.parameters()])
"""
IMPATIENT = """
import sys
import torch.distributed as dist
from saturate import group_turns, scripts
group_turns.RENDEZVOUS_S = 2
print(scripts.diagnose_script(sys.argv[1], sys.argv[2:]).refused)
"""


PLANTED = """
import contextlib, copy, datetime, io, json, sys, time, torch, saturate
import torch.distributed as dist
from saturate import group_turns, step_what_ifs
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[1]), world_size=2,
                        timeout=datetime.timedelta(seconds=60))
group_turns.TURN_S = 0.1
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters())
values = torch.rand(300_000)

class Slow:
    def __reduce__(self):
        time.sleep(0.02)
        return str, ("",)

def step(batch):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    FAULT

@contextlib.contextmanager
def refused():
    raise OSError("refused")
    yield

if "IS_REFUSED" == "True" and dist.get_rank() == 1:
    step_what_ifs.without_calls = lambda *_: refused
loader = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=2)
for batch in loader:
    step(batch)
before = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
found = saturate.diagnose(step, loader, seconds=30, only=["CAUSE"])
torch.testing.assert_close([model.state_dict(), optimizer.state_dict()], before, rtol=0, atol=0)
print(json.dumps([found.rate, found.held_rate, found.loader_rate, found.to_dict()["causes"], found.skipped]))
"""


LOADED = """
import datetime, json, os, sys, time, torch, saturate
import torch.distributed as dist
from saturate import group_turns, loader_what_ifs
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[1]), world_size=2,
                        timeout=datetime.timedelta(seconds=60))
group_turns.TURN_S, loader_what_ifs.FORKED_S = 0.1, 5
os.sched_getaffinity = lambda _: {0, 1}
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
seen = set()

class Sleeping(Dataset):
    given = 0  # by a worker

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        time.sleep(0.01)
        if get_worker_info():
            self.given += 1
            if dist.get_rank() == 1 and self.given > 36:
                FAULT
        return torch.full((4,), float(index))

def step(batch):
    seen.update(int(each) % 2 for each in batch[:, 0])
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()

data = Sleeping()
loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False), num_workers=WORKERS,
                    multiprocessing_context="fork" if WORKERS else None)
found = saturate.diagnose(step, loader, seconds=30, only=["CAUSE"])
assert seen == {dist.get_rank()}, seen  # its own samples
print(json.dumps([found.rate, found.held_rate, found.loader_rate, found.to_dict()["causes"], found.skipped]))
"""


# Ends the process without torch's own exit, which on a busy machine may abort, even without saturate.
END = """
dist.destroy_process_group()
sys.stdout.flush()
__import__("os")._exit(0)
"""


def ends_of(store, *commands):
    """(exit code, output, errors) of two processes."""
    if not torch.distributed.is_available():
        pytest.skip("this torch has no distributed")
    runs = [subprocess.Popen([sys.executable, *command, str(rank), store], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True) for rank, command in enumerate(commands)]
    said = [run.communicate(timeout=300) for run in runs]
    return [(run.returncode, *each) for run, each in zip(runs, said)]


def outputs_of(store, *commands):
    found = ends_of(store, *commands)
    for code, _, errors in found:
        assert code == 0, errors
    return [out for _, out, _ in found]


def test_two_processes_find_the_slow_one(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM + END)
    for out in outputs_of(tmp_path / "store", *[[tmp_path / "program.py"]] * 2):
        assert out.startswith("straggler Rank 1"), out


def found_by_two(tmp_path, text, **values):
    """The causes, and what was skipped: the same in both processes. `values`: of the names in the program's text."""
    program = tmp_path / "program.py"
    for name, value in values.items():
        text = text.replace(name, str(value))
    program.write_text(text + END)
    first, second = map(json.loads, outputs_of(tmp_path / "store", [program], [program]))
    assert first == second and all(rate > 0 for rate in first[:3])
    return first[3:]


@pytest.mark.parametrize("cause, workers", [("data-loading", 0), ("workers-too-few", 1)])
def test_two_processes_find_that_their_loaders_need_more_workers(tmp_path, cause, workers):
    """They sleep, so that cores do not matter."""
    (found,), _ = found_by_two(tmp_path, LOADED, CAUSE=cause, WORKERS=workers, FAULT="pass")
    assert found["name"] == cause and found["low"] > 1.2 and found["edit"]["arguments"]["num_workers"] > workers


@pytest.mark.parametrize("fault, why", [
    ("raise OSError", "OSError"), ("os.kill(os.getpid(), 9)", "DataLoader worker")])
def test_workers_that_fail_in_one_process_do_not_hold_up_the_other(tmp_path, fault, why):
    _, ((name, skipped),) = found_by_two(tmp_path, LOADED, CAUSE="data-loading", WORKERS=0, FAULT=fault)
    assert name == "data-loading" and skipped.startswith(f"it failed on rank 1: {why}")


@pytest.mark.parametrize("cause, fault", [
    ("item-in-loop", "values.tolist()"),
    ("checkpoint-saves", "dist.get_rank() or torch.save(Slow(), io.BytesIO())"),  # the others wait for rank 0
])
def test_two_processes_find_what_the_loop_does(tmp_path, cause, fault):
    (found,), _ = found_by_two(tmp_path, PLANTED, CAUSE=cause, FAULT=fault, IS_REFUSED=False)
    assert found["name"] == cause and found["low"] > 1.2


def test_what_one_process_cannot_change_is_skipped_in_all(tmp_path):
    found = found_by_two(tmp_path, PLANTED, CAUSE="item-in-loop", FAULT="values.tolist()", IS_REFUSED=True)
    assert found == [[], [["item-in-loop", "it failed on rank 1: refused"]]]


@pytest.mark.parametrize("is_view", [False, True])
def test_larger_buckets_are_found_and_the_training_goes_on_as_before(tmp_path, is_view):
    plain, measured = tmp_path / "plain.py", tmp_path / "measured.py"
    begin = MANY.replace("IS_VIEW", str(is_view))
    plain.write_text(begin + TRAINED + END)
    measured.write_text(begin + SIZED + TRAINED + HOOKED + END)
    diagnosed = outputs_of(tmp_path / "diagnosed", [measured], [measured])
    assert diagnosed == outputs_of(tmp_path / "plain", [plain], [plain]) and diagnosed[0] == diagnosed[1]


def test_a_process_whose_others_are_not_diagnosed_trains_as_they_do(tmp_path):
    """Lightning starts them with the script alone."""
    program, measured = tmp_path / "program.py", tmp_path / "measured.py"
    program.write_text(PLAIN + END)
    measured.write_text(PLAIN)
    plain = outputs_of(tmp_path / "plain", [program], [program])
    diagnosed, other = outputs_of(tmp_path / "store", ["-c", IMPATIENT + END, measured], [program])
    assert [diagnosed.splitlines()[0], other.strip()] == [each.strip() for each in plain]
    assert "the other processes are not diagnosed" in diagnosed.splitlines()[1]


def test_one_of_several_processes_says_that_they_cannot_be_measured(tmp_path):
    """And each one whose others are not diagnosed."""
    program, measured, undivided = (tmp_path / f"{name}.py" for name in ("program", "measured", "undivided"))
    program.write_text(PLAIN + END)
    measured.write_text(PLAIN)
    undivided.write_text(PLAIN.replace("parallel.DistributedDataParallel(torch.nn.Linear(4, 2))", "Linear(4, 2)"))
    said = ["-c", IMPATIENT.replace("print(", "sys.stderr = sys.stdout\nprint(") + END]
    all_of_them = outputs_of(tmp_path / "all", [*said, undivided], [*said, undivided])
    alone = outputs_of(tmp_path / "alone", [program], [*said, measured])
    assert [out.count("and the script goes on as it is") for out in (*all_of_them, *alone)] == [1, 0, 0, 1]


@pytest.mark.parametrize("rank", [0, 1])
def test_one_of_several_processes_tells_of_another_loader(capsys, rank):
    from saturate.scripts import ScriptLoop

    loop = ScriptLoop(torch, "train.py")
    loop.torch = types.SimpleNamespace(distributed=types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 2, get_rank=lambda: rank))
    loop._tell_of_another()
    assert ("another loader" in capsys.readouterr().err) == (rank == 0)


def test_measure_is_for_one_process():
    from saturate.measuring import MeasuredLoop

    loop = MeasuredLoop(torch, "train.py", steps=4)
    loop.torch = types.SimpleNamespace(distributed=types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 2))
    with pytest.raises(saturate.Error, match="several processes"):
        next(loop.begin())
