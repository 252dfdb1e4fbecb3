"""The modules, optimizers and calls of a step, observed in a loop's first steps by hooks on torch."""

from __future__ import annotations

import contextlib
import re
import time
from typing import Any, Callable, Iterator, List, Optional, Tuple

from ._core import Error
from .patches import Calls, Copies, Counted, calls_of, replaced

OLDEST_TORCH = (2, 4)
STEPS = 3           # that are observed
LEAST_CALLS = 0.25  # calls of a kind per step, below which removing them cannot be measured,
LEAST_SHARE = 0.05  # unless they take this share of the time


def check_torch(torch: Any) -> None:
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < OLDEST_TORCH:
        raise Error(f"torch {torch.__version__} is too old (saturate.diagnose). Install torch 2.4 or later")


def imported_torch() -> Any:
    try:
        import torch
    except ImportError as failure:
        raise Error(f"torch cannot be imported: {failure}. Install torch 2.4 or later") from None
    check_torch(torch)
    return torch


class Observation:
    """Filled while active(). `modules` are outermost, called outside compiled code, and had gradients; `steps` is
    counted by the user of this."""

    def __init__(self, torch: Any, model: Any = None, optimizer: Any = None) -> None:
        self.torch = torch
        self.modules: List[Any] = [] if model is None else [model]
        self.optimizers: List[Any] = [] if optimizer is None else [optimizer]
        self.calls: Calls = calls_of(torch)
        self.counted = Counted()
        self.steps = 0
        self._later, self._later_steps, self._later_s = Counted(), 0, 0.0  # after the first steps
        self.optimizer_steps = 0
        self._optimizer_s = 0.0  # of _later_s
        self._is_looking = False
        self._updating: Optional[Tuple[Any, float]] = None  # the optimizer whose step has begun, and when
        self.is_anomaly = self.is_profiled = self.is_zeroed = self.is_autocast = False
        self.uncounted: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext  # of a Session
        self.is_blocking = False  # it copies pinned batches to a GPU, and waits for that
        self._copies = Copies(False, self._saw_waiting)
        self._finds_modules = model is None
        self._depth = 0

    @property
    def groups(self) -> List[Any]:
        """DistributedDataParallel modules."""
        from torch.nn.parallel import DistributedDataParallel

        return [each for module in self.modules for each in module.modules() if
                isinstance(each, DistributedDataParallel)]

    def is_often(self, cause: str) -> bool:
        """Whether removing these calls can be measured."""
        return (self.counted.calls.get(cause, 0) >= LEAST_CALLS * max(1, self.steps)
                or self._later.calls.get(cause, 0) >= LEAST_CALLS * max(1, self._later_steps)
                or self._later.seconds.get(cause, 0.0) > LEAST_SHARE * self._later_s)

    @property
    def optimizer_s(self) -> Optional[float]:
        """The seconds of a step that optimizers take on the host: no change of them saves more on a CPU. None: not
        known, as of compiled ones."""
        return self._optimizer_s / self._later_steps if self._optimizer_s > 0 and self._later_steps else None

    def look_again(self) -> None:
        """While active(): for what the script has imported meanwhile."""
        self.calls = calls_of(self.torch)
        self.counted.add(self.calls)

    @contextlib.contextmanager
    def looking(self) -> Iterator[Callable[[], None]]:
        """Counts, in turns of the loop as it is, calls that its first steps may lack, and times its optimizers. Call
        the block's value before each step."""
        self.calls = calls_of(self.torch)
        begin, self._updating, self._is_looking = time.perf_counter(), None, True
        with contextlib.ExitStack() as stack:
            counted = {cause: places for cause, places in self.calls.items() if cause != "item-in-loop"}
            stack.enter_context(self._later.active(counted))
            try:
                yield self._count_later
            finally:
                self._is_looking = False
                self._later_s += time.perf_counter() - begin

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Times optimizers while looking(). Their hooks stay, since other ones would be compiled into a compiled step
        again."""
        from torch.optim import optimizer as optimizers

        with optimizers.register_optimizer_step_pre_hook(self._begin_update), (
                optimizers.register_optimizer_step_post_hook(self._end_update)):
            yield

    def watched(self, batch: Any) -> Any:
        """A batch of the loop. While active(): notes how it is copied."""
        return self._copies.add(batch)

    def _saw_waiting(self) -> None:
        self.is_blocking = True

    def _count_later(self) -> None:
        self._later_steps += 1

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        from torch.nn.modules import module as modules
        from torch.optim import optimizer as optimizers

        handles = [modules.register_module_forward_pre_hook(self._enter),
                   modules.register_module_forward_hook(self._leave, always_call=True),
                   optimizers.register_optimizer_step_post_hook(self._after_step)]
        with contextlib.ExitStack() as stack:
            for handle in handles:
                stack.callback(handle.remove)
            stack.enter_context(self.counted.active(self.calls))
            stack.enter_context(self._copies.active())
            for owner in (self.torch.optim.Optimizer, self.torch.nn.Module):
                stack.enter_context(replaced(owner, "zero_grad", self._zeroing(owner.zero_grad)))
            yield

    def _zeroing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def zero_grad(this: Any, set_to_none: bool = True) -> Any:
            self.is_zeroed = self.is_zeroed or not set_to_none
            return original(this, set_to_none)

        return zero_grad

    def _enter(self, module: Any, *_: Any) -> None:
        if self.torch.compiler.is_compiling():
            return
        self._depth += 1
        if self._depth > 1 or not self.torch.is_grad_enabled():
            return
        self.is_anomaly |= self.torch.is_anomaly_enabled()
        self.is_profiled |= self.torch._C._autograd._profiler_enabled()
        self.is_autocast |= self.torch.is_autocast_enabled("cpu") or self.torch.is_autocast_enabled("cuda")
        has_weights = any(True for _ in module.parameters())
        if self._finds_modules and has_weights and all(each is not module for each in self.modules):
            self.modules.append(module)

    def _leave(self, *_: Any) -> None:
        if not self.torch.compiler.is_compiling():
            self._depth = max(0, self._depth - 1)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self.optimizer_steps += 1
        if all(each is not optimizer for each in self.optimizers):
            self.optimizers.append(optimizer)

    def _begin_update(self, optimizer: Any, *_: Any) -> None:
        if self.torch.compiler.is_compiling() or not self._is_looking:
            return
        if self._updating is None or self._updating[0] is optimizer:  # not one that another one calls
            self._updating = optimizer, time.perf_counter()

    def _end_update(self, optimizer: Any, *_: Any) -> None:
        if self.torch.compiler.is_compiling() or not self._is_looking:
            return
        if self._updating is not None and self._updating[0] is optimizer:
            self._optimizer_s += time.perf_counter() - self._updating[1]
            self._updating = None

    def missing(self) -> List[str]:
        """Names of the parts that were not found, for one line."""
        modules = [] if self.modules else ["a module with weights that is called with gradients"]
        return modules + ([] if self.optimizers else ["an optimizer that makes a step"])
