"""Charges wall time to one phase at a time, as the command's ledger does, by hooks on torch."""

from __future__ import annotations

import contextlib
import functools
import sys
from threading import get_ident
from typing import Any, Callable, Dict, List, Optional, Tuple

from ._core import PHASES, PhaseClock
from .device_time import cuda_time
from .patches import replaced
from .worker_time import WorkerTimes

NAMES = PHASES  # of metrics.jsonl
WAIT, COPY, FORWARD, BACKWARD, REDUCE, OPTIMIZER, HOST, EVALUATION = (
    NAMES.index(name) for name in ("wait", "copy", "forward", "backward", "reduce", "optimizer", "host", "evaluation"))

COLLECTIVES = ("all_reduce", "all_gather", "broadcast", "barrier")  # of torch.distributed that a loop may call


class _Hook:
    """A module's hook. That of a copied or pickled module is a function of Python's that does nothing."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __call__(self, *_: Any) -> None:
        self._call()

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext, "__exit__")


class _Switch:
    """Hooks that are there only in steps that are measured in detail: even an empty one takes 10 us of a step."""

    def __init__(self, *attach: Callable[[], Any]) -> None:
        self._attach = attach
        self._handles: List[Any] = []
        self._add()

    def set(self, is_on: bool) -> None:
        if not is_on:
            self.remove()
        elif not self._handles:
            self._add()

    def _add(self) -> None:
        for attach in self._attach:  # one at a time: an interrupt loses none
            self._handles.append(attach())

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class _Partial(functools.partial[Any]):
    """Is pickled by the name of the function that it replaces, which update_wrapper() has given it."""

    def __reduce__(self) -> Any:
        return vars(self)["__name__"]


def _nothing(*_: Any) -> None:
    pass


class _Swap(_Switch):
    """`call` is `measured` in steps that are measured in detail, or if `is_always()`, and else `usual`. It stays where
    it is, so it may be exchanged while torch goes through its hooks. A partial() adds 1 to 2 us to a step, a function
    with conditions 5 us or more."""

    def __init__(self, usual: Callable[..., Any], measured: Callable[..., Any],
                 is_always: Callable[[], bool] = bool) -> None:
        super().__init__()
        self._usual, self._measured, self._is_always = usual, measured, is_always
        self.call: Any = _Partial(measured)

    def set(self, is_on: bool) -> None:
        self._become(self._measured if is_on or self._is_always() else self._usual)

    def remove(self) -> None:
        self._become(self._usual)

    def _become(self, function: Callable[..., Any]) -> None:
        self.call.__setstate__((function, (), {}, vars(self.call)))


class _ModuleHooks(_Switch):
    """Those of a module."""

    def __init__(self, module: Any, enter: Callable[[_ModuleHooks], None], leave: Callable[[], None]) -> None:
        self._module = module
        self.has_entered = False  # it, outside compiled code
        super().__init__(lambda: module.register_forward_pre_hook(_Hook(lambda: enter(self))),
                         lambda: module.register_forward_hook(_Hook(leave), always_call=True))

    def set(self, is_on: bool) -> None:
        """Does nothing if it is called in compiled code, which would be compiled again."""
        if self.has_entered and getattr(self._module, "_compiled_call_impl", None) is None:
            super().set(is_on)


class Hooks:
    """Finds a loop's phases. `on_batch` gets each batch that a loader returned, and its source, `on_optimizer` each
    optimizer that has made a step. remove() undoes everything."""

    counts_optimizers = True  # False: on_optimizer() is called only in steps that are measured in detail

    def __init__(self, clock: PhaseClock, on_batch: Callable[[Any, Any], None], on_optimizer: Callable[[Any], None],
                 model: Any = None) -> None:
        self._clock, self._on_batch, self._on_optimizer = clock, on_batch, on_optimizer
        self._undo = contextlib.ExitStack()
        self._search: List[Any] = []           # global hooks, while outermost modules are looked for
        self._known: Dict[int, Any] = {}       # modules with hooks
        self._depth = 0
        self._switches: List[_Switch] = []     # what is there only in steps that are measured in detail
        self._is_traced: Callable[[], bool] = bool  # by torch.compile: what is ours must then do nothing in its graph
        self.workers = WorkerTimes()
        from .iteration import Iteration

        self._wrap(Iteration, "__next__", WAIT, self._on_batch)
        torch = sys.modules.get("torch")
        if torch is not None:
            try:
                self._hook_torch(torch, model)
            except BaseException:
                self.remove()
                raise

    def remove(self) -> None:
        self.end_search()
        self._clock.thread, self.workers.is_over = None, True  # for those that others have wrapped, which stay
        for switch in self._switches:
            switch.remove()
        self._undo.close()

    def end_search(self) -> None:
        """From now on only the modules that were outermost so far count; others' hooks would cost time."""
        for handle in self._search:
            handle.remove()
        self._search.clear()

    def set_detailed(self, is_detailed: bool, is_step: bool = True) -> None:
        """Sets it for the next step, or (not `is_step`) the rest of this one, on the host."""
        device = self._clock.device
        if device is not None and is_step:
            device.end_step(is_detailed)
        if is_detailed == self._clock.is_detailed:
            return
        for switch in self._switches:
            switch.set(is_detailed)
        self._clock.set_detailed(is_detailed)

    def _hook_torch(self, torch: Any, model: Any) -> None:
        from torch.nn.modules import module as modules
        from torch.optim import optimizer
        from torch.utils.data import dataloader

        self._torch = torch
        self._is_traced = getattr(torch.compiler, "is_compiling", bool)  # from torch 2.3 on
        self._wrap(dataloader._BaseDataLoaderIter, "__next__", WAIT, self._on_batch)
        multi = dataloader._MultiProcessingDataLoaderIter
        self._undo.enter_context(replaced(multi, "__init__", self.workers.wrapped(multi.__init__)))
        self._clock.device = cuda_time(torch, len(NAMES))
        if self._clock.device is not None:
            self._wrap(torch.Tensor, "to", COPY)
            self._wrap(torch.Tensor, "cuda", COPY)
        self._wrap_backward(torch)
        self._wrap_collectives(torch)
        # These stay, since a program's own such hook may end a step.
        before = _Swap(_nothing, lambda *_: self._clock.enter(OPTIMIZER))
        after = _Swap(_nothing, self._after_optimizer, lambda: self.counts_optimizers)
        self._switches += before, after
        self._undo.callback(optimizer.register_optimizer_step_pre_hook(before.call).remove)
        self._undo.callback(optimizer.register_optimizer_step_post_hook(after.call).remove)
        if model is not None:
            self._add_module(model)
        else:
            self._search = [modules.register_module_forward_pre_hook(self._search_enter),
                            modules.register_module_forward_hook(self._search_leave, always_call=True)]

    def _wrap_collectives(self, torch: Any) -> None:
        if not torch.distributed.is_available():
            return
        from torch.nn.parallel import DistributedDataParallel

        for name in COLLECTIVES:
            self._wrap(torch.distributed, name, REDUCE)
        if hasattr(DistributedDataParallel, "_sync_buffers"):
            self._wrap(DistributedDataParallel, "_sync_buffers", REDUCE)

    def _wrap_backward(self, torch: Any) -> None:
        original, clock, engine = torch.autograd.backward, self._clock, torch.autograd.Variable._execution_engine
        distributed = torch.distributed
        is_distributed = distributed.is_initialized if distributed.is_available() else lambda: False

        def last_gradient() -> None:
            clock.switch(BACKWARD, REDUCE)

        def first_gradient(_: Any) -> None:
            engine.queue_callback(last_gradient)  # before DDP's own, which waits

        def hooked(roots: Any) -> Any:
            root = roots[0] if isinstance(roots, (list, tuple)) and roots else roots
            if isinstance(root, torch.Tensor) and root.requires_grad:
                return root.register_hook(first_gradient)
            return None

        def backward(*arguments: Any, **named: Any) -> Any:
            if get_ident() != clock.thread:
                return original(*arguments, **named)
            hook = hooked(arguments[0] if arguments else named.get("tensors")) if is_distributed() else None
            is_nested = clock.phase == BACKWARD  # a checkpointed part's: DDP may wait at its end
            if not is_nested:
                clock.enter(BACKWARD)
            try:
                return original(*arguments, **named)
            finally:
                if is_nested:
                    clock.switch(REDUCE, BACKWARD)
                else:
                    clock.leave()
                if hook is not None:
                    hook.remove()

        swap = _Swap(original, backward)
        self._switches.append(swap)
        self._undo.enter_context(replaced(torch.autograd, "backward", functools.update_wrapper(swap.call, original)))

    def _wrap(self, owner: Any, name: str, phase: int, then: Optional[Callable[[Any, Any], None]] = None
              ) -> None:
        original, clock = getattr(owner, name), self._clock

        enter, leave, is_traced = clock.enter, clock.leave, self._is_traced

        @functools.wraps(original)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            # The third: within a call that is counted.
            if (is_traced() or not (phase == WAIT or clock.is_detailed) or clock.phase == phase
                    or get_ident() != clock.thread):
                return original(*arguments, **named)
            enter(phase)
            try:
                result = original(*arguments, **named)
            finally:
                leave()
            if then is not None:
                then(result, _source_of(arguments[0]))
            return result

        self._undo.enter_context(replaced(owner, name, wrapper))

    def _add_module(self, module: Any) -> None:
        if isinstance(module, self._torch.jit.ScriptModule):  # takes no hooks; its time is the host's
            return
        self._known[id(module)] = module  # kept, so that its id stays its own
        compiled = getattr(module, "_compiled_call_impl", None)  # by module.compile()
        if compiled is not None:
            self._undo.enter_context(replaced(module, "_compiled_call_impl", self._measured(compiled)))
        else:
            self._switches.append(_ModuleHooks(module, self._enter_module, self._leave_module))

    def _measured(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any, **named: Any) -> Any:
            self._enter_module()
            try:
                return call(*arguments, **named)
            finally:
                self._leave_module()

        return measured

    def _enter_module(self, hooks: Optional[_ModuleHooks] = None) -> None:
        if not self._is_traced() and self._clock.is_detailed:
            if hooks is not None:
                hooks.has_entered = True
            self._clock.enter(FORWARD if self._torch.is_grad_enabled() else EVALUATION)

    def _leave_module(self) -> None:
        if not self._is_traced() and self._clock.is_detailed:
            self._clock.leave()

    def _search_enter(self, module: Any, *_: Any) -> None:
        if self._is_traced() or get_ident() != self._clock.thread:
            return
        self._depth += 1
        if self._depth == 1 and id(module) not in self._known:
            self._add_module(module)
            if id(module) in self._known:  # its hook before this call is late, the one after it is not
                self._enter_module()

    def _search_leave(self, *_: Any) -> None:
        if not self._is_traced() and get_ident() == self._clock.thread and self._depth > 0:
            self._depth -= 1

    def _after_optimizer(self, optimizer: Any, *_: Any) -> None:
        if self._clock.is_detailed:
            self._clock.leave()
        if get_ident() == self._clock.thread:
            self._on_optimizer(optimizer)


def _source_of(iteration: Any) -> Any:
    """The dataset of a DataLoader's iteration, or saturate's loader."""
    dataset = getattr(iteration, "_dataset", None)
    return getattr(iteration, "_loader", None) if dataset is None else dataset


def size_of(batch: Any) -> int:
    """Samples in a batch: the length of the first array in it; 0 if there is none."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)) and batch:
        return size_of(batch[0]) or (len(batch) if isinstance(batch[0], (str, bytes)) else 0)
    return 0


def shares(spent: List[int]) -> List[Tuple[str, float]]:
    """The phases' shares of the time, the largest first; those without any are not listed."""
    total = sum(spent) or 1
    return sorted(((name, value / total) for name, value in zip(NAMES, spent) if value), key=lambda pair: -pair[1])
