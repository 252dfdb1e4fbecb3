"""A script's own training loop, found by wrapping torch's classes, and measured while the script runs."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import threading
from typing import Any, Collection, Dict, Iterator, List, Optional, Sequence

from .diagnosing import Diagnosis, conclude
from .observing import STEPS, Observation
from .patches import replaced
from .session import Session


class Finished(BaseException):
    """Ends the script: no `except Exception` of its own stops it."""


class _Watched:
    """A script's iteration over a DataLoader, until its loop is known."""

    def __init__(self, run: ScriptLoop, loader: Any, batches: Any) -> None:
        self._run, self._loader, self._batches = run, loader, batches

    def __iter__(self) -> _Watched:
        return self

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def __next__(self) -> Any:
        if self._run.is_known(self._loader):
            return self._run.next_batch()
        return next(self._batches)


class ScriptLoop:
    """Takes over the first DataLoader with whose batches an optimizer makes steps. `on_known` starts that."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.seen = Observation(torch)
        self.loader: Any = None
        self._batches: Optional[Iterator[Any]] = None
        self._counts: Dict[int, int] = {}     # batches of each loader
        self._loaders: List[Any] = []         # kept, so that an id stays its own
        self._stack = contextlib.ExitStack()  # of the search
        self._thread = threading.get_ident()

    def begin(self) -> Iterator[Any]:
        """The batches of the measurement, once the loop is known."""
        raise NotImplementedError

    def interrupted(self) -> None:
        """The loop begins to iterate again."""

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        from torch.utils.data import DataLoader

        original = DataLoader.__iter__

        def iterate(loader: Any) -> Any:
            is_own = getattr(loader, "_saturate", False) or threading.get_ident() != self._thread
            if not is_own and loader is self.loader:
                self.interrupted()
                return _Watched(self, loader, iter(()))
            batches = original(loader)
            return batches if is_own or self.loader is not None else _Watched(self, loader, batches)

        with replaced(DataLoader, "__iter__", iterate), self._stack:
            self._stack.enter_context(self.seen.active())
            try:
                yield
            finally:
                close = getattr(self._batches, "close", None)
                if close is not None:
                    close()

    def is_known(self, loader: Any) -> bool:
        """Called before each batch of a loader."""
        if self.loader is not None:
            return loader is self.loader
        count = self._counts.get(id(loader), 0)
        if count == 0:
            self._loaders.append(loader)
            self._steps_before = self.seen.optimizer_steps
            self.seen.counted.calls.clear()
            self.seen.counted.seconds.clear()
        self._counts[id(loader)] = count + 1
        if count < STEPS or self.seen.optimizer_steps == self._steps_before:
            return False
        self.seen.steps = count
        self._stack.close()
        self.loader = loader
        self._batches = self.begin()
        return True

    def next_batch(self) -> Any:
        assert self._batches is not None
        try:
            return next(self._batches)
        except StopIteration:
            raise Finished from None

    def missing(self) -> List[str]:
        found = [] if self._loaders else ["a torch DataLoader that is iterated"]
        found += self.seen.missing()
        if not found and self.loader is None:
            found.append(f"a loop over a DataLoader with {STEPS + 1} batches and an optimizer's steps")
        return found


class DiagnosedLoop(ScriptLoop):
    def __init__(self, torch: Any, seconds: float, only: Optional[Collection[str]], skip: Collection[str]) -> None:
        super().__init__(torch)
        self.session: Optional[Session] = None
        self._arguments = {"seconds": seconds, "only": only, "skip": skip}

    def begin(self) -> Iterator[Any]:
        self.session = Session(self.torch, self.loader, self.seen, **self._arguments)
        return self.session.run()

    def interrupted(self) -> None:
        if self.session:
            self.session.turns.interrupted()

    def conclude(self) -> Optional[Diagnosis]:
        if self.session is None:
            return None
        for each in self.session.results:
            if not each.gain and not each.skipped:
                each.skipped = "there was no time: the script ended"
        return conclude(self.session)


def run_script(path: str, arguments: Sequence[str]) -> None:
    """As `python path arguments` does."""
    sys.argv = [path, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    runpy.run_path(path, run_name="__main__")


def diagnose_script(path: str, arguments: Sequence[str], *, seconds: float, only: Optional[Collection[str]] = None,
                    skip: Collection[str] = ()) -> Diagnosis:
    """Runs the script until its loop is measured. Raises what the script raises before that."""
    import torch

    loop = DiagnosedLoop(torch, seconds, only, skip)
    try:
        with loop.active():
            run_script(path, arguments)
    except Finished:
        pass
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    except Exception as failure:
        current = loop.session.current if loop.session else None
        if current is None:
            raise
        lines = str(failure).strip().splitlines() or [type(failure).__name__]
        current.skipped, current.gain = f"the script failed with it: {lines[0]}", None
    return loop.conclude() or Diagnosis("undecided", None, not_found=loop.missing())
