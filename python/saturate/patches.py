"""Changes of torch and Python for the time of a `with` block: to count calls of a step, and to try a step without
them."""

from __future__ import annotations

import builtins
import contextlib
import functools
import logging
import os
import sys
import threading
import time
import weakref
from collections import UserDict
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple

# Calls that a step may make, by the cause that they would be. (owner, name)
Calls = Dict[str, List[Tuple[Any, str]]]

_WRITES = ("add_scalar", "add_scalars", "add_histogram", "add_image", "add_images", "add_figure")
# More calls, of what the loop has imported: (cause, module, class or none, names)
_OF_MODULES: Tuple[Tuple[str, str, str, Tuple[str, ...]], ...] = (
    ("logging", "torch.utils.tensorboard", "SummaryWriter", _WRITES),
    ("logging", "tensorboardX", "SummaryWriter", _WRITES),
    ("logging", "wandb", "", ("log",)),  # a method of a run's, once there is one
    ("logging", "wandb.sdk.wandb_run", "Run", ("log",)),
    ("logging", "mlflow", "", ("log_metric", "log_metrics")),
    ("logging", "mlflow.tracking.client", "MlflowClient", ("log_metric", "log_batch")),
    ("logging", "lightning.fabric.loggers.csv_logs", "_ExperimentWriter", ("save",)),
    ("logging", "lightning_fabric.loggers.csv_logs", "_ExperimentWriter", ("save",)),
    ("checkpoint-saves", "lightning.fabric.plugins.io.torch_io", "", ("_atomic_save",)),
    ("checkpoint-saves", "lightning_fabric.plugins.io.torch_io", "", ("_atomic_save",)),
    ("checkpoint-saves", "safetensors.torch", "", ("serialize_file",)),
)
_READS = ("item", "tolist", "__float__", "__int__", "__index__", "__bool__", "__format__", "__repr__")
COPIES = ("to", "cuda")
CONDITIONS = ("__bool__", "__index__")  # an old value could lead to a branch that does not fit the step's data
MOST_REPEATS = 8  # of one place in one step, that get its first value: a loop may wait for another one


def calls_of(torch: Any) -> Calls:
    found: Calls = {
        "item-in-loop": [(torch.Tensor, name) for name in _READS],
        "print-in-loop": [(builtins, "print")],
        "logging": [(logging.Logger, "handle"), (os, "fsync")],
        "checkpoint-saves": [(torch, "save")],
    }
    if torch.cuda.is_initialized():  # else nothing waits there
        found["item-in-loop"].append((torch.cuda, "synchronize"))
    for cause, module, kind, names in _OF_MODULES:
        owner = sys.modules.get(module)
        owner = getattr(owner, kind, None) if kind else owner
        found[cause] += [(owner, name) for name in names if hasattr(owner, name)]
    return found


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """A later replacement of `value` stays; it may call `value`, which then only forwards."""
    own = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if vars(owner).get(name) is value:
            if own is not None:
                setattr(owner, name, own)
            else:
                delattr(owner, name)  # it was inherited


@contextlib.contextmanager
def all_replaced(values: Iterable[Tuple[Any, str, Any]]) -> Iterator[None]:
    """`values`: (owner, name, value) of each replacement."""
    with contextlib.ExitStack() as stack:
        for each in values:
            stack.enter_context(replaced(*each))
        yield


def endless_schedules(torch: Any) -> contextlib.AbstractContextManager[None]:
    """OneCycleLR keeps its last rate instead of raising: a measurement makes more steps than are planned."""
    schedule = torch.optim.lr_scheduler.OneCycleLR
    original = schedule.get_lr

    def get_lr(this: Any) -> Any:
        if this.last_epoch > this.total_steps:
            return [group["lr"] for group in this.optimizer.param_groups]
        return original(this)

    return replaced(schedule, "get_lr", get_lr)


