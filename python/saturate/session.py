"""The measurement: a generator of batches, whose consumer makes one step with each."""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any, Callable, Collection, Generator, List, Optional

from ._core import Error, paired_gain
from .agreement import Agreed
from .device_time import synchronize
from .group_turns import Epoch, GroupArm, GroupTurns, world_of
from .loader_what_ifs import (OF_DATALOADER, AsItIs, epoch_starts, is_copied, loader_what_ifs, own_batches,
                              persistent_remedy)
from .observing import STEPS, Observation
from .patches import endless_schedules
from .restoring import Kept
from .step_what_ifs import called_often, step_what_ifs
from .turns import Arm, Change, Gain, Pace, Steps, Turns, WhatIf, first_line, held, not_tried

SHORTEST_S, LONGEST_S = 60, 300  # unless the seconds are given
FIRST_ROUNDS, MOST_ROUNDS = 3, 12
FIRST_SHARE = 0.55     # of the time, for a first measurement; then what is worth doing is measured again, then the rest
GROUP_FIRST_SHARE = 0.8  # the same with several processes
HOPELESS = 1.02        # the end of an interval that is not measured further
LEAST_MADE = 0.5       # of the optimizers' steps for a batch, without which a change has made the loop skip batches
NEEDED = 1.05          # the least upper end of an interval with which a change can be worth doing
SUSPECT = 1.03         # the least ratio with which a cause that the loop shows is measured again
OF_OPTIMIZERS = ("fused-optimizer", "foreach-optimizer")
TURN_SHARE = 1 / 150   # of the time
MOST_TURN_S, LEAST_TURN_S = 1.0, 0.1

# These may fail, by batches on a GPU or for want of memory or a compiler: a script then ends.
LAST = ("saturate-loader", "batch-size", "compile")
# Only measured if the loop does it.
SEEN = ("item-in-loop", "print-in-loop", "logging", "checkpoint-saves", "anomaly-mode", "profiler-on", "set-to-none",
        "threads")

OF_GROUP = ("ddp-buckets", "straggler")
# Not with several processes: one whose step fails leaves the others waiting, and buckets have the strides of gradients.
ALONE = ("channels-last", "compile", "batch-size")
WHY_ALONE = "not tried with several processes"

NAMES = ("data-loading", *OF_DATALOADER, *SEEN, "tf32", "cudnn-benchmark", *OF_OPTIMIZERS, "channels-last",
         "autocast-bf16", "autocast-fp16", "compile", *OF_GROUP)

NoPace = Generator[Any, None, None]
Measured = Generator[Any, None, List[WhatIf]]


def check_names(only: Optional[Collection[str]], skip: Collection[str]) -> None:
    for name in (*(only or ()), *skip):
        if name not in NAMES:
            raise Error(f"there is no cause {name!r} (only, skip). There are {', '.join(NAMES)}")


