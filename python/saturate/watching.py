"""saturate.watch(): where the time of any training loop goes."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, List, Optional, Union

from ._core import Error
from .phases import NAMES, WAIT, Hooks, PhaseClock, shares, size_of
from .records import RunFolder, Telemetry, record_of

SEARCH_STEPS = 2      # after which modules that were never outermost cost nothing
RECORD_NS = 10**9     # between two records

_active: List[Watch] = []


class Watch:
    """Measures where a loop's time goes, by phase, until close() or the end of its `with` block.

        for images, labels in saturate.watch(loader, out="runs/mine"):
            ...

    counts a step for each optimizer step (without torch, for each batch). Any other loop says when a step ends:

        with saturate.watch(out="runs/mine") as w:
            for images, labels in loader:
                ...
                w.step(loss=loss)
        print(w)

    wait: in next() of `loader`, of any torch DataLoader, and of any saturate.Loader. forward: in the outermost
    modules, which are found during the first two steps, or in `model`; without gradients it is evaluation.
    backward: in torch.autograd.backward. optimizer: in step() of any torch.optim.Optimizer. copy: on a machine with a
    GPU, in Tensor.to and Tensor.cuda. host: everything else. These are times of the thread that made the Watch, on
    the host: on a GPU they show when the host launches work, and where it waits.

    loader: what to iterate over; may be left out.
    out: a folder for metrics.jsonl and host.json, which `saturate report FOLDER` makes a page of; must not hold a
        run. On other ranks than 0 nothing is written. By default nothing is written.
    model: the outermost module. Give it if it is compiled by torch.compile, which may compile again if modules are
        searched.

    One Watch measures at a time. Raises saturate.Error.
    """

    def __init__(self, loader: Any = None, *, out: Union[str, os.PathLike[str], None] = None,
                 model: Any = None) -> None:
        if _active:
            raise Error("another watch is measuring (saturate.watch). Close it first")
        self.loader = loader
        self.steps = self.samples = 0
        self._begun_epochs = 0        # of `loader`
        self._batches = 0             # of the present epoch of `loader`
        self._is_manual = False       # step() was called by the program
        self._optimizer: Any = None   # the last one that made a step
        self._has_stepped = False     # an optimizer, since the last step
        self._loss: Any = None
        from .world import found_world

        self._folder = RunFolder(out) if out is not None and found_world()[0] == 0 else None
        self._telemetry, self._total_telemetry = Telemetry(), Telemetry()
        self._clock = PhaseClock()
        self._last = list(self._clock.spent)
        self._last_ns, self._last_samples = self._clock.begin, 0
        try:
            self._hooks = Hooks(self._clock, self._on_batch, self._on_optimizer, model)
        except BaseException:
            if self._folder:
                self._folder.close()
            raise
        self._is_open = True
        _active.append(self)

    def __iter__(self) -> Iterator[Any]:
        """One pass through the loader."""
        if self.loader is None:
            raise Error("there is nothing to iterate over (saturate.watch). Give it the loader")
        self._begun_epochs += 1
        self._batches = 0
        clock, batches = self._clock, iter(self.loader)
        while True:
            clock.enter(WAIT)
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                clock.leave()
            self._on_batch(batch)
            yield batch
            self._batches += 1
            if self._is_open and not self._is_manual and (self._has_stepped or self._optimizer is None):
                self._count_step()

    def __bool__(self) -> bool:
        return True  # also without a loader

    def __len__(self) -> int:
        return len(self.loader)

    def step(self, *, loss: Any = None) -> None:
        """A step has ended. `loss`, a number or a tensor, is read only when a record is written, once a second."""
        self._is_manual = True
        self._loss = loss.detach() if hasattr(loss, "detach") else loss  # without the graph's memory
        self._count_step()

    def _count_step(self) -> None:
        if not self._is_open:
            raise Error("it is closed (saturate.watch). Make a new one")
        self.steps += 1
        self._has_stepped = False
        now = self._clock.settle()
        if self.steps == SEARCH_STEPS:
            self._hooks.end_search()
        if now - self._last_ns >= RECORD_NS:
            self._record("step", now)

    def _on_batch(self, batch: Any) -> None:
        self.samples += size_of(batch)

    def _on_optimizer(self, optimizer: Any) -> None:
        self._optimizer, self._has_stepped = optimizer, True

    def _epoch(self) -> float:
        """Epochs of `loader` completed, with the fraction of the present one if its length is known."""
        if self._begun_epochs == 0:
            return 0.0
        try:
            return self._begun_epochs - 1 + self._batches / max(1, len(self.loader))
        except TypeError:
            return float(self._begun_epochs - 1)

    def _record(self, kind: str, now: int) -> None:
        spent = self._clock.spent
        is_end = kind == "end"  # which has the totals
        period = spent if is_end else [value - before for value, before in zip(spent, self._last)]
        if self._folder:
            groups = getattr(self._optimizer, "param_groups", None) or [{}]
            rate = groups[0].get("lr")
            self._folder.write(record_of(
                kind, self.steps, self._epoch(), self.samples, (now - self._clock.begin) / 1e9, period,
                self.samples if is_end else self.samples - self._last_samples,
                None if self._loss is None else float(self._loss), None if rate is None else float(rate),
                (self._total_telemetry if is_end else self._telemetry).read()))
        self._last, self._last_ns, self._last_samples = list(spent), now, self.samples

    def close(self) -> None:
        """Ends the measurement and removes every hook."""
        if not self._is_open:
            return
        self._is_open = False
        self._hooks.remove()
        _active.remove(self)
        now = self._clock.settle()
        self._record("end", now)
        self._loss = self._optimizer = None
        if self._folder:
            self._folder.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def phases(self) -> Dict[str, float]:
        """Seconds by phase so far."""
        return {name: spent / 1e9 for name, spent in zip(NAMES, self._clock.spent)}

    def __str__(self) -> str:
        total = sum(self._clock.spent) / 1e9
        rate = self.samples / total if total > 0 else 0.0
        parts = ", ".join(f"{name} {share:.1%}" for name, share in shares(self._clock.spent)) or "nothing yet"
        return f"{self.steps} steps, {self.samples} samples in {total:.1f} s, {rate:.0f} samples/s: {parts}"


def watch(loader: Any = None, *, out: Union[str, os.PathLike[str], None] = None, model: Any = None) -> Watch:
    """Measures where a training loop's time goes: see saturate.Watch."""
    return Watch(loader, out=out, model=model)