def _tensors_of(batch: Any) -> Iterator[Any]:
    if isinstance(batch, sys.modules["torch"].Tensor):
        yield batch
    elif isinstance(batch, (list, tuple, dict, UserDict)):
        for each in batch.values() if isinstance(batch, (dict, UserDict)) else batch:
            yield from _tensors_of(each)


class Copies:
    """Changes the first copy to a GPU of each pinned tensor in the batches given to add(), while active(): it does not
    wait, or calls `saw_waiting` if it does. Tensors stay as they are, since a loop may save or copy them."""

    def __init__(self, is_without_waiting: bool, saw_waiting: Callable[[], Any] = lambda: None) -> None:
        self._is_without_waiting, self._saw_waiting = is_without_waiting, saw_waiting
        self._pinned: Dict[int, Any] = {}  # weak references by id
        self._stack: Optional[contextlib.ExitStack] = None  # active, and nothing is replaced yet

    def add(self, batch: Any) -> Any:
        torch = sys.modules["torch"]
        pinned = [tensor for tensor in _tensors_of(batch) if tensor.layout == torch.strided and tensor.is_pinned()]
        for key, found in list(self._pinned.items()):  # another thread may copy meanwhile
            if found() is None:
                self._pinned.pop(key, None)
        self._pinned.update((id(tensor), weakref.ref(tensor)) for tensor in pinned)
        if pinned and self._stack is not None:
            for name in COPIES:
                self._stack.enter_context(replaced(torch.Tensor, name, self._copying(name)))
            self._stack = None
        return batch

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Replaces Tensor.to and cuda once a batch is pinned, not before: torchvision, if it is imported meanwhile,
        keeps them in a table."""
        with contextlib.ExitStack() as stack:
            self._stack = stack
            try:
                yield
            finally:
                self._stack = None

    def _copying(self, name: str) -> Callable[..., Any]:
        torch = sys.modules["torch"]
        original, is_compiling = getattr(torch.Tensor, name), torch.compiler.is_compiling

        @functools.wraps(original)
        def copy(tensor: Any, *arguments: Any, **named: Any) -> Any:
            found = None if is_compiling() else self._pinned.pop(id(tensor), None)
            if found is None or found() is not tensor:
                return original(tensor, *arguments, **named)
            waits = not named.get("non_blocking") and all(each is not True for each in arguments)
            if waits and self._is_without_waiting:
                arguments = tuple(each for each in arguments if each is not False)
                named["non_blocking"] = True
            made = original(tensor, *arguments, **named)
            if waits and made.device.type != "cpu":
                self._saw_waiting()
            return made

        copy.__module__, copy.__qualname__ = "torch", f"Tensor.{name}"  # by which it is pickled
        return copy


class Loading:
    """Active while the loop's loader makes a batch: its calls are not the step's."""

    is_active = False

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        before, self.is_active = self.is_active, True
        try:
            yield
        finally:
            self.is_active = before


LOADING = Loading()


def _is_from_library(frame: Any) -> bool:
    """torch's own optimizers call item(), which no user can leave out; turns wait for the GPU."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("torch", "saturate")


class Counted:
    """Calls, and the seconds in them, while active(); a call within another one counts once."""

    def __init__(self) -> None:
        self.calls: Dict[str, int] = {}
        self.seconds: Dict[str, float] = {}
        self._is_active = self._is_inside = False
        self._stack = contextlib.ExitStack()
        self._places: Set[Tuple[Any, str]] = set()

    def wrapper(self, cause: str, original: Callable[..., Any]) -> Callable[..., Any]:
        is_compiling = sys.modules["torch"].compiler.is_compiling

        def counted(*arguments: Any, **named: Any) -> Any:
            if (is_compiling() or not self._is_active or self._is_inside or LOADING.is_active
                    or _is_from_library(sys._getframe(1))):
                return original(*arguments, **named)
            self._is_inside, begin = True, time.perf_counter()
            try:
                return original(*arguments, **named)
            finally:
                self._is_inside = False
                self.calls[cause] = self.calls.get(cause, 0) + 1
                self.seconds[cause] = self.seconds.get(cause, 0.0) + time.perf_counter() - begin

        return counted

    def add(self, calls: Calls) -> None:
        """While active(): counts these calls too."""
        found = {place: cause for cause, places in calls.items() for place in places}
        for owner, name in found.keys() - self._places:
            wrapper = self.wrapper(found[owner, name], getattr(owner, name))
            self._stack.enter_context(replaced(owner, name, wrapper))
        self._places |= found.keys()

    @contextlib.contextmanager
    def active(self, calls: Calls) -> Iterator[None]:
        with contextlib.ExitStack() as self._stack:
            self._places.clear()
            self.add(calls)
            self._is_active = True
            try:
                yield
            finally:
                self._is_active = False


