"""Several processes under DistributedDataParallel: the cost of their all-reduces, and a straggler."""

from __future__ import annotations

import contextlib
import datetime
import itertools
from typing import Any, Dict, Generator, Iterator, List, Optional, Sequence

from ._core import Error
from .turns import Arm, Pace, Remedy, Turns, WhatIf

STEPS, MOST_STEPS = 3, 50       # of a turn
ROUNDS, MOST_ROUNDS = 3, 12
TURN_S = 0.5
MEET_S = 60.0                   # that a process waits for the others

_MEETINGS = itertools.count()


def world_of(torch: Any) -> int:
    group = torch.distributed
    return int(group.get_world_size()) if group.is_available() and group.is_initialized() else 1


def check_group(torch: Any, groups: Sequence[Any]) -> None:
    if world_of(torch) > 1 and not groups:
        raise Error("several processes, but no DistributedDataParallel module (saturate.diagnose). "
                    "Diagnose one process alone")


class GroupTurns:
    """Interleaves the loop and its steps without all-reduce. Every process makes as many steps: rank 0 says how many.
    Without all-reduce nobody waits, so that a step takes a process's own time."""

    def __init__(self, torch: Any, turns: Turns, groups: Sequence[Any], arm: Arm) -> None:
        check_group(torch, groups)
        self._group, self._turns, self._modules, self._arm = torch.distributed, turns, groups, arm
        device = next(groups[0].parameters()).device
        # Collectives of objects use the current GPU, which a script need not have set.
        self._on_device: Any = contextlib.nullcontext
        if device.type == "cuda":
            self._on_device = lambda: torch.cuda.device(device)
        self.pace: Optional[Pace] = None
        self._whole: List[float] = []          # seconds of a step, by round
        self._own: List[List[float]] = []      # the same without all-reduce, by rank and round

    @contextlib.contextmanager
    def without_sums(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for module in self._modules:
                stack.enter_context(module.no_sync())
            yield

    def _meet(self) -> None:
        """The others may run the script alone, as those that Lightning starts: their collectives would not match."""
        store, number = self._group.distributed_c10d._get_default_store(), next(_MEETINGS)
        keys = [f"saturate/{number}/{rank}" for rank in range(self._group.get_world_size())]
        store.set(keys[self._group.get_rank()], "1")
        try:
            store.wait(keys, datetime.timedelta(seconds=MEET_S))
        except RuntimeError:
            raise Error("the other processes are not diagnosed. Call saturate.diagnose in all of them, or start "
                        "all with torchrun --nproc-per-node N -m saturate diagnose SCRIPT") from None

    def _agreed(self, value: int) -> int:
        values = [value]
        with self._on_device():
            self._group.broadcast_object_list(values, 0)
        return int(values[0])

    def run(self, seconds: float) -> Generator[Any, None, None]:
        self._meet()
        pilot = yield from self._turns.fixed(self._arm, contextlib.nullcontext, STEPS)
        step_s = 1 / pilot.steps_per_s
        steps = self._agreed(int(min(MOST_STEPS, max(STEPS, TURN_S / step_s))))
        rounds = self._agreed(int(min(MOST_ROUNDS, max(ROUNDS, seconds / (2 * steps * step_s)))))
        own, paces = [], []
        for number in range(rounds):
            found: Dict[bool, Pace] = {}
            for is_changed in ((False, True) if number % 2 == 0 else (True, False)):
                change = self.without_sums if is_changed else contextlib.nullcontext
                with self._on_device():
                    self._group.barrier()
                found[is_changed] = yield from self._turns.fixed(self._arm, change, steps)
            paces.append(found[False])
            own.append(1 / found[True].steps_per_s)
        self.pace = sorted(paces, key=lambda pace: pace.steps_per_s)[len(paces) // 2]
        gathered: List[Any] = [None] * self._group.get_world_size()
        with self._on_device():
            self._group.all_gather_object(gathered, ([1 / pace.steps_per_s for pace in paces], own))
        # The least: others have waited for a rank that was interrupted, as by an evaluation.
        self._whole = [min(each) for each in zip(*(whole for whole, _ in gathered))]
        self._own = [own for _, own in gathered]

    def what_ifs(self) -> List[WhatIf]:
        if not self._own:
            return []
        return group_what_ifs(self._whole, self._own)


def group_what_ifs(whole: Sequence[float], own: Sequence[Sequence[float]]) -> List[WhatIf]:
    """From seconds of a step: of the loop by round, and of each rank's own work by round."""
    means = [sum(each) / len(each) for each in own]
    slowest = means.index(max(means))
    sums = WhatIf("ddp-buckets", Remedy("Send gradients in larger or fewer messages", (
        "DistributedDataParallel(model, bucket_cap_mb=100, gradient_as_bucket_view=True)",
        "# inferred from steps without all-reduce: at most this")), is_inferred=True)
    straggler = WhatIf("straggler", Remedy(f"Rank {slowest} works {max(means) * 1e3:.1f} ms a step, longer than the "
                                           "others: look at its input and its machine"), is_inferred=True)
    for number, step_s in enumerate(whole):
        each = [rank[number] for rank in own]
        others = [seconds for rank, seconds in enumerate(each) if rank != slowest]
        excess = each[slowest] - max(others)  # changes its sign from round to round if it is noise
        sums.before.append(1 / step_s)
        sums.after.append(1 / max(each))
        straggler.before.append(1 / step_s)
        straggler.after.append(1 / max(step_s - excess, max(others)))
    for what_if in (sums, straggler):
        what_if.conclude()
    return [sums, straggler]
