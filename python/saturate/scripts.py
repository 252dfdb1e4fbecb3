"""A script's own training loop, found by wrapping torch's classes, and measured while the script runs."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from typing import Any, Callable, Collection, Dict, Generator, Iterator, List, Optional, Sequence, Set

from ._core import Error
from .diagnosing import Diagnosis, conclude
from .group_turns import Alone, Epoch, check_group, is_spokesman
from .loader import Loader
from .loader_what_ifs import have_same_data, length_of, makes_own_batches
from .observing import STEPS, Observation, imported_torch
from .patches import all_replaced
from .running import Threads, is_failure, is_interrupt, run_script, saved_by_cycle, this_thread
from .session import Session, check_names
from .turns import first_line

MOST_IDLE = 1000  # batches without a step between them: no loop accumulates the gradients of more
NOT_COUNTING = ("saturate", "torch", "tqdm")  # modules that may ask for a loader's length, and go on after its end


class Finished(BaseException):
    """Ends the script: no `except Exception` of its own stops it."""


class _Watched:
    """A script's iteration over a DataLoader, until its loop is known."""

    def __init__(self, run: ScriptLoop, loader: Any, batches: Any, has_end: bool = True) -> None:
        self._run, self._loader, self._batches = run, loader, batches
        self._given, self._has_end = 0, has_end
        self._saved: List[Any] = []

    def __iter__(self) -> _Watched:
        return self

    def __len__(self) -> int:
        self._loader._saturate_is_counted = True
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def __next__(self) -> Any:
        is_search = self._run.loader is None
        if not self._run.is_known(self._loader):
            batch = next(self._batches)
            if self._run.loader is None and not self._run.refused:
                self._run.seen.watched(batch)
        elif self._has_end and self._run.is_over(self._loader, self._given):
            raise StopIteration
        else:
            if is_search and (saved := saved_by_cycle(self)) is not None:
                self._saved, self._has_end = saved, False
            self._saved.clear()
            batch = self._run.next_batch()
        self._given += 1
        return batch


