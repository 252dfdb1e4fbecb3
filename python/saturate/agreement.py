"""How several processes agree, so that they measure the same changes."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from .loader_what_ifs import OF_DATALOADER, Starts
from .turns import Pace, WhatIf, first_line, not_tried


class Agreed(Exception):
    """A failure that all ranks know of, so that they go on together."""


def _keyed(what_ifs: Sequence[WhatIf]) -> Dict[Tuple[str, int], WhatIf]:
    """By name, and by the place among those of that name: several values of one setting."""
    names = [each.name for each in what_ifs]
    return {(each.name, names[:number].count(each.name)): each for number, each in enumerate(what_ifs)}


class Agreement:
    """Lets the ranks of torch.distributed's group come to the same result. `device`: the model's."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._group = torch.distributed
        # Collectives of objects use the current GPU, which a script need not have set.
        self._on_device: Any = contextlib.nullcontext
        if device.type == "cuda":
            self._on_device = lambda: torch.cuda.device(device)

    def agreed(self, value: int) -> int:
        """Returns rank 0's value on all ranks."""
        values = [value]
        with self._on_device():
            self._group.broadcast_object_list(values, 0)
        return int(values[0])

    def gathered(self, value: Any) -> List[Any]:
        """Returns the values of all ranks, by rank."""
        values: List[Any] = [None] * self._group.get_world_size()
        with self._on_device():
            self._group.all_gather_object(values, value)
        return values

    def agreed_pace(self, pace: Pace, is_of_slowest: bool = False) -> Pace:
        """The same pace on all ranks: the steps/s of the fastest one (`is_of_slowest`: of the slowest), also as
        samples/s. Others are slower if they waited for a rank that was interrupted, or whose saves do not count."""
        paces = self.gathered(pace)
        rate = (min if is_of_slowest else max)(each.steps_per_s for each in paces)
        return Pace(rate, rate, min(each.made for each in paces))

    def agreed_what_ifs(self, own: Sequence[WhatIf]) -> List[WhatIf]:
        """Returns the what-ifs of all ranks, in the same order on each. A rank that lacks one runs unchanged; if one
        rank skips it, all do."""
        mine = _keyed(own)
        by_rank = self.gathered([dataclasses.replace(each, change=contextlib.nullcontext, batches=None)
                                 for each in own])
        offered: Dict[Tuple[str, int], List[WhatIf]] = {}
        for key, each in itertools.chain.from_iterable(_keyed(theirs).items() for theirs in by_rank):
            offered.setdefault(key, []).append(each)
        found = []
        for key, alike in offered.items():
            what_if = mine.get(key, alike[0])
            what_if.remedy = alike[0].remedy
            what_if.skipped = next((each.skipped for each in alike if each.skipped), "")
            found.append(what_if)
        return found

    def from_all(self, find: Callable[[], Any]) -> List[Any]:
        """Returns what `find` returns on each rank. Raises Agreed on all if it fails on one."""
        value: Any = None
        why = ""
        try:
            value = find()
        except Exception as failure:
            why = first_line(failure)
        by_rank = self.gathered((value, why))
        for rank, (_, why) in enumerate(by_rank):
            if why:
                raise Agreed(f"it failed on rank {rank}: {why}")
        return [value for value, _ in by_rank]

    def of_loader(self, find: Callable[[int, int], List[WhatIf]]) -> List[WhatIf]:
        """The what-ifs of the loader that all ranks have. `find` returns this rank's, given a process's share of its
        machine's cores (the smallest on any machine) and the number of processes on this machine."""
        machines: Dict[str, List[Set[int]]] = {}
        for name, cores in self.gathered((os.uname().nodename, os.sched_getaffinity(0))):
            machines.setdefault(name, []).append(cores)
        share = max(1, min(len(set.union(*each)) // len(each) for each in machines.values()))
        found: List[WhatIf] = []

        def offer() -> List[Any]:
            found.extend(find(share, len(machines[os.uname().nodename])))
            return [(each.name, each.remedy.edit) for each in found]

        try:
            by_rank = self.from_all(offer)
        except Agreed as failure:
            return [not_tried(name, str(failure)) for name in ("data-loading", *OF_DATALOADER)]
        shared = [each for each in by_rank[0] if all(each in theirs for theirs in by_rank)]
        known = [name for name, _ in shared]
        lacking = dict.fromkeys(name for theirs in by_rank for name, _ in theirs if name not in known)
        return [*(each for each in found if (each.name, each.remedy.edit) in shared),
                *(not_tried(name, "the loaders of the processes differ") for name in lacking)]

    def slowest_starts(self, find: Callable[[], Optional[Starts]]) -> Optional[Starts]:
        """epoch_starts() of the rank that takes longest, by round."""
        by_rank = self.from_all(find)
        if None in by_rank:
            return None
        steps, now, stays = zip(*by_rank)
        return max(steps), [max(each) for each in zip(*now)], [max(each) for each in zip(*stays)]