class _Turn:
    def __init__(self) -> None:
        self.is_active = False
        self.repeats: Dict[Any, int] = {}  # in this step, by place

    @contextlib.contextmanager
    def active(self, values: Iterable[Tuple[Any, str, Any]]) -> Iterator[None]:
        """is_active is True meanwhile. `values`: as of all_replaced()."""
        with all_replaced(values):
            self.is_active = True
            try:
                yield
            finally:
                self.is_active = False


def _is_read_anew(name: str, tensor: Any) -> bool:
    """Whole numbers are mostly lengths, which must be those of the batch: lists of them, and single ones that are
    there without waiting for a GPU."""
    return not tensor.is_floating_point() and (name == "tolist" or not tensor.is_cuda)


def _silent(original: Callable[..., Any], name: str, is_value: bool, turn: _Turn) -> Callable[..., Any]:
    values: Dict[Tuple[Any, int], Any] = {}
    is_compiling = sys.modules["torch"].compiler.is_compiling

    def silent(*arguments: Any, **named: Any) -> Any:
        if is_compiling():
            return original(*arguments, **named)
        frame = sys._getframe(1)
        if not turn.is_active or LOADING.is_active or _is_from_library(frame):
            return original(*arguments, **named)
        if not is_value:
            return None
        if _is_read_anew(name, arguments[0]):
            return original(*arguments, **named)
        place = (frame.f_code, frame.f_lasti)  # each place gets its first value again, without waiting for it
        turn.repeats[place] = turn.repeats.get(place, 0) + 1
        if turn.repeats[place] > MOST_REPEATS:
            return original(*arguments, **named)
        if place not in values:
            values[place] = original(*arguments, **named)
        return values[place]

    return silent


def without_calls(cause: str, calls: Calls) -> Callable[[], contextlib.AbstractContextManager[Callable[[], None]]]:
    """A step without the calls of a cause. Values that a step reads are those of its first time, but for conditions.
    The `with` block's value is to be called before each step."""
    turn, tensor = _Turn(), sys.modules["torch"].Tensor
    wrappers = [(owner, name, _silent(getattr(owner, name), name, owner is tensor, turn))
                for owner, name in calls[cause] if name not in CONDITIONS]

    @contextlib.contextmanager
    def change() -> Iterator[Callable[[], None]]:
        turn.repeats.clear()
        with turn.active(wrappers):
            yield turn.repeats.clear

    return change


def uncounted_saves(
        calls: Calls, uncounted: Callable[[], contextlib.AbstractContextManager[Any]],
) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A step whose saves are made `uncounted`. They are not left out: a step may remove older checkpoints for a new
    one, or rename it, or write what it saved in memory to a file."""
    turn, thread = _Turn(), threading.get_ident()
    is_compiling = sys.modules["torch"].compiler.is_compiling

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def save(*arguments: Any, **named: Any) -> Any:
            if is_compiling() or not turn.is_active or threading.get_ident() != thread:
                return original(*arguments, **named)
            turn.is_active = False  # in calls of others
            try:
                with uncounted():
                    return original(*arguments, **named)
            finally:
                turn.is_active = True

        return save

    return lambda: turn.active([(owner, name, wrapper(getattr(owner, name)))
                                for owner, name in calls["checkpoint-saves"]])
