"""Which part of each batch this process gets."""

from __future__ import annotations

import sys
from typing import Optional, Tuple

from . import _core


def found_world() -> Tuple[int, int]:
    """(rank, world size) of torch.distributed if it is initialised, else as the launcher's variables say."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, world, _ = _core.launched_world()
    return rank, world


def resolved_world(rank: Optional[int], world: Optional[int]) -> Tuple[int, int]:
    """The arguments, which are given together, or what is found."""
    if (rank is None) != (world is None):
        raise _core.Error("only one of rank and world is given (saturate.Loader). Give both, or neither: "
                          "then torch.distributed or the launcher's variables say them")
    if rank is None or world is None:
        return found_world()
    if not 0 <= rank < world:
        raise _core.Error(f"rank {rank} is not one of {world} processes (rank). Give a rank from 0 to world - 1")
    return rank, world
