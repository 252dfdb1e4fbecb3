"""Which part of each batch this process gets."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any, Optional, Tuple

from . import _core
from .arguments import whole


def group_world() -> Optional[Tuple[int, int]]:
    """(rank, world size) of torch.distributed; None: it is not initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None


def _is_rank_to_come() -> bool:
    """Lightning starts processes with torchrun's variables except RANK, and makes their group later."""
    others = ("WORLD_SIZE", "LOCAL_RANK", "NODE_RANK")
    return not os.environ.get("RANK") and all(os.environ.get(name) for name in others)


def found_world() -> Tuple[int, int]:
    """(rank, world size) of torch.distributed if it is initialised, else as the launcher's variables say; (0, 1) if its
    processes get their ranks later."""
    found = group_world()
    if found is not None:
        return found
    if _is_rank_to_come():
        return 0, 1
    rank, world, _ = _core.launched_world()
    return rank, world


def is_rank_0() -> bool:
    """Also in processes that get their ranks later."""
    if group_world() is None and _is_rank_to_come():
        return os.environ["LOCAL_RANK"] == os.environ["NODE_RANK"] == "0"
    return found_world()[0] == 0


def resolved_world(rank: Optional[int], world: Optional[int]) -> Tuple[int, int]:
    """The arguments, which are given together, or what is found."""
    if (rank is None) != (world is None):
        raise _core.Error("only one of rank and world is given (saturate.Loader). Give both, or neither: "
                          "then torch.distributed or the launcher's variables say them")
    if rank is None or world is None:
        return found_world()
    rank, world = whole("rank", rank), whole("world", world)
    if not 0 <= rank < world:
        raise _core.Error(f"rank {rank} is not one of {world} processes (rank). Give a rank from 0 to world - 1")
    return rank, world


def warn_if_undivided(loader: Any) -> None:
    """If each process reads all samples of a DataLoader that is watched. A framework divides only those that it knows,
    and does not know a Watch."""
    data, group = sys.modules.get("torch.utils.data"), group_world()
    if data is None or group is None or group[0] != 0 or group[1] == 1 or type(loader) is not data.DataLoader:
        return
    is_whole = type(loader.sampler) in (data.SequentialSampler, data.RandomSampler)
    if is_whole and type(loader.batch_sampler) is data.BatchSampler:
        warnings.warn(f"the DataLoader's {type(loader.sampler).__name__} does not divide the samples among the "
                      f"{group[1]} processes (saturate.watch). If a framework is to do that, watch the loader that it "
                      "has prepared, or write `with saturate.watch():` around the framework's loop")
