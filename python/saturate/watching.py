"""saturate.watch(): where the time of any training loop goes."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from ._core import BatchIterator, Error, PhaseClock, StepCounter
from .loader_what_ifs import have_same_data, length_of
from .phases import NAMES, Hooks, shares
from .records import Outputs, Reading, device_phases, finite, open_outputs, record_of, shown, worker_times
from .sampling import SEARCH_STEPS, Sampling
from .telemetry import Gpu, Telemetry
from .turns import first_line
from .world import warn_if_undivided

RECORD_NS = 10**9    # between two records, and
LATER_NS = 10**10    # after FIRST_NS, since a day of the former takes 100 MB
FIRST_NS = 3600 * 10**9
LONGEST_REASON = 300  # characters of an exception in a record

_active: List[Watch] = []
_of_parents: List[Outputs] = []  # in a forked process


def _reason(failure: Optional[BaseException]) -> Optional[str]:
    """The exception with which a program or block ends, for its "end" record; None if it did not fail."""
    is_done = isinstance(failure, GeneratorExit) or (isinstance(failure, SystemExit) and not failure.code)
    if failure is None or is_done:
        return None
    name = line = type(failure).__name__
    with contextlib.suppress(Exception):  # of its __str__()
        line = first_line(failure)
    return shown(line if line == name or line.startswith(f"{name}:") else f"{name}: {line}")[:LONGEST_REASON]


class Watch(StepCounter):
    """Measures where a loop's time goes, by phase, until close() or the end of its `with` block.

        for epoch in range(90):
            for images, labels in saturate.watch(loader, out="runs/mine"):
                ...

    counts a step for each batch after which an optimizer has stepped (before the first one, and without torch, for each
    batch). Each further watch() with the same arguments continues the first; with the same `out`, also if its loader is
    another one of the same data, which a program may make in each epoch. It ends when another one begins, or the
    program ends. Any other loop says when a step ends:

        with saturate.watch(out="runs/mine") as w:
            for images, labels in loader:
                ...
                w.step(loss=loss)
        print(w)

    Without w.step(), such as around a framework's trainer.fit(), a step ends if a loader of torch or saturate is asked
    for a batch after an optimizer has stepped, except under torch.no_grad(). A framework that divides a loader among
    processes, or moves its batches to a device, does neither with a Watch: give watch() the loader that is prepared.

    wait: in next() of `loader`, of any torch DataLoader, and of any saturate.Loader. forward: in the outermost
    modules, which are found during the first two steps, or in `model`; without gradients it is evaluation.
    backward: in torch.autograd.backward. optimizer: in step() of any torch.optim.Optimizer. copy: on a machine with a
    GPU, in Tensor.to and Tensor.cuda. reduce: with several processes, the end of a backward after its last gradient,
    in which DDP waits for its all-reduces, and calls of torch.distributed's collectives. host: everything else, also
    modules of TorchScript. These are times of the thread that made the Watch, on the host: on a GPU they show when the
    host launches work, and where it waits. `device_phases` has the GPU's own time, and `workers` the time inside a
    DataLoader's workers.

    Hooks would take several percent of a short step, so one step in about 0.25 s has them, and the others' time except
    `wait` is divided as in those of a similar length. A step of over ten times their median is host if none such was
    measured; the next 20 steps are. A batch of another loader, or without gradients, is measured, with the rest of its
    step.

    loader: what to iterate over; may be left out. Its attributes that a Watch lacks, such as `dataset` and `sampler`,
        are the Watch's too. Its batches are the samples that are counted; without it those of all loaders are, except
        under torch.no_grad().
    out: a folder for metrics.jsonl and host.json, which saturate.report(FOLDER) makes a page of. If it holds a run,
        FOLDER-2 (or -3 ...) is taken, with a warning. A record is written once a second, after an hour every ten
        seconds; the last one has the exception that ended the `with` block, or the program (there, not SystemExit), as
        `ended_by`. Nothing is written on other ranks than 0, nor in a script that saturate measures (diagnose, tune).
        By default nothing is written.
    tensorboard: a folder for TensorBoard's events, or True: `out`/tb. Needs torch and the package tensorboard.
    model: the outermost module. Give it if it is compiled, as torch.compile returned it: the search makes torch compile
        once more, and finds no module that is called in compiled code, such as one after model.compile().

    One Watch measures at a time. Raises saturate.Error.
    """

    def __init__(self, loader: Any = None, *, out: Union[str, os.PathLike[str], None] = None,
                 model: Any = None, tensorboard: Union[bool, str, os.PathLike[str]] = False) -> None:
        for other in list(_active):
            if not other._has_ended():
                raise Error("another watch is measuring (saturate.watch). Close it first")
            other.close()
        self._clock = PhaseClock()
        super().__init__(self._clock)
        self.loader = loader
        self._arguments = (out, model, tensorboard)
        self._begun_epochs = 0        # of `loader`
        self._is_block = False        # a `with` block's
        self._loss: Any = None
        self._ended_by: Optional[str] = None
        has_outputs = out is not None or tensorboard is not False  # else it need not know its rank
        self._outputs = open_outputs(out, tensorboard) if has_outputs else Outputs()
        gpu = Gpu()
        self._telemetry, self._total_telemetry = Telemetry(gpu), Telemetry(gpu)
        try:
            self._hooks = Hooks(self._clock, self, model)
        except BaseException:
            self._outputs.close()
            raise
        self._sampling = Sampling(self._clock)
        self._clock.on_long = self._on_long
        self._begin = self._last = self._reading()
        self._record_ns = self._begin.time_ns + RECORD_NS  # of the next one
        _active.append(self)

    def __iter__(self) -> Iterator[Any]:
        """One epoch of the loader."""
        return BatchIterator(self)

    def _begin_pass(self) -> Iterator[Any]:
        if self.loader is None:
            raise Error("there is nothing to iterate over (saturate.watch). Give it the loader")
        if self._begun_epochs == 0:
            warn_if_undivided(self.loader)
        self._begun_epochs += 1
        self._batches = 0
        self._counts_others = False
        return iter(self.loader)

    def __bool__(self) -> bool:
        return True  # also without a loader

    def __getattr__(self, name: str) -> Any:
        loader = self.__dict__.get("loader")
        if loader is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __copy__(self) -> Watch:
        return self  # a measurement, and its hooks, cannot be doubled

    def __deepcopy__(self, memo: Any) -> Watch:
        return self

    def _end_manual_step(self, now: int, loss: Any) -> None:
        # A loop that has fetched the next batch already: that ended the step, as in a framework's loop.
        is_first = self._is_open and self.loader is None and not self._is_manual
        is_counted = is_first and self.steps > 0 and not self._has_stepped
        self._is_manual = True
        self._hooks.ignore_optimizers()
        if math.prod(getattr(loss, "shape", ())) != 1:
            raise ValueError(f"loss has the shape {tuple(loss.shape)} (saturate.watch). Give one number: loss.mean()")
        self._loss = loss.detach() if hasattr(loss, "detach") else loss  # without the graph's memory
        if not is_counted:
            self._end_step(now)

    def _end_step(self, now: int) -> None:
        if not self._is_open:
            raise Error("it is closed (saturate.watch). Make a new one")
        self.steps += 1
        self._has_stepped = False
        clock, sampling = self._clock, self._sampling
        if clock.is_detailed or sampling.is_due(now, self.steps):
            if self.steps == SEARCH_STEPS:
                self._hooks.end_search()
            self._hooks.set_detailed(sampling.ends_measured(now, self.steps))
        if now >= self._record_ns:
            self._record("step")
            self._record_ns = now + (RECORD_NS if now - clock.begin < FIRST_NS else LATER_NS)
        self._due_ns = min(sampling.next_ns, self._record_ns)
        self._due_step = 0 if clock.is_detailed else sampling.next_step - 1

    def _look_at_other(self, has_gradients: bool, is_usual: bool) -> None:
        """A batch that does not come through this watch is evaluation, or of another dataset, or the step was long."""
        if not has_gradients and self._clock.device is not None:
            self._clock.device.make_part()
        self._look_closer(not (has_gradients and is_usual))

    def _on_long(self) -> None:
        self._sampling.search_long()
        self._due_step = 0

    def _look_closer(self, is_other: bool = False) -> None:
        """Measures the rest of a step in detail if it is not like others, such as one with an evaluation."""
        if is_other or self._clock.is_long():
            self._hooks.set_detailed(True, is_step=False)
            self._sampling.skip_step()
            self._due_step = 0

    def _epoch(self) -> float:
        """Epochs of `loader` completed, with the fraction of the present one if its length is known."""
        if self._begun_epochs == 0:
            return 0.0
        length = length_of(self.loader)
        if length is None:
            return float(self._begun_epochs - (self._loops > 0))
        return self._begun_epochs - 1 + self._batches / max(1, length)

    def _reading(self) -> Reading:
        device = self._clock.device
        return Reading(self._clock.now, self.steps, self.samples, self._sampling.spent(), self._hooks.workers.read(),
                       None if device is None else device.reading())

    def _record(self, kind: str) -> None:
        reading, is_end = self._reading(), kind == "end"  # which has the totals
        if self._outputs.open:
            groups = getattr(self._optimizer, "param_groups", None) or [{}]
            rate = groups[0].get("lr")
            record = record_of(kind, self._epoch(), self._begin if is_end else self._last, reading,
                               self._clock.begin, self._hooks.workers.count)
            record.update(loss=None if self._loss is None else finite(float(self._loss)),
                          lr=None if rate is None else finite(float(rate)),
                          telemetry=(self._total_telemetry if is_end else self._telemetry).read())
            if is_end:
                record["ended_by"] = self._ended_by
            self._outputs.write(record)
        self._last = reading

    def close(self) -> None:
        """Ends the measurement and removes every hook."""
        if not self._is_open:
            return
        try:
            self._end_others_step()
        finally:
            self._is_open, self._due_step = False, 0
            self._hooks.remove()
            if self in _active:  # not in a forked process
                _active.remove(self)
            self._clock.settle()
            try:
                if self.steps > self._last.steps:
                    self._record("step")
                self._record("end")
            finally:
                self._loss = self._optimizer = self._source = self._source_before = None
                self._clock.on_long = None  # a cycle that the garbage collector does not see
                self._outputs.close()

    def _has_ended(self) -> bool:
        """Whether it is left open only because nothing says that no loop over it will come."""
        return self.loader is not None and self._loops == 0 and not self._is_block and not self._is_manual

    def _is_for(self, loader: Any, arguments: Tuple[Any, ...]) -> bool:
        if self._is_block or loader is None or self.loader is None or self._arguments != arguments:
            return False
        is_next = arguments[0] is not None and self._loops == 0  # of the loop's loaders, if it makes one in each epoch
        return self.loader is loader or (is_next and have_same_data(self.loader, loader)
                                         and length_of(self.loader) == length_of(loader))

    def __enter__(self) -> Watch:
        self._is_block = True
        return self

    def __exit__(self, _kind: object, failure: Optional[BaseException], _trace: object) -> None:
        self._ended_by = _reason(failure)
        self.close()

    @property
    def folder(self) -> Optional[str]:
        """The run's folder, for saturate.report(); None if this process writes none."""
        return None if self._outputs.run is None else self._outputs.run.path

    @property
    def phases(self) -> Dict[str, float]:
        """Seconds by phase so far."""
        return {name: spent / 1e9 for name, spent in zip(NAMES, self._sampling.spent())}

    @property
    def device_phases(self) -> Optional[Dict[str, float]]:
        """Seconds of the GPU by phase so far, on the loop's stream, from the steps that are measured in detail. None
        without a GPU."""
        return device_phases(self._begin, self._reading())

    @property
    def workers(self) -> Optional[Dict[str, float]]:
        """The DataLoader workers that started since: `count`, those running now; `batches` that they made so far;
        `busy_s` and `cpu_s`, the seconds and CPU seconds that this took. None without any."""
        return worker_times(self._begin, self._reading(), self._hooks.workers.count)

    def __str__(self) -> str:
        spent = self._sampling.spent()
        total = sum(spent) / 1e9
        rate = self.samples / total if total > 0 else 0.0
        parts = ", ".join(f"{name} {share:.1%}" for name, share in shares(spent)) or "nothing yet"
        text = f"{self.steps} steps, {self.samples} samples in {total:.1f} s, {rate:.0f} samples/s: {parts}"
        workers = self.workers
        if workers and workers["batches"]:
            text += f"; workers: {workers['busy_s'] / workers['batches'] * 1e3:.1f} ms a batch"
        return text


def watch(loader: Any = None, *, out: Union[str, os.PathLike[str], None] = None, model: Any = None,
          tensorboard: Union[bool, str, os.PathLike[str]] = False) -> Watch:
    """Measures where a training loop's time goes: see saturate.Watch."""
    for one in _active:
        if one._is_for(loader, (out, model, tensorboard)):
            one.loader = loader
            return one
    return Watch(loader, out=out, model=model, tensorboard=tensorboard)


@atexit.register
def _close_all() -> None:
    # Python has noted the exception that ends the program, unless it is SystemExit. An interactive one goes on.
    failure = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    for one in list(_active):
        if one._clock.thread is not None:  # not in a forked process
            one._ended_by = _reason(failure)
            one.close()


def _stop_in_child() -> None:
    for one in _active:  # its thread has the same number in a forked process, such as a DataLoader's worker
        one._clock.thread = None
        one._outputs.leave_to_parent()
        _of_parents.append(one._outputs)  # kept, since a destructor may write
        one._outputs = Outputs()
    _active.clear()  # it may make its own


os.register_at_fork(after_in_child=_stop_in_child)
