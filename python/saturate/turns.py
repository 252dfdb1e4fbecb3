"""Measures a loop in short turns: the batches of a generator are the loop's own, or those of a what-if."""

from __future__ import annotations

import contextlib
import copy
import math
import time
import warnings
from collections import UserDict
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Callable, Dict, Generator, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from ._core import Error, is_worth, may_be_worth, paired_gain
from .iteration import Ended
from .loader import Loader
from .patches import LOADING
from .patching import Edit
from .phases import size_of

# The block's value is None, or to be called before each step.
Change = Callable[[], contextlib.AbstractContextManager[Any]]

LEAST_STEPS = 3      # of a turn
MOST_SETTLING = 32   # steps before a turn is measured
MOST_LOADED = 100    # batches of a turn without steps
MOST_IN_ROW = 3      # steps that do not count: if more follow, the loop begins an iteration for each step
STRETCH = 3          # times as long as planned a turn takes at most, with what interrupts it
WAITED = 0.2         # of a step: its batch was not ready, so that nothing is left from a rest
LOADER_PREFETCH = 4  # batches, unless saturate.Loader is given a number
FAST = 2             # times as fast as the steps: a loader that is no limit, with or without a rest


class Remedy(NamedTuple):
    text: str
    lines: Tuple[str, ...] = ()  # to change, or to add
    edit: Optional[Edit] = None  # the same, if it is only arguments

    def __str__(self) -> str:
        return "\n    ".join((self.text, *self.lines))


class Gain(NamedTuple):
    """A ratio of rates, with its 95 % confidence interval: from 0 to infinity after too few measurements."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        bounds = f"[{self.low:.2f}, {self.high:.2f}]" if math.isfinite(self.high) else "(too few measurements)"
        return f"{self.ratio:.2f} times as fast {bounds}"


@dataclass
class WhatIf:
    """The loop with one change. `batches` opens its batches; None: the loop's own."""

    name: str
    remedy: Remedy
    change: Change = contextlib.nullcontext
    batches: Optional[Callable[[], Iterable[Any]]] = None
    alters: bool = False     # the training
    is_trade: bool = False   # it costs something: memory, precision, another library
    is_inferred: bool = False
    has_own_limit: bool = False  # it may gain although neither input nor step are the limit
    factor: float = 0        # samples in a step, relative to the loop's; 0: they are counted in the batches
    gain: Optional[Gain] = None
    skipped: str = ""
    before: List[float] = field(default_factory=list)  # samples/s, by round
    after: List[float] = field(default_factory=list)

    @property
    def is_input(self) -> bool:
        return self.batches is not None and not self.has_own_limit

    def add(self, before: Pace, after: Pace) -> None:
        """A round."""
        self.before.append(before.steps_per_s if self.factor else before.samples_per_s)
        self.after.append(after.steps_per_s * self.factor if self.factor else after.samples_per_s)

    def conclude(self) -> None:
        if self.before:
            self.gain = Gain(*paired_gain(self.before, self.after))

    def fail(self, why: str) -> None:
        self.skipped, self.gain, self.before, self.after = why, None, [], []

    def is_worth(self) -> bool:
        return self.gain is not None and is_worth(tuple(self.gain), self.alters)

    def may_be_worth(self) -> bool:
        return self.gain is not None and may_be_worth(tuple(self.gain), self.alters)


def first_line(failure: BaseException) -> str:
    if isinstance(failure, SystemExit) and isinstance(failure.code, int):
        return f"exit code {failure.code}"
    lines = str(failure).strip().splitlines()
    if lines and lines[0].startswith("Caught ") and "DataLoader worker" in lines[0]:
        return lines[-1]  # of the worker's traceback
    return lines[0] if lines else type(failure).__name__


def not_tried(name: str, why: str) -> WhatIf:
    return WhatIf(name, Remedy(""), skipped=why)


def ahead_of(loader: Any) -> int:
    """Batches that are loaded ahead."""
    if isinstance(loader, Loader):
        return int(loader._arguments["prefetch"] or LOADER_PREFETCH)
    return int(getattr(loader, "num_workers", 0) or 0) * int(getattr(loader, "prefetch_factor", None) or 2)


