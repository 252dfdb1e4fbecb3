"""One pass through a loader."""

from __future__ import annotations

import collections
import sys
import threading
from typing import TYPE_CHECKING, Any, Deque, Iterator, Tuple

from ._core import Error
from .accelerating import begun_iteration

if TYPE_CHECKING:
    from .loader import Loader


class Ended(Error):
    """The iteration is no longer its loader's."""


class Place:
    """The epoch, its next batch (skipped ones count too), and whether it has returned a batch."""

    __slots__ = ("epoch", "batch", "begun")

    def __init__(self, epoch: int = 0, batch: int = 0) -> None:
        self.epoch, self.batch, self.begun = epoch, batch, False


class Iteration:
    """From a place to the end of the epoch."""

    def __init__(self, loader: Loader, place: Place, number: int) -> None:
        self._loader, self._place, self._number = loader, place, number
        self._found: Any = None  # taken from _core, but not staged yet
        self._staged: Deque[Tuple[Any, Any, int]] = collections.deque()  # (batch, names, index), not returned yet
        self._over = self._exhausted = self._begun = False
        self._accelerate: Any = None
        self._lock = threading.Lock()  # several threads may share it

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._lock:
            return self._next()

    def _next(self) -> Any:
        loader, place = self._loader, self._place
        if self._over:
            raise StopIteration
        loader._require_threads()
        if loader._running is not place:
            raise Ended("this iteration was ended by a newer one over the same loader, by load_state_dict() or by "
                        "close(): begin a new one, and make a separate saturate.Loader for each of two concurrent ones")
        if not self._begun:
            self._accelerate, self._begun = None if loader._saturate else begun_iteration(), True
        try:
            self._fill()
        except Error:
            if not self._staged:  # else what is before the failure comes first; it comes again
                raise
        if not self._staged:
            self._over = True
            place.epoch, place.batch, place.begun = place.epoch + 1, 0, False
            if loader._running is place:
                loader._running = None
            self._leave_accelerate()
            raise StopIteration
        staged, names, index = self._staged[0]  # if what follows fails, the next call tries again
        batch = self._converted(staged)
        if loader._names:
            batch = (batch, names) if isinstance(batch, dict) else (*batch, names)
        if loader._transform is not None:
            try:
                batch = loader._transform(batch)
            except StopIteration as failure:  # else it would end the epoch
                raise RuntimeError("batch_transform raised StopIteration") from failure
        self._staged.popleft()
        place.batch, place.begun = index + 1, True
        if self._accelerate is not None:
            self._accelerate.end_of_dataloader = place.batch >= loader._core.batches
        return batch

    def _leave_accelerate(self) -> None:
        registered, self._accelerate = self._accelerate, None
        if registered is not None:
            registered.end()

    def __del__(self) -> None:  # a loop was left early: the iteration around it becomes the active one
        if getattr(self, "_accelerate", None) is not None and not sys.is_finalizing():
            self._leave_accelerate()

    def _fill(self) -> None:
        """Takes the next batch; with a device, also those that are ready to be copied ahead."""
        core, feed = self._loader._core, self._loader._feed
        depth = feed.depth if feed else 1
        while len(self._staged) < depth and not self._exhausted:
            if self._found is None:
                if self._staged and not core.ready:
                    return
                self._found = core.next(self._number)
            if self._found is None:
                self._exhausted = True
                return
            images, target, names, index, mix = self._found
            staged = feed.stage(images, target, mix) if feed else (images, target)
            self._staged.append((staged, names, index))
            self._found = None

    def _converted(self, staged: Any) -> Any:
        if self._loader._feed:
            return self._loader._feed.ready(staged)
        images, target = staged
        convert = self._loader._convert
        if isinstance(images, dict):
            return {name: convert(array) for name, array in images.items()}
        if not isinstance(target, tuple):
            return convert(images), convert(target)
        labels, mixed, lam = target
        return convert(images), (convert(labels), convert(mixed), lam)
