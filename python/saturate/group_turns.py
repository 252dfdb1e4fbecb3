"""Several processes under DistributedDataParallel: the cost of their all-reduces, other sizes of buckets, a straggler;
and the turns of other changes."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import time
from typing import Any, Callable, Dict, Generator, Iterable, Iterator, List, Optional, Sequence, Tuple

from ._core import Error
from .agreement import Agreement
from .patches import replaced
from .turns import Arm, Change, Gain, Pace, Remedy, Steps, Turns, WhatIf, first_line

STEPS, MOST_STEPS = 3, 50       # of a turn
ROUNDS, MOST_ROUNDS = 3, 12
SETTLING, MOST_SETTLING = 3, 20  # steps with another size of buckets before it is measured
TURN_S = 0.5
MOST_CYCLE_S = 5.0              # of a step for each worker
MOST_REST_S = 5.0               # in which a changed loader's workers fill their queues
RENDEZVOUS_S = 60.0             # that a process waits for the others
SCALE = 4                       # times larger and smaller buckets are tried
MIB = 1 << 20

# Attributes that belong to a module's reducer, as far as this torch has them.
OF_REDUCER = ("reducer", "logger", "bucket_bytes_cap", "bucket_bytes_cap_default", "_bucket_config",
              "_has_rebuilt_buckets")
# If one of these is set, the reducer has state that a second one lacks, or a second one would do something else.
SPECIAL = ("find_unused_parameters", "static_graph", "mixed_precision", "_delay_all_reduce_params",
           "_use_python_reducer", "bucket_bytes_cap_list", "_require_manual_backward_finalization")

LESS_OFTEN = "with model.no_sync():  # accumulate gradients over more batches: use it for each of them but the last"

AT_MOST = "# the gain is inferred from steps without all-reduce, and is at most this"

_RENDEZVOUS = itertools.count()

Epoch = Tuple[Optional[int], bool]  # a loader's batches, None if unknown; whether the script counts them


class Alone(Error):
    """The other processes are not diagnosed."""


def world_of(torch: Any) -> int:
    group = torch.distributed
    return int(group.get_world_size()) if group.is_available() and group.is_initialized() else 1


def is_spokesman(torch: Any) -> bool:
    """Whether this process says what all processes find."""
    return world_of(torch) == 1 or torch.distributed.get_rank() == 0


def check_group(torch: Any, groups: Sequence[Any]) -> None:
    if world_of(torch) > 1 and not groups:
        raise Error("several processes, but no DistributedDataParallel module (saturate.diagnose). "
                    "Diagnose one process alone")


@contextlib.contextmanager
def other_buckets(module: Any, size: int) -> Iterator[None]:
    """Meanwhile a second reducer all-reduces the module's gradients, in buckets of `size` bytes. The first one keeps
    its hooks; they do nothing, as within no_sync(), since no forward prepares that reducer."""
    kept = {name: vars(module)[name] for name in OF_REDUCER if name in vars(module)}
    try:
        module.bucket_bytes_cap, module.bucket_bytes_cap_default = size, False
        module._has_rebuilt_buckets = False
        if "_bucket_config" in kept:
            module._bucket_config = dataclasses.replace(kept["_bucket_config"], bucket_bytes_cap=size,
                                                        first_bucket_bytes_cap=size)
        parameters, are_sparse = module._build_params_for_reducer()
        module._ddp_init_helper(parameters, are_sparse, module._build_debug_param_to_name_mapping(parameters), False)
        yield
    finally:
        tried = module.reducer
        vars(module).update(kept)
        if tried is not module.reducer:
            tried._remove_autograd_hooks()


def _gradient_bytes(module: Any) -> int:
    return sum(each.numel() * each.element_size() for each in module.parameters() if each.requires_grad)


def sizes_to_try(torch: Any, modules: Sequence[Any]) -> List[int]:
    """Sizes of buckets in bytes, from that of the module with the most gradients. [] if one bucket has all gradients
    and they are few, or if a second reducer cannot be made; to find out, it makes one, which does not communicate."""
    largest, device = max(modules, key=_gradient_bytes), next(modules[0].parameters()).device
    needed = 2 * sum(map(_gradient_bytes, modules))
    if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < needed:
        return []
    try:
        whole, cap = _gradient_bytes(largest), int(largest.bucket_bytes_cap)
        first = MIB if getattr(largest, "bucket_bytes_cap_default", True) else cap
        sizes = [SCALE * (cap or MIB)] if whole > first else []
        sizes += [min(cap, whole) // SCALE] if whole > min(cap, MIB) and cap >= SCALE else []
        for module in modules if sizes else ():
            is_special = any(vars(module).get(name) for name in SPECIAL) or module._join_config.enable
            if is_special or module._get_ddp_logging_data().get("comm_hook"):  # a hook cannot be registered again
                return []
            with other_buckets(module, sizes[0]):
                pass
        return sizes
    except Exception:  # another torch may build its reducers otherwise
        return []


class GroupArm(Arm):
    """The batches of a what-if. If they fail on this rank, the turn goes on with those of `spare`, since the others
    wait for its steps; check() raises afterwards."""

    def __init__(self, batches: Callable[[], Iterable[Any]], spare: Arm) -> None:
        from torch.utils.data._utils import signal_handling

        super().__init__(batches)
        self._spare, self._failure, self._stack = spare, "", contextlib.ExitStack()
        # torch raises for a killed worker at once, also in the middle of a step; next() finds it too.
        self._stack.enter_context(replaced(signal_handling, "_error_if_any_worker_fails", lambda: None))

    def next(self) -> Any:
        if not self._failure:
            try:
                return super().next()
            except Exception as failure:
                self._failure = first_line(failure)
        return self._spare.next()

    def check(self) -> None:
        if self._failure:
            raise Error(self._failure)

    def close(self) -> None:
        with self._stack:
            super().close()


class GroupTurns(Agreement):
    """Interleaves the loop and its steps without all-reduce. Every process makes the same number of steps, as rank 0
    says. Without all-reduce nobody waits, so that a step takes a process's own time. `looking`: the change in turns of
    the loop as it is. `epochs`: returns this rank's, one for each loader."""

    def __init__(self, torch: Any, turns: Turns, groups: Sequence[Any], arm: Arm,
                 looking: Change = contextlib.nullcontext,
                 epochs: Callable[[], List[Epoch]] = lambda: [(None, False)]) -> None:
        check_group(torch, groups)
        super().__init__(torch, next(groups[0].parameters()).device)
        self._torch, self._looking, self._own_epochs = torch, looking, epochs
        self._epochs: List[Epoch] = []  # the same on all ranks
        self._store = self._group.distributed_c10d._get_default_store()
        self._key = f"saturate/{next(_RENDEZVOUS)}"
        self.rank = int(self._group.get_rank())
        self.is_first_to_fail = False
        self.steps = STEPS  # of a turn
        self.most_workers = MOST_STEPS  # for each of which a turn may have a step
        self._turns, self._modules, self._arm = turns, groups, arm
        self.pace: Optional[Pace] = None
        self.results: List[WhatIf] = []

    @contextlib.contextmanager
    def without_sums(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for module in self._modules:
                stack.enter_context(module.no_sync())
            yield

    def _rendezvous(self) -> None:
        """The others may run the script alone, as those that Lightning starts: their collectives would not match."""
        keys = [f"{self._key}/{rank}" for rank in range(self._group.get_world_size())]
        self._store.set(keys[self.rank], "1")
        found = "all"
        try:
            self._store.wait(keys, datetime.timedelta(seconds=RENDEZVOUS_S))
        except RuntimeError:
            found = "some"
        # The first to decide does so for all: a rank that comes too late leaves too.
        if self._store.compare_set(f"{self._key}/found", "", found) != b"all":
            raise Alone("the other processes are not diagnosed. Call saturate.diagnose in all of them, or start "
                        "all with torchrun --nproc-per-node N -m saturate diagnose SCRIPT")

    def failed(self) -> None:
        """The script failed. Another rank may have failed before, of which this one's failure is a consequence."""
        with contextlib.suppress(RuntimeError):  # the process that keeps the store may have ended
            self.is_first_to_fail = self._store.add(f"{self._key}/failed", 1) == 1

    def _agree_on_epochs(self) -> None:
        self._epochs = []
        for of_ranks in zip(*self.gathered(self._own_epochs())):
            lengths, are_counted = zip(*of_ranks)
            self._epochs.append((min((each for each in lengths if each is not None), default=None), any(are_counted)))

    def is_over(self, loader: int, given: int, is_stepping: bool) -> bool:
        """Whether an epoch of a script's loop ends after as many batches, the same on all ranks: at its end they may
        communicate. `loader`: its place in `epochs`. `is_stepping`: the loop makes steps between them."""
        length, is_counted = self._epochs[min(loader, len(self._epochs) - 1)]
        return (is_counted or not is_stepping) and length is not None and given >= length

    def _begin(self) -> None:
        """All ranks begin a turn together."""
        self._agree_on_epochs()
        with self._on_device():
            self._group.barrier()

    def _agree_on(self, arm: Arm) -> None:
        arm.ahead, arm.workers = (max(each) for each in zip(*self.gathered((arm.ahead, arm.workers))))

    def _steps_of(self, arm: Arm) -> int:
        """A turn has the same number of steps for each worker, since all may deliver their batches at the same time;
        unless that takes too long."""
        workers = arm.workers if 0 < arm.workers <= self.most_workers else 1
        return -(-self.steps // workers) * workers

    def loading(self, arm: Arm) -> Pace:
        """The loader alone, on its slowest rank. As many batches on all ranks: an iteration may communicate."""
        self._agree_on(arm)
        pace = self.agreed_pace(self._turns.loading(arm, float("inf"), self._steps_of(arm)), is_of_slowest=True)
        arm.limit = pace.steps_per_s
        return pace

    def _rest(self, arm: Arm) -> None:
        """Until its workers have filled their queues, so that they do not load during a turn of the loop as it is."""
        time.sleep(min(MOST_REST_S, arm.ahead / arm.limit))

    def open(self, what_if: WhatIf, arm: Arm) -> None:
        """Before the first turn. Raises Agreed if a rank cannot make the change, so that all skip it."""
        def begin() -> None:
            with what_if.change():
                pass
            if isinstance(arm, GroupArm):
                arm.next()
                arm.check()

        self.from_all(begin)
        if isinstance(arm, GroupArm):
            self.loading(arm)
            self._rest(arm)

    def turn(self, arm: Arm, change: Change) -> Steps:
        self._begin()
        return (yield from self._turns.fixed(arm, change, self._steps_of(arm)))

    def paced(self, arm: Arm, change: Change) -> Steps:
        """A turn with the same pace on all ranks: at most that of the loader alone, since a few steps may take what was
        loaded before. Raises Agreed if a changed loader failed on a rank."""
        if isinstance(arm, GroupArm):
            self.loading(arm)
        pace = self.agreed_pace((yield from self.turn(arm, change)))
        if isinstance(arm, GroupArm):
            self.from_all(arm.check)
            self._rest(arm)
        rate = min(pace.steps_per_s, arm.limit)
        return pace._replace(samples_per_s=rate, steps_per_s=rate)

    def _rounds(self, seconds: float, round_s: float) -> int:
        return self.agreed(int(min(MOST_ROUNDS, max(ROUNDS, seconds / round_s))))

    def run(self, seconds: float, tries_sizes: bool, options: Any = None) -> Generator[Any, None, None]:
        """`tries_sizes`: also other sizes of buckets, if all-reduces cost time; they get half of the seconds.
        `options`: must be the same on all ranks."""
        self._rendezvous()
        if any(each != options for each in self.gathered(options)):
            raise Error("the processes call saturate.diagnose with different arguments. Pass the same values of only, "
                        "skip and seconds in all of them")
        self._agree_on_epochs()
        yield from self._turns.fixed(self._arm, contextlib.nullcontext, 0)  # opens it
        self._agree_on(self._arm)
        pilot = yield from self._turns.fixed(self._arm, contextlib.nullcontext, STEPS)
        step_s = 1 / pilot.steps_per_s
        self.most_workers = self.agreed(int(max(1, MOST_CYCLE_S / step_s)))
        self.steps = self.agreed(int(min(MOST_STEPS, max(STEPS, TURN_S / step_s))))
        sizes = sizes_to_try(self._torch, self._modules) if tries_sizes else []
        seconds = seconds / 2 if sizes else seconds
        rounds = self._rounds(seconds, 2 * self._steps_of(self._arm) * step_s)
        own, paces = [], []
        for number in range(rounds):
            found: Dict[bool, Pace] = {}
            for is_changed in ((False, True) if number % 2 == 0 else (True, False)):
                change = self.without_sums if is_changed else self._looking
                found[is_changed] = yield from self.turn(self._arm, change)
            paces.append(found[False])
            own.append(1 / found[True].steps_per_s)
        self.pace = self.agreed_pace(sorted(paces, key=lambda pace: pace.steps_per_s)[len(paces) // 2])
        if sizes:
            sizes = sizes_to_try(self._torch, self._modules)  # there may be less memory now
        gathered = self.gathered(([1 / pace.steps_per_s for pace in paces], own, sizes))
        # The least: others have waited for a rank that was interrupted, as by an evaluation.
        whole = [min(each) for each in zip(*(whole for whole, _, _ in gathered))]
        self.results = group_what_ifs(whole, [own for _, own, _ in gathered])
        sums = self.results[0]  # all ranks decide alike
        if sizes and all(each == sizes for _, _, each in gathered) and (sums.is_worth() or sums.may_be_worth()):
            round_s = (1 + len(sizes)) * (SETTLING + 1 + self.steps) * step_s
            rounds = self._rounds(seconds, round_s)
            if self.agreed(ROUNDS * round_s < 2 * seconds):
                yield from self._try_sizes([0, *sizes], rounds)

    def _try_sizes(self, sizes: Sequence[int], rounds: int) -> Generator[Any, None, None]:
        seconds: Dict[int, List[float]] = {size: [] for size in sizes}
        for number in range(rounds):
            for size in sizes if number % 2 == 0 else sizes[::-1]:
                self._begin()
                pace = yield from self._with_size(size)
                if pace is None:
                    return
                seconds[size].append(1 / pace.steps_per_s)
        by_rank = self.gathered(seconds)
        sized = {size: [min(each) for each in zip(*(found[size] for found in by_rank))] for size in sizes}
        self.results[0] = with_sizes(self.results[0], sized)

    def _with_size(self, size: int) -> Generator[Any, None, Optional[Pace]]:
        """A turn with buckets of `size` bytes (0: as they are). None if the loop all-reduces too seldom for the second
        reducer to make its buckets."""
        # If the latest forward had no backward, the module's reducer still waits for one: this step ends that.
        yield from self._turns.fixed(self._arm, self.without_sums, 0)
        with contextlib.ExitStack() as stack:
            for module in self._modules if size else ():
                stack.enter_context(other_buckets(module, size))
            # A reducer's first step has one bucket; the step after it makes the others.
            for number in range(MOST_SETTLING):
                if number >= SETTLING - 1 and (not size or all(each._has_rebuilt_buckets for each in self._modules)):
                    return (yield from self._turns.fixed(self._arm, contextlib.nullcontext, self.steps))
                yield from self._turns.fixed(self._arm, contextlib.nullcontext, 0)
        return None


def group_what_ifs(whole: Sequence[float], own: Sequence[Sequence[float]]) -> List[WhatIf]:
    """From seconds of a step: of the loop by round, and of each rank's own work by round."""
    means = [sum(each) / len(each) for each in own]
    slowest = means.index(max(means))
    sums = WhatIf("ddp-buckets", Remedy("Send gradients less often", (
        LESS_OFTEN, AT_MOST + "; no other size of buckets was tried",
        "# the gain includes waits for a rank that is slower in some steps")), is_inferred=True)
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


def with_sizes(sums: WhatIf, seconds: Dict[int, List[float]]) -> WhatIf:
    """`seconds`: of a step, by size of a bucket in bytes (0: the loop as it is) and round. Returns the fastest size if
    it is worth a change; else `sums`, with the sizes that were tried."""
    found, lines = [], []
    for size, steps_s in seconds.items():
        if size:
            what_if = WhatIf("ddp-buckets", Remedy(""), before=[1 / step_s for step_s in seconds[0]],
                             after=[1 / step_s for step_s in steps_s])
            what_if.conclude()
            what_if.remedy = Remedy(f"Send gradients in buckets of {size / MIB:.4g} MiB: {what_if.gain}", (
                f"DistributedDataParallel(model, bucket_cap_mb={size / MIB:.4g})",
                f"# without all-reduce, at most: {sums.gain}"))
            found.append(what_if)
            lines.append(f"# bucket_cap_mb={size / MIB:.4g}: {what_if.gain}")
    worth = [each for each in found if each.is_worth()]
    if worth:
        return max(worth, key=lambda each: each.gain or Gain(0.0, 0.0, 0.0))
    sums.remedy = Remedy("Send gradients less often: no other size of buckets is clearly faster", (
        LESS_OFTEN, *lines, AT_MOST))
    return sums