class Arm:
    """Batches for turns; between them its workers only fill their queues. `loaded`: samples/s of the loader alone, if
    known."""

    def __init__(self, batches: Callable[[], Iterable[Any]], *, is_made_here: bool = True,
                 loaded: float = 0.0) -> None:
        self._open, self._is_made_here, self.loaded = batches, is_made_here, loaded
        self.ahead = self.workers = 0
        self.limit = float("inf")  # of a group: batches/s of the loader alone on its slowest rank
        self._source: Any = None
        self._batches: Optional[Iterator[Any]] = None

    @LOADING.active()
    def next(self) -> Any:
        if self._batches is not None:
            try:
                return next(self._batches)
            except StopIteration:
                pass
            except Ended:  # a saturate.Loader in it, whose place was restored, begins again
                if self._is_made_here:
                    raise
        if self._source is None:
            self._source = self._open()
            self.ahead = ahead_of(self._source)
            self.workers = int(getattr(self._source, "num_workers", 0) or 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about more workers than cores, which is what is tried
            self._batches = iter(self._source)
        try:
            return next(self._batches)
        except StopIteration:
            raise Error("the loader has no batch (saturate.diagnose). Give it a dataset that is not empty") from None

    def close(self) -> None:
        self._batches = None  # ends the workers
        close = getattr(self._source, "close", None)
        if close is not None and self._is_made_here:
            close()
        self._source = None


class Pace(NamedTuple):
    samples_per_s: float
    steps_per_s: float
    made: float = 1.0  # steps of optimizers for each batch


Steps = Generator[Any, None, Pace]


class Turns:
    """Makes turns. `synchronize` waits for the device."""

    def __init__(self, synchronize: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock, self._synchronize = clock, synchronize
        self._uncounted_s = 0.0
        self._is_interrupted, self._in_row = False, 0
        self.made = 0  # steps of optimizers; counted by the user of this

    def interrupted(self) -> None:
        """The loop did something else since its last batch, such as the end of an epoch: that step does not count,
        unless all steps are like that."""
        self._is_interrupted = True

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """The block takes no time of its turn."""
        self._synchronize()
        begin = self.clock()
        try:
            yield
        finally:
            self._uncounted_s += self.clock() - begin

    def _counted(self) -> float:
        return self.clock() - self._uncounted_s

    def steps(self, arm: Arm, change: Change, seconds: float, least: int = LEAST_STEPS) -> Steps:
        """Yields the batches of a turn, and returns its rates."""
        with change() as begin_step:
            yield from self._settle(arm, begin_step)
            latest = self.clock() + STRETCH * seconds
            return (yield from self._measured(arm, begin_step, lambda steps, taken: steps < least or (
                taken < seconds and self.clock() < latest)))

    def fixed(self, arm: Arm, change: Change, steps: int) -> Steps:
        """A turn of one step to settle and as many others, neither more nor fewer, since other processes make as many.
        The time of interrupted ones does not count, unless all are."""
        with change() as begin_step:
            batch = arm.next()
            if begin_step:
                begin_step()
            yield batch
            begin, left = self.clock(), iter(range(steps))
            pace = yield from self._measured(arm, begin_step, lambda *_: next(left, None) is not None)
            return pace if pace.steps_per_s else pace._replace(steps_per_s=steps / max(self.clock() - begin, 1e-9))

    def _measured(self, arm: Arm, begin_step: Optional[Callable[[], None]],
                  goes_on: Callable[[int, float], bool]) -> Steps:
        """`goes_on`: from the steps that counted, and their seconds."""
        self._synchronize()
        self._is_interrupted = False
        uncounted_s = self._uncounted_s
        begin, samples, steps, batches, made = self._counted(), 0, 0, 0, self.made
        while goes_on(steps, self._counted() - begin):
            taken = self._counted()
            batch = arm.next()
            size = size_of(batch) or 1
            if begin_step:
                begin_step()
            yield batch
            batches += 1
            self._in_row = self._in_row + 1 if self._is_interrupted else 0
            if not self._is_interrupted or self._in_row > MOST_IN_ROW:
                samples, steps = samples + size, steps + 1
            else:
                begin += self._counted() - taken
            self._is_interrupted = False
        self._synchronize()
        elapsed = max(self._counted() - begin, 1e-9)
        if arm.loaded and self._uncounted_s > uncounted_s:  # its workers had more time than they would have
            elapsed = max(elapsed, samples / arm.loaded)
        return Pace(samples / elapsed, steps / elapsed, (self.made - made) / max(1, batches))

    def _settle(self, arm: Arm, begin_step: Optional[Callable[[], None]]) -> Generator[Any, None, None]:
        since = 0.0  # the end of the first step, which may be slower than others
        for number in range(min(arm.ahead, MOST_SETTLING) + 1):
            begin = self.clock()
            batch = arm.next()
            taken = self.clock()
            if begin_step:
                begin_step()
            yield batch
            if number > 0 and taken - begin > WAITED * (self.clock() - begin):
                return
            if arm.loaded:
                self._synchronize()
                if number == 0:
                    since = self.clock()
                elif arm.loaded * (self.clock() - since) > FAST * number * (size_of(batch) or 1):
                    return

    def loading(self, arm: Arm, seconds: float, most: int = MOST_LOADED) -> Pace:
        """The loader without steps."""
        begin = self.clock()
        for _ in range(min(arm.ahead, MOST_LOADED) + 1):  # what was loaded before takes hardly any time
            arm.next()
            if self.clock() - begin > seconds:
                break
        begin, samples, steps = self.clock(), 0, 0
        while steps < LEAST_STEPS or (self.clock() - begin < seconds and steps < most):
            samples, steps = samples + (size_of(arm.next()) or 1), steps + 1
        elapsed = max(self.clock() - begin, 1e-9)
        arm.loaded = samples / elapsed
        return Pace(arm.loaded, steps / elapsed)


class _Held:
    """One batch again and again, as it was, although steps may take parts out of it, set its attributes or write to its
    tensors."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._tensors: Dict[int, Tuple[Any, Any, Tuple[int, bool]]] = {}  # by id: its copy, what steps get, its state
        self._is_in_object = False
        self._fresh(batch)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self._fresh(self._batch)

    def _fresh(self, value: Any) -> Any:
        if hasattr(value, "_version") and hasattr(value, "clone"):
            return self._fresh_tensor(value)
        if isinstance(value, (dict, UserDict)):
            made = copy.copy(value)
            for name in value:
                made[name] = self._fresh(value[name])
            return made
        if isinstance(value, tuple) and hasattr(value, "_make"):
            return value._make(self._fresh(each) for each in value)
        if type(value) in (list, tuple):
            return type(value)(self._fresh(each) for each in value)
        is_array = hasattr(type(value), "__array_interface__")  # or an image
        is_object = not is_array and (hasattr(value, "__dict__") or is_dataclass(value))
        return self._fresh_object(value) if is_object else value

    def _fresh_object(self, value: Any) -> Any:
        """A copy with the attributes as they were. Objects within it stay: they may be anything, such as a dataset."""
        if self._is_in_object or hasattr(type(value), "__del__"):  # which may free what both have
            return value
        self._is_in_object = True
        try:
            made = copy.copy(value)
            own = getattr(made, "__dict__", {}) if made is not value else {}
            for name, each in list(own.items()):
                if vars(value).get(name) is each:  # else its class has copied it
                    own[name] = self._fresh(each)
            return made
        except Exception:  # its class cannot be copied
            return value
        finally:
            self._is_in_object = False

    def _fresh_tensor(self, tensor: Any) -> Any:
        def state(of: Any) -> Tuple[int, bool]:
            return of._version, of.requires_grad

        if id(tensor) not in self._tensors:  # self._batch keeps it, so that its id stays its own
            self._tensors[id(tensor)] = tensor.detach().clone(), tensor, state(tensor)
        kept, given, before = self._tensors[id(tensor)]
        if state(given) != before:
            given = kept.clone()
            self._tensors[id(tensor)] = kept, given, state(given)
        return given


def held(batch: Any) -> Arm:
    batches = _Held(batch)
    return Arm(lambda: batches)
