"""Several processes' parts of a batch, and resuming with another number of them. Needs numpy and pytest, torch for some
tests."""

import itertools
import os
import subprocess
import sys
import warnings

import pytest

import saturate
from sample_sets import Numbered

SIZE = 22
LAUNCHERS = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
             "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK",
             "PMI_SIZE"]


def make(rank, world, **arguments):
    return saturate.Loader(Numbered(SIZE), **{"batch": 8, "size": 6, "threads": 2, "rank": rank, "world": world,
                                              **arguments})


def labels_of(batches):
    return [labels.tolist() for _, labels in batches]


def ranks_of(world, **arguments):
    return [labels_of(make(rank, world, **arguments)) for rank in range(world)]


@pytest.mark.parametrize("world", range(1, 9))
def test_ranks_together_have_the_batches_of_one(world):
    whole = labels_of(make(0, 1))
    ranks = ranks_of(world, uneven="join")
    assert all(len(batches) == len(whole) for batches in ranks)
    for place, batch in enumerate(whole):
        assert [batches[place] for batches in ranks] == [batch[rank::world] for rank in range(world)]


@pytest.mark.parametrize("world", [2, 3, 4, 8])
@pytest.mark.parametrize("uneven", ["pad", "drop"])
def test_parts_are_those_of_distributed_sampler(world, uneven):
    batch = 2 * world
    order = sum(labels_of(make(0, 1, batch=batch)), [])
    total = -(-SIZE // world) * world if uneven == "pad" else SIZE // world * world
    order = list(itertools.islice(itertools.cycle(order), total))
    for rank in range(world):
        own = labels_of(make(rank, world, batch=batch, uneven=uneven))
        assert sum(own, []) == order[rank::world]
        assert [len(labels) for labels in own[:-1]] == [2] * (len(own) - 1)


def test_they_are_those_of_torch_itself():
    data = pytest.importorskip("torch.utils.data")
    for drop in (False, True):
        for rank in range(4):
            sampler = data.DistributedSampler(range(SIZE), num_replicas=4, rank=rank, shuffle=False, drop_last=drop)
            own = make(rank, 4, train=False, uneven="drop" if drop else "pad")
            assert sum(labels_of(own), []) == list(sampler)


def test_batch_size_is_that_of_one_rank():
    loader = make(1, 2, batch=None, batch_size=4)
    assert loader.batch_size == 4 and loader.state_dict()["batch_size"] == 8
    assert labels_of(loader) == ranks_of(2)[1]
    assert [make(rank, 3).batch_size for rank in range(3)] == [3, 3, 2]


@pytest.mark.parametrize("before, after", [(1, 2), (2, 1), (2, 3), (4, 1)])
def test_a_state_continues_at_another_world_size(before, after):
    alone = make(0, 1)
    whole, second = labels_of(alone), labels_of(alone)
    for batches in range(len(whole) + 1):
        states = []
        for rank in range(before):
            loader = make(rank, before)
            iterator = iter(loader)
            for _ in range(batches):
                next(iterator)
            states.append(loader.state_dict())
        assert all(state == states[0] for state in states)
        rest = []
        for rank in range(after):
            loader = make(rank, after, uneven="join")
            loader.load_state_dict(states[0])
            rest.append(labels_of(loader))
        expected = whole[batches:] or second  # after the last batch comes the next epoch
        assert rest == [[batch[rank::after] for batch in expected] for rank in range(after)]


def test_ranks_draw_the_augmentation_of_one():
    arguments = {"crop": "random_resized", "options": {"augment.hue": 0.2}}
    whole = [(images.copy(), labels) for images, labels in make(0, 1, **arguments)]
    for rank in range(2):
        for (images, _), (expected, labels) in zip(make(rank, 2, uneven="join", **arguments), whole):
            assert (images == expected[rank::2]).all()


@pytest.fixture
def launched(monkeypatch):
    def launch(**variables):
        for name in LAUNCHERS:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    launch()
    return launch


@pytest.mark.parametrize("variables", [
    {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "MASTER_ADDR": "a", "MASTER_PORT": 1},
    {"OMPI_COMM_WORLD_RANK": 1, "OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_LOCAL_RANK": 0},
    {"SLURM_PROCID": 1, "SLURM_STEP_NUM_TASKS": 2, "SLURM_LOCALID": 1}, {"RANK": 1, "WORLD_SIZE": 2}])
def test_launchers_say_rank_and_world(launched, variables):
    launched(**variables)
    loader = make(None, None)
    assert (loader.rank, loader.world) == (1, 2)
    assert labels_of(loader) == ranks_of(2)[1]
    assert "rank 1 of 2" in repr(loader)
    loader._arguments["source"] = "shard:https://host/x.shard?X-Amz-Signature=hidden"
    assert "https://host/x.shard" in repr(loader) and "hidden" not in repr(loader)
    alone = make(0, 1)
    assert (alone.rank, alone.world) == (0, 1)


def test_a_batch_script_of_slurm_is_one_process(launched):
    launched(SLURM_PROCID=0)
    assert make(None, None).world == 1


def test_half_of_the_variables_are_an_error(launched):
    launched(RANK=1)
    with pytest.raises(saturate.Error, match="WORLD_SIZE is missing"):
        make(None, None)


def test_a_watch_that_writes_nothing_needs_no_rank(launched, tmp_path):
    launched(WORLD_SIZE=1)
    with saturate.watch() as watch:
        watch.step()
    with pytest.raises(saturate.Error, match="RANK is missing"):
        saturate.watch(out=tmp_path / "run")


LIGHTNING = {"WORLD_SIZE": 2, "LOCAL_RANK": 1, "NODE_RANK": 0, "MASTER_ADDR": "a", "MASTER_PORT": 1}


def test_ranks_that_lightning_has_not_said_yet(launched, tmp_path):
    launched(**LIGHTNING)
    loader = make(None, None)
    assert (loader.rank, loader.world) == (0, 1)
    with saturate.watch(out=tmp_path / "run"):
        assert not (tmp_path / "run").exists()  # the other process writes
    launched(**{**LIGHTNING, "LOCAL_RANK": 0})
    with saturate.watch(out=tmp_path / "run"):
        assert (tmp_path / "run").exists()


def grouped(monkeypatch, *found):
    """As if torch.distributed were initialised now."""
    monkeypatch.setattr("saturate.loader.group_world", lambda: found)


def test_a_group_that_comes_later(monkeypatch, launched):
    whole, halves = make(0, 1), make(1, 2)
    first, half, second_half = labels_of(whole), labels_of(halves), labels_of(halves)
    one = make(None, None, batch=None, batch_size=4)
    given, other = make(0, 1), make(None, None)
    next(iter(other))
    begun = iter(make(None, None))
    next(begun)
    grouped(monkeypatch, 1, 2)
    assert (one.rank, one.world, one.batch_size, len(one), len(given)) == (1, 2, 4, 3, 3)
    assert labels_of(one) == half and labels_of(given) == first
    assert labels_of(other) == second_half
    assert labels_of(begun) == first[1:]  # goes on as it was


@pytest.mark.parametrize("batch", [{"batch": 8}, {"batch": None, "batch_size": 8}])
def test_a_state_that_was_loaded_before_the_group(monkeypatch, launched, batch):
    loader = make(None, None, **batch)
    loader.load_state_dict({"epoch": 0, "batch": 1})
    grouped(monkeypatch, 1, 2)
    if "batch_size" in batch:
        with pytest.raises(saturate.Error, match="the state was loaded before"):
            next(iter(loader))
    else:
        assert labels_of(loader) == ranks_of(2)[1][1:]


def test_a_watched_loader_that_is_not_divided_is_told_once(monkeypatch):
    data = pytest.importorskip("torch.utils.data")
    samples, found = list(range(8)), []
    for world in (1, 2):
        monkeypatch.setattr("saturate.world.group_world", lambda world=world: (0, world))
        for arguments in ({}, {"shuffle": True}, {"batch_sampler": [[0], [1]]},
                          {"sampler": data.DistributedSampler(samples, 2, 0)}):
            with saturate.watch(data.DataLoader(samples, **arguments)) as watch, warnings.catch_warnings(
                    record=True) as told:
                warnings.simplefilter("always")
                for _ in range(2):
                    list(watch)
            found.append(len([each for each in told if "does not divide" in str(each.message)]))
    assert found == [0, 0, 0, 0, 1, 1, 0, 0]


DISTRIBUTED = """
import sys
import torch.distributed as dist
import saturate
sys.path.insert(0, sys.argv[1])
from sample_sets import Numbered
def make():
    return saturate.Loader(Numbered(22), batch=8, size=6, to="torch")
loader = make() if sys.argv[3] == "later" else None
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[4]), world_size=2)
print([labels.tolist() for _, labels in loader or make()])
"""


@pytest.mark.parametrize("order", ["earlier", "later"])
def test_torch_distributed_says_them(tmp_path, order):
    pytest.importorskip("torch")
    command = [sys.executable, "-c", DISTRIBUTED, os.path.dirname(__file__), str(tmp_path / "store"), order]
    processes = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    found = [process.communicate(timeout=120)[0] for process in processes]
    assert found == [f"{batches}\n" for batches in ranks_of(2)]
