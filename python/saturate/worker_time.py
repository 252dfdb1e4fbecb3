"""Time inside a DataLoader's workers, which write it into memory that they share with the process that trains."""

from __future__ import annotations

import functools
import multiprocessing
import time
import weakref
from typing import Any, Callable, List, Optional, Tuple

VALUES = 3  # of a worker: nanoseconds, nanoseconds of CPU time, batches


def measure_worker(original: Optional[Callable[[int], None]], shared: Any, worker: int) -> None:
    """In place of worker_init_fn: measures what makes batches in this worker, from the first batch to the end of the
    worker. It is pickled where workers are spawned."""
    from torch.utils.data._utils import fetch

    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        kind.fetch = _measured(kind.fetch, shared, worker * VALUES)
    if original is not None:
        original(worker)


def _measured(original: Callable[..., Any], shared: Any, at: int) -> Callable[..., Any]:
    @functools.wraps(original)
    def fetch(*arguments: Any, **named: Any) -> Any:
        begin, begin_cpu = time.perf_counter_ns(), time.process_time_ns()
        result = original(*arguments, **named)
        shared[at] += time.perf_counter_ns() - begin
        shared[at + 1] += time.process_time_ns() - begin_cpu
        shared[at + 2] += 1
        return result

    return fetch


class WorkerTimes:
    """Times of all DataLoaders' workers that start while `wrapped` is in place."""

    def __init__(self) -> None:
        self.is_over = False
        self._past = [0] * VALUES  # of iterations that are gone
        self._alive: List[Tuple[Any, Any]] = []  # (reference to the iteration, shared values)

    def wrapped(self, original: Callable[..., None]) -> Callable[..., None]:
        """The __init__ of the iteration that starts workers."""
        @functools.wraps(original)
        def start(iteration: Any, loader: Any, *arguments: Any, **named: Any) -> None:
            if self.is_over:
                return original(iteration, loader, *arguments, **named)
            context = loader.multiprocessing_context or multiprocessing
            shared = context.RawArray("q", loader.num_workers * VALUES)
            given = loader.worker_init_fn
            loader.worker_init_fn = functools.partial(measure_worker, given, shared)
            try:
                original(iteration, loader, *arguments, **named)
            finally:
                loader.worker_init_fn = given
            self._alive.append((weakref.ref(iteration), shared))

        return start

    @property
    def count(self) -> int:
        """Running now."""
        return sum(len(shared) // VALUES for reference, shared in self._alive if reference() is not None)

    def read(self) -> Tuple[int, ...]:
        """(nanoseconds, nanoseconds of CPU time, batches) so far."""
        for pair in [pair for pair in self._alive if pair[0]() is None]:
            self._alive.remove(pair)
            self._add(self._past, pair[1])
        total = list(self._past)
        for _, shared in self._alive:
            self._add(total, shared)
        return tuple(total)

    @staticmethod
    def _add(total: List[int], shared: Any) -> None:
        for at, value in enumerate(shared):
            total[at % VALUES] += value