class Session:
    """`next()` on run() returns the batch of the next step. `results` are complete to the last finished round, also if
    the loop ends early."""

    def __init__(self, torch: Any, loader: Any, seen: Observation, *, seconds: Optional[float],
                 only: Optional[Collection[str]], skip: Collection[str], objects: Collection[Any] = (),
                 clock: Callable[[], float] = time.perf_counter,
                 report: Callable[[str], Any] = lambda _: None,
                 epochs: Callable[[], List[Epoch]] = lambda: [(None, False)]) -> None:
        self.torch, self.loader, self.seen = torch, loader, seen
        self.seconds, self._is_given = seconds or SHORTEST_S, seconds is not None
        self._only, self._skip = only, skip
        self.has_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        self.turns = Turns((lambda: synchronize(torch)) if self.has_gpu else lambda: None, clock)
        seen.uncounted = self.turns.uncounted
        self._clock, self._report, self._epochs = clock, report, epochs
        self._kept = Kept(torch, objects, samplers_of(loader), getattr(loader, "dataset", None))
        self._own = Arm(own_batches(loader), is_made_here=is_copied(loader))
        self._turn_s = min(MOST_TURN_S, max(LEAST_TURN_S, self.seconds * TURN_SHARE))
        self.results: List[WhatIf] = []
        self.group: Optional[GroupTurns] = None  # of several processes, which make the same steps
        self._found: Optional[List[WhatIf]] = None  # once: changes of the loader, which take long to find
        self.current: Optional[WhatIf] = None  # whose change runs, or has left its traces; also after a failure
        self.pace: Optional[Pace] = None      # of the loop as it is
        self.held_gain = self.loading_gain = Gain(1.0, 0.0, float("inf"))
        self.held_rate: Optional[float] = None    # steps/s
        self.loader_rate: Optional[float] = None  # batches/s
        self.start_share = 0.0                # of an epoch, until its first batch
        self.is_complete = False              # the measurement came to its end; else
        self.ended = "the script ended"       # why not
        self._each_s = 0.0                    # of a first measurement: what the latest took, before it an estimate

    def run(self) -> NoPace:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        with endless_schedules(self.torch), register_optimizer_step_post_hook(self._after_step), self.seen.timed():
            yield from self._measure()
        self.is_complete = True

    def _after_step(self, *_: Any) -> None:
        self.turns.made += 1

    def thrown(self, failure: BaseException) -> BaseException:
        """A step's failure, for run(). An exit in a what-if is an error there, unlike that of a signal's handler."""
        is_tried = isinstance(failure, SystemExit) and self.current is not None
        return Error(first_line(failure)) if is_tried else failure

    def explains(self, failure: BaseException) -> bool:
        """Notes why the script failed. Returns whether that is part of the answer: with several processes it never is,
        since the launcher ends those that wait for this one only if this one fails."""
        where = "" if self.group is None else f" on rank {self.group.rank}"
        is_exit = isinstance(failure, SystemExit)  # as after a signal
        if self.current is not None:
            self.current.fail(f"the script failed with it{where}: {first_line(failure)}")
        else:
            self.ended = f"the script {'exited' if is_exit else 'failed'}{where}: {first_line(failure)}"
        return self.group is None and (self.current is not None or (is_exit and self.pace is not None))

    def tells_of_failure(self) -> bool:
        """Whether this process shows what was measured before the script failed."""
        return self.pace is not None and (self.group is None or self.group.is_first_to_fail)

    def _measure(self) -> NoPace:
        self._begin = self._clock()
        try:
            if self.seen.steps < STEPS:
                with self.seen.active():
                    while self.seen.steps < STEPS:
                        yield self.seen.watched(self._own.next())
                        self.seen.steps += 1
            yield from self._of_group() if world_of(self.torch) > 1 else self._limits()
            self.results = self._wanted()
            self._extend()
            self.results = self._wanted()  # with more time `compile` is tried too
            self._persistence()
            first = yield from self._first_pass(FIRST_SHARE if self.group is None else GROUP_FIRST_SHARE)
            worth = [each for each in first if each.is_worth() or _is_suspect(each)]
            yield from self._second_pass(worth)
            yield from self._first_pass(1.0)
            yield from self._second_pass([each for each in self.results if all(each is not other for other in worth)])
        finally:
            try:
                self._own.close()
            finally:
                self._kept.restore()

    def _of_group(self) -> NoPace:
        """Measures all-reduces and a straggler first, in half of the seconds if they are given; then other changes."""
        self.group = group = GroupTurns(self.torch, self.turns, self.seen.groups, self._own, self.seen.looking,
                                        self._epochs)
        if group.rank > 0:
            self._report = lambda _: None
        has_more = any(self.is_wanted(name) for name in NAMES if name not in OF_GROUP)
        options = self._only and sorted(self._only), sorted(self._skip), self._is_given and self.seconds
        try:
            yield from group.run(self.seconds / 2 if has_more and self._is_given else self.seconds,
                                 self.is_wanted("ddp-buckets"), options)
        finally:
            self.pace = group.pace
            self.results = [each for each in group.results if self.is_wanted(each.name)]
        self._kept.restore()
        for each in self.results:
            each.before, each.after = [], []  # it is not measured again
        if self._agreed(has_more and (self._left() > 0 or not self._is_given)):
            yield from self._limits()

    def _agreed(self, value: bool) -> bool:
        return value if self.group is None else bool(self.group.agreed(value))

    def _turn(self, arm: Arm, change: Change) -> Steps:
        if self.group is None:
            return (yield from self.turns.steps(arm, change, self._turn_s))
        return (yield from self.group.paced(arm, change))

    def _loading(self) -> Pace:
        """The loader alone; in a group that of the slowest rank."""
        if self.group is None:
            return self.turns.loading(self._own, self._turn_s)
        return self.group.loading(self._own)

    def _unmeasured(self) -> List[WhatIf]:
        return [each for each in self.results if not each.skipped and each.gain is None]

    def _expected_s(self) -> float:
        """About how many seconds it takes from its beginning until all that is unmeasured now is measured."""
        return (self._spent() + len(self._unmeasured()) * self._each_s) / FIRST_SHARE

    def _extend(self) -> None:
        if not self._is_given:
            self.seconds = min(LONGEST_S, max(self.seconds, self._expected_s()))

    def needed_s(self) -> float:
        """About how many seconds would have been enough for all."""
        return max(self.seconds, self._expected_s())

    def _spent(self) -> float:
        return self._clock() - self._begin

    def _left(self) -> float:
        return self.seconds - self._spent()

    def _limits(self) -> NoPace:
        """The loop, one batch held, and the loader alone."""
        batch = self._own.next()
        self._held = fixed = held(batch)
        whole, without_input, alone = [], [], []
        took_s = 0.0
        for number in range(2 * FIRST_ROUNDS):
            alone.append(self._loading())
            begin = self._clock()
            whole.append((yield from self._turn(self._own, self.seen.looking)))
            took_s += self._clock() - begin
            without_input.append((yield from self._turn(fixed, self.seen.looking)))
            if number + 1 >= FIRST_ROUNDS and self._agreed(self._left() < 0.85 * self.seconds):
                break
        self._each_s = 2 * FIRST_ROUNDS * took_s / len(whole)
        self.pace = sorted(whole)[len(whole) // 2]
        self.held_rate = statistics.median(each.steps_per_s for each in without_input)
        self.loader_rate = self._own.limit = statistics.median(each.steps_per_s for each in alone)
        self.held_gain, self.loading_gain = (_gain_of(whole, other) for other in (without_input, alone))
        self._kept.restore()

    def is_wanted(self, name: str) -> bool:
        return (self._only is None or name in self._only) and name not in self._skip

    def _wanted(self) -> List[WhatIf]:
        if self._found is None:
            find = functools.partial(loader_what_ifs, self.loader, self.has_gpu, self.seen.is_blocking, self.is_wanted)
            self._found = find() if self.group is None else [*self.results, *self.group.of_loader(find)]
        found = [*self._found, *step_what_ifs(self.seen, self.has_gpu, self.seconds)]
        found = self._without_needless([each for each in found if self.is_wanted(each.name)])
        is_starved = self.held_gain.ratio > max(NEEDED, self.loading_gain.ratio)
        # LAST comes last. If steps wait for batches, changes of the input come first; then what was seen in the loop.
        found.sort(key=lambda each: (each.name in LAST, is_starved and not each.is_input, each.name not in SEEN))
        return found

    def _seen_later(self) -> List[WhatIf]:
        """Adds what the loop does only after its first steps."""
        known = [each.name for each in self.results]
        found = [each for each in called_often(self.seen) if self.is_wanted(each.name) and each.name not in known]
        found = self._without_needless(found)
        self.results += found
        return [each for each in found if not each.skipped]

    def _without_needless(self, found: List[WhatIf]) -> List[WhatIf]:
        """Marks what-ifs that need no measurement as skipped, and returns all; in a group also those of other ranks."""
        for each in found:
            assert each.name in NAMES
            if self.group is not None and each.name in ALONE and (not each.skipped or each.name == "compile"):
                each.skipped = WHY_ALONE
            limit = self.held_gain if each.is_input else self.loading_gain
            if not each.skipped and not each.gain and not each.has_own_limit and limit.high < NEEDED:
                each.skipped = ("the step is the limit, not its input" if each.is_input
                                else "the input is the limit, not the step")
            share = self._optimizer_share()
            if not each.skipped and each.name in OF_OPTIMIZERS and not self.has_gpu and 1 - share > 1 / NEEDED:
                each.skipped = f"optimizers take only {100 * share:.1f} % of a step"
        return found if self.group is None else self.group.agreed_what_ifs(found)

    def _optimizer_share(self) -> float:
        """The most that it can be of a step; 1: not known."""
        rates = [self.pace.steps_per_s if self.pace else 0.0, self.held_rate or 0.0]
        taken = self.seen.optimizer_s
        return taken * max(rates) if taken is not None and min(rates) > 0 else 1.0

    def _first_pass(self, share: float) -> Measured:
        """Measures what was not measured, until that share of the time is over. Returns what it measured."""
        self._seen_later()
        open_ = self._unmeasured()
        for number, each in enumerate(open_):
            self._extend()
            left = self._left() - (1 - share) * self.seconds
            if self._agreed(left <= self._each_s / 2):
                return open_[:number]
            begin = self._clock()
            self._report(f"measuring {each.name}, {self._left():.0f} s left")
            yield from self._rounds(each, FIRST_ROUNDS, left / (len(open_) - number))
            self._each_s = self._clock() - begin
            open_[number + 1:number + 1] = self._seen_later()  # before what may fail
        return open_

    def _second_pass(self, fresh: List[WhatIf]) -> NoPace:
        """Measures those again that matter: the greatest of many noisy gains is too great."""
        open_ = [each for each in fresh
                 if each.before and (each.is_worth() or each.may_be_worth() or _is_suspect(each))]
        open_.sort(key=lambda each: -(each.gain or Gain(0, 0, 0)).ratio)
        for number, each in enumerate(open_):
            left = self._left()
            if self._agreed(left <= 0):
                return
            self._report(f"measuring {each.name} again, {left:.0f} s left")
            first = each.before, each.after
            each.before, each.after = [], []
            yield from self._rounds(each, MOST_ROUNDS, left / min(2, len(open_) - number))
            if not each.skipped and len(each.before) < FIRST_ROUNDS:
                each.before, each.after = first
                each.conclude()

    def _rounds(self, what_if: WhatIf, rounds: int, seconds: float) -> NoPace:
        """Interleaves the loop and the loop with the change, in alternating order."""
        begin, made = self._clock(), [0.0, 0.0]
        other = self._own
        if what_if.batches is not None and self.group is not None:
            other = GroupArm(what_if.batches, self._held)
        elif what_if.batches is not None:  # unless they are for the input, they are loaded like the loop's own
            other = Arm(what_if.batches, loaded=self._own.loaded if what_if.has_own_limit else 0.0)
        try:
            if self.group is not None:
                self.group.open(what_if, other)
            for number in range(rounds):
                paces = {}
                for is_changed in ((False, True) if number % 2 == 0 else (True, False)):
                    arm = other if is_changed else self._own
                    change = what_if.change if is_changed else self.seen.looking
                    if is_changed or what_if.is_input:  # a change of the step leaves traces in turns without it
                        self.current = what_if if is_changed else None
                    if not is_changed and other is not self._own and self.group is not None:
                        self.group.loading(self._own)  # again: files may be in memory by now
                    paces[is_changed] = yield from self._turn(arm, change)
                what_if.add(paces[False], paces[True])
                what_if.conclude()
                made = [made[0] + paces[False].made, made[1] + paces[True].made]
                spent = self._clock() - begin
                if number + 1 >= FIRST_ROUNDS and self._agreed(spent * (number + 2) / (number + 1) > seconds):
                    break
                if number + 1 >= FIRST_ROUNDS and what_if.gain and what_if.gain.high < HOPELESS:
                    break
            if made[1] < LEAST_MADE * made[0]:
                what_if.fail("the loop skips many of its batches")
        except Agreed as failure:
            what_if.fail(str(failure))
        except Exception as failure:  # of the step, or of opening the batches
            if self.current is None:
                raise
            if self.group is not None:  # others may be in the middle of a step, where they agree on nothing
                raise Error(f"the step failed with {what_if.name}: {first_line(failure)} (saturate.diagnose). "
                            f"Skip it: skip=[{what_if.name!r}]") from failure
            what_if.fail(f"it failed: {first_line(failure)}")
        finally:
            if other is not self._own:
                other.close()
                self._own.limit = max(self._own.limit, self.loader_rate or 0.0)  # the latest may be low by chance
            self._kept.restore()
        self.current = None

    def _persistence(self) -> None:
        """The beginning of an epoch, with workers that start and with workers that stay."""
        name = "persistent-workers"
        if self.pace is None or not self.is_wanted(name):
            return
        find = functools.partial(epoch_starts, self.loader, self._clock, FIRST_ROUNDS)
        try:
            found = find() if self.group is None else self.group.slowest_starts(find)
        except Agreed as failure:
            self.results.append(not_tried(name, str(failure)))
            return
        finally:
            self._kept.restore()
        if found is not None:
            steps, now, stays = found
            epoch = steps / self.pace.steps_per_s
            self.start_share = min(now) / (min(now) + epoch)
            what_if = WhatIf(name, persistent_remedy(), is_inferred=True)
            what_if.before = [1 / (epoch + each) for each in now]
            what_if.after = [1 / (epoch + each) for each in stays]
            what_if.conclude()
            what_if.before, what_if.after = [], []
            self.results.append(what_if)


def _gain_of(before: List[Pace], after: List[Pace]) -> Gain:
    return Gain(*paired_gain([pace.samples_per_s for pace in before], [pace.samples_per_s for pace in after]))


def _is_suspect(what_if: WhatIf) -> bool:
    """Whether it is one of SEEN with a small gain that may be worth a change: such a gain is probably not noise."""
    gain = what_if.gain
    return what_if.name in SEEN and gain is not None and gain.ratio >= SUSPECT and gain.high >= NEEDED


def samplers_of(loader: Any) -> List[Any]:
    """Objects that hold a loader's place. Not a loader that is only copied: its iteration in progress would lose it."""
    found = [getattr(loader, name, None) for name in ("generator", "sampler", "batch_sampler")]
    found.append(getattr(found[2], "sampler", None))
    if isinstance(loader, AsItIs):
        found.append(vars(loader._loader))
    has_state = callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))
    if has_state and not is_copied(loader):
        found.append(loader)
    return [each for each in found if each is not None]