class ScriptLoop:
    """Takes over the first DataLoader, or saturate.Loader, with whose batches an optimizer makes steps. `begin` starts
    that."""

    def __init__(self, torch: Any, path: str) -> None:
        self.torch, self._path = torch, os.path.abspath(path)
        self.seen = Observation(torch)
        self.loader: Any = None
        self._again: Any = None               # the latest that the script made in its place
        self._batches: Optional[Generator[Any, None, None]] = None
        self._first: List[Any] = []           # their first one, until it is given
        self.refused = ""                     # why the loop cannot be measured: the script goes on as it is
        self._counts: Dict[int, int] = {}     # batches of each loader
        self._loaders: List[Any] = []         # kept, so that an id stays its own
        self._stepped: Set[int] = set()       # loaders after whose batch an optimizer made a step
        self._last: Any = None                # loader that was asked for a batch
        self._made = self._made_before = 0    # steps of optimizers, and when it was asked
        self._passed = 0                      # batches of the loop's present pass through its loader
        self._made_in_pass = 0                # steps of optimizers before its latest batch
        self._is_stepping = False             # a step was made between these batches
        self._has_told = False                # that another loader is not measured
        self._stack = contextlib.ExitStack()  # of the search
        self._thread = this_thread()
        self._threads = Threads(torch)

    def begin(self) -> Generator[Any, None, None]:
        """The batches of the measurement, once the loop is known."""
        raise NotImplementedError

    def refuse(self, failure: Exception) -> None:
        """The measurement failed before it gave a batch."""
        raise failure

    def interrupted(self) -> None:
        """The loop begins to iterate again."""

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        from torch.optim.optimizer import register_optimizer_step_post_hook
        from torch.utils.data import DataLoader

        wrappers: Dict[str, Callable[..., Any]] = {
            "__iter__": self._watching, "__init__": self._noting_line, "__len__": self._noting_length}
        watched = [(kind, name, wrapped(getattr(kind, name))) for kind in (DataLoader, Loader)
                   for name, wrapped in wrappers.items()]
        with all_replaced(watched), register_optimizer_step_post_hook(self._after_step), self._stack:
            self._stack.enter_context(self.seen.active())
            try:
                yield
            finally:
                self._end_measurement()
                if self.torch._C._autograd._profiler_enabled():  # the script did not come to its stop(), without which
                    self.torch.autograd._disable_profiler()      # torch crashes when the process exits

    def _watching(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def iterate(loader: Any) -> Any:
            if this_thread() == self._thread and (loader is self.loader or loader is self._again):
                self.interrupted()
                if not self.torch.is_grad_enabled():  # an evaluation
                    return original(loader)
                # Not where gradients are accumulated over all of a pass.
                if not self._is_stepping and 1 < self._passed <= self._made - self._made_in_pass:
                    self._give_up()
                    return original(loader)
                self._passed, self._is_stepping = 0, False
                return _Watched(self, loader, iter(()))
            batches = original(loader)
            if getattr(loader, "_saturate", False):
                return batches
            frame = sys._getframe(1)
            # Some classes keep one iterator over an endless sampler, which they make in __init__.
            is_its_own = frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is loader
            return _Watched(self, loader, batches, not is_its_own)

        return iterate

    def _after_step(self, *_: Any) -> None:
        self._made += 1

    def _noting_line(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A DataLoader's line in the script, for a patch."""
        @functools.wraps(original)
        def initialise(loader: Any, *arguments: Any, **named: Any) -> None:
            original(loader, *arguments, **named)
            frame: Any = sys._getframe(1)
            if frame.f_code.co_filename == self._path:
                loader._saturate_line = frame.f_lineno

        return initialise

    def _noting_length(self, original: Callable[[Any], int]) -> Callable[[Any], int]:
        @functools.wraps(original)
        def length(loader: Any) -> int:
            found = original(loader)  # a TypeError if there is none: a script that tries it does not count
            if str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0] not in NOT_COUNTING:
                loader._saturate_is_counted = True
            return found

        return length

    def is_over(self, loader: Any, given: int) -> bool:
        """Whether the loop's epoch ends after as many batches. If its script does not count, and makes steps between
        them, it goes on instead: what comes between epochs may take long."""
        if not hasattr(loader, "_saturate_is_counted") and self._is_stepping:
            return False
        length = length_of(loader)
        return length is not None and given >= length

    def is_known(self, loader: Any) -> bool:
        """Called before each batch of a loader."""
        if this_thread() != self._thread:  # it loads ahead of the steps, which are no other loader's
            self._last = None
            return False
        if self.refused:
            return False
        last, has_stepped = self._last, self._made > self._made_before
        self._last, self._made_before = loader, self._made
        if self.loader is not None:
            if loader is not self.loader and loader is not self._again:
                if not self.torch.is_grad_enabled():  # an evaluation, with a loader that keeps its iterator
                    self.interrupted()
                return last is loader and has_stepped and self._goes_on_with(loader)
            self._is_stepping |= self._passed > 0 and self._made > self._made_in_pass
            self._passed, self._made_in_pass = self._passed + 1, self._made
            if self._passed > MOST_IDLE and not self._is_stepping:
                self._give_up()
            return not self.refused
        self.seen.look_again()
        count = self._counts.get(id(loader), 0)
        if last is not None and has_stepped:
            self._stepped.add(id(last))
        if count == 0:
            self._loaders.append(loader)
            self.seen.counted.calls.clear()
            self.seen.counted.seconds.clear()
            self.seen.is_blocking = False
        self._counts[id(loader)] = count + 1
        if count < STEPS or id(loader) not in self._stepped:
            return False
        self.seen.steps = count
        self._stack.close()
        is_taken = self._takes_over(loader)
        is_beside = last is not loader and not has_stepped and self._counts.get(id(last)) == count + 1
        if is_taken and is_beside:  # one batch of each, as by zip()
            self._tell_of_another()
        return is_taken

    def _takes_over(self, loader: Any) -> bool:
        self.loader = loader
        self._threads.take()
        try:
            if makes_own_batches(loader):
                raise Error("its DataLoader's class overrides _get_iterator(), which a copy would not call")
            self._batches = self.begin()
            self._first.append(next(self._batches))
        except Exception as failure:
            self.loader = self._batches = None
            self.refuse(failure)
        return self.loader is not None

    def _end_measurement(self) -> None:
        """Undoes its present change."""
        if self._batches is not None:
            self._batches.close()

    def _give_up(self) -> None:
        self._end_measurement()
        self.loader = self._again = self._batches = None
        self.refuse(Error("it reads the batches of an epoch before it makes steps, as list(loader) does"))

    def _goes_on_with(self, loader: Any) -> bool:
        """Whether another loader with whose batches an optimizer makes steps is the loop's: some scripts make one for
        each epoch."""
        line = getattr(loader, "_saturate_line", 0)
        if have_same_data(loader, self.loader) or (line and line == getattr(self.loader, "_saturate_line", 0)):
            self._again = loader
            self.interrupted()
        else:
            self._tell_of_another()
        return loader is self._again

    def _tell_of_another(self) -> None:
        if not self._has_told and is_spokesman(self.torch):
            self._has_told = True
            sys.stderr.write("saturate: the script also trains with another loader, which is not measured\n")

    def next_batch(self) -> Any:
        assert self._batches is not None
        try:
            return self._first.pop() if self._first else next(self._batches)
        except StopIteration:
            raise Finished from None

    def missing(self) -> List[str]:
        found = [] if self._loaders else ["a torch DataLoader or a saturate.Loader that is iterated in the main thread "
                                          "of this process (others that the script starts are not measured)"]
        found += self.seen.missing()
        if not found and self.loader is None:
            found.append(f"a loop over a loader with {STEPS + 1} batches and an optimizer's steps")
        return found


class DiagnosedLoop(ScriptLoop):
    def __init__(self, torch: Any, path: str, seconds: Optional[float], only: Optional[Collection[str]],
                 skip: Collection[str], clock: Callable[[], float]) -> None:
        super().__init__(torch, path)
        self.session: Optional[Session] = None
        self._arguments: Dict[str, Any] = {"seconds": seconds, "only": only, "skip": skip, "clock": clock,
                                           "report": lambda text: sys.stderr.write(f"saturate: {text}\n"),
                                           "epochs": self._epochs}

    def begin(self) -> Generator[Any, None, None]:
        check_group(self.torch, self.seen.groups)  # before anything is copied: sharded weights may not allow it
        self.session = Session(self.torch, self.loader, self.seen, **self._arguments)
        return self.session.run()

    def refuse(self, failure: Exception) -> None:
        self.session, self.refused = None, first_line(failure)
        is_shared = isinstance(failure, Error) and not isinstance(failure, Alone)  # all ranks find the same
        if is_spokesman(self.torch) or not is_shared:
            sys.stderr.write("saturate: the training loop cannot be measured, and the script goes on as it is: "
                             f"{self.refused}\n")

    def interrupted(self) -> None:
        if self.session:
            self.session.turns.interrupted()

    def _epochs(self) -> List[Epoch]:
        loaders = [each for each in (self.loader, self._again) if each is not None]
        return [(length_of(each), hasattr(each, "_saturate_is_counted")) for each in loaders]

    def is_over(self, loader: Any, given: int) -> bool:
        group = None if self.session is None else self.session.group
        if group is None:
            return super().is_over(loader, given)
        return group.is_over(int(loader is self._again), given, self._is_stepping)

    def failed(self, end: BaseException) -> None:
        """Called before anything is undone, which may take long."""
        if self.session and self.session.group and is_failure(end):
            self.session.group.failed()

    def is_answer(self, end: BaseException) -> bool:
        """Whether there is an answer although the script ended so. Notes what it says."""
        session = self.session
        if session is None:
            return not (is_interrupt(end) or is_failure(end))
        if session.is_complete:
            return True
        if is_interrupt(end):
            session.ended = "it was interrupted"
        return not is_failure(end) or session.explains(end)

    def conclude(self) -> Diagnosis:
        if self.session:
            return conclude(self.session)
        return Diagnosis("undecided", None, not_found=[] if self.refused else self.missing(), refused=self.refused)


def diagnose_script(path: str, arguments: Sequence[str], *, seconds: Optional[float] = None,
                    only: Optional[Collection[str]] = None, skip: Collection[str] = (), source: Optional[str] = None,
                    spec: Any = None, clock: Callable[[], float] = time.perf_counter,
                    if_failed: Callable[[Diagnosis], Any] = lambda _: None) -> Diagnosis:
    """Runs the script until its loop is measured. Raises what the script raises before that, unless the answer explains
    it. `if_failed` gets what was measured until then, in the process whose script fails first."""
    check_names(only, skip)
    loop = DiagnosedLoop(imported_torch(), path, seconds, only, skip, clock)
    try:
        with loop.active():
            try:
                run_script(path, arguments, source, spec)
            except BaseException as end:
                loop.failed(end)
                raise
    except Finished:
        pass
    except (Exception, SystemExit, KeyboardInterrupt) as end:
        if not loop.is_answer(end):
            if loop.session is not None and loop.session.tells_of_failure():
                if_failed(loop.conclude())
            raise
    return loop.conclude()
