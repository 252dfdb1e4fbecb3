"""Charges wall time to one phase at a time, as the command's ledger does, by hooks on torch."""

from __future__ import annotations

import contextlib
import functools
import sys
from threading import get_ident
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from ._core import PHASES, Hook, PhaseClock, StepCounter
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


class _Partial(functools.partial[Any]):
    """Is pickled by the name of the function that it replaces, which update_wrapper() has given it."""

    def __reduce__(self) -> Any:
        return vars(self)["__name__"]


class _Exchange:
    """Calls set_function(measured) for steps that are measured in detail, and set_function(usual) for others. What has
    the function stays where it is, so it may be exchanged while torch goes through its hooks."""

    def __init__(self, set_function: Callable[[Any], None], usual: Any, measured: Callable[..., Any]) -> None:
        self.usual = usual
        self._measured, self._set_function = measured, set_function
        set_function(measured)

    def set(self, is_on: bool) -> None:
        self._set_function(self._measured if is_on else self.usual)

    def remove(self) -> None:
        self._set_function(self.usual)


class _ModuleHooks:
    """A module's, only in steps that are measured in detail: even an empty one takes 10 us of a step."""

    def __init__(self, module: Any, enter: Callable[[_ModuleHooks], None], leave: Callable[[], None]) -> None:
        self._module, self._enter, self._leave = module, enter, leave
        self.has_entered = False  # it, outside compiled code
        self._handles: List[Any] = []
        self._add()

    def set(self, is_on: bool) -> None:
        """Does nothing if it is called in compiled code, which would be compiled again."""
        if not self.has_entered or getattr(self._module, "_compiled_call_impl", None) is not None:
            return
        if not is_on:
            self.remove()
        elif not self._handles:
            self._add()

    def _add(self) -> None:
        # One at a time: an interrupt loses none.
        self._handles.append(self._module.register_forward_pre_hook(_Hook(lambda: self._enter(self))))
        self._handles.append(self._module.register_forward_hook(_Hook(self._leave), always_call=True))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class Hooks:
    """Finds a loop's phases, and tells `counter` of batches and of optimizers' steps. remove() undoes everything."""

    def __init__(self, clock: PhaseClock, counter: StepCounter, model: Any = None) -> None:
        self._clock, self._counter = clock, counter
        self._undo = contextlib.ExitStack()
        self._search: List[Any] = []           # global hooks, while outermost modules are looked for
        self._known: Dict[int, Any] = {}       # modules with hooks
        self._depth = self._in_wait = 0        # modules' calls, all and those that make a batch
        # Active only in steps that are measured in detail.
        self._switches: List[Union[_Exchange, _ModuleHooks]] = []
        self._after: Optional[_Exchange] = None    # optimizers' hook
        self._is_traced: Callable[[], bool] = bool  # by torch.compile: what is ours must then do nothing in its graph
        self.workers = WorkerTimes()
        from .iteration import Iteration

        self._wrap_next(Iteration)
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
        self.ignore_optimizers()  # the collector does not see what a Hook refers to
        for switch in self._switches:
            switch.remove()
        self._undo.close()

    def end_search(self) -> None:
        """From now on only the modules that were outermost so far count; others' hooks would cost time."""
        for handle in self._search:
            handle.remove()
        self._search.clear()

    def ignore_optimizers(self) -> None:
        """In steps that are not measured in detail."""
        if self._after is not None:
            self._after.usual = None

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
        self._wrap_next(dataloader._BaseDataLoaderIter)
        self._counter._is_grad_enabled = torch.is_grad_enabled
        multi = dataloader._MultiProcessingDataLoaderIter
        self._undo.enter_context(replaced(multi, "__init__", self.workers.wrapped(multi.__init__)))
        self._clock.device = cuda_time(torch, len(NAMES))
        if self._clock.device is not None:
            self._wrap(torch.Tensor, "to", COPY)
            self._wrap(torch.Tensor, "cuda", COPY)
        self._wrap_backward(torch)
        self._wrap_collectives(torch)
        self._wrap_script(torch)
        # These stay, since a program's own such hook may end a step.
        before, after = Hook(), Hook()
        self._after = _Exchange(functools.partial(setattr, after, "function"), self._counter._optimizer_stepped,
                                self._after_optimizer)
        self._switches += self._after, _Exchange(functools.partial(setattr, before, "function"), None,
                                                 lambda *_: self._clock.enter(OPTIMIZER))
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

    def _wrap_script(self, torch: Any) -> None:
        """torch.jit.script compiles a module's hooks too, which ours are not made for."""
        original, of_copies = torch.jit.script, contextlib.nullcontext.__exit__  # see _Hook

        @functools.wraps(original)
        def script(obj: Any, *arguments: Any, **named: Any) -> Any:
            with contextlib.ExitStack() as put_back:
                for module in obj.modules() if isinstance(obj, torch.nn.Module) else ():
                    for hooks in module._forward_pre_hooks, module._forward_hooks:
                        for key in [key for key, hook in hooks.items() if isinstance(hook, _Hook) or hook is of_copies]:
                            put_back.callback(hooks.__setitem__, key, hooks.pop(key))
                return original(obj, *arguments, **named)

        self._undo.enter_context(replaced(torch.jit, "script", script))

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

        replacement: Any = functools.update_wrapper(_Partial(original), original)
        self._switches.append(_Exchange(
            lambda function: replacement.__setstate__((function, (), {}, vars(replacement))), original, backward))
        self._undo.enter_context(replaced(torch.autograd, "backward", replacement))

    def _wrap_next(self, owner: Any) -> None:
        original, other_batch = owner.__next__, self._counter._other_batch

        @functools.wraps(original)
        def wrapper(iteration: Any) -> Any:
            return other_batch(original, iteration)

        self._undo.enter_context(replaced(owner, "__next__", wrapper))

    def _wrap(self, owner: Any, name: str, phase: int) -> None:
        original, clock = getattr(owner, name), self._clock
        enter, leave, is_traced = clock.enter, clock.leave, self._is_traced

        @functools.wraps(original)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            # The third: within a call that is counted.
            if is_traced() or not clock.is_detailed or clock.phase == phase or get_ident() != clock.thread:
                return original(*arguments, **named)
            enter(phase)
            try:
                return original(*arguments, **named)
            finally:
                leave()

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
            if self._is_loading():
                self._in_wait += 1
                return
            self._clock.enter(FORWARD if self._torch.is_grad_enabled() else EVALUATION)

    def _leave_module(self) -> None:
        if not self._is_traced() and self._clock.is_detailed:
            if self._in_wait and self._is_loading():
                self._in_wait -= 1
                return
            self._clock.leave()

    def _is_loading(self) -> bool:
        """Whether the loop waits for a batch, which may be made here, by transforms that are modules."""
        return self._clock.phase == WAIT and get_ident() == self._clock.thread

    def _search_enter(self, module: Any, *_: Any) -> None:
        if self._is_traced() or get_ident() != self._clock.thread:
            return
        self._depth += 1
        if self._depth == 1 and id(module) not in self._known and not self._is_loading():
            self._add_module(module)
            if id(module) in self._known:  # its hook before this call is late, the one after it is not
                self._enter_module()

    def _search_leave(self, *_: Any) -> None:
        if not self._is_traced() and get_ident() == self._clock.thread and self._depth > 0:
            self._depth -= 1

    def _after_optimizer(self, optimizer: Any, *_: Any) -> None:
        if self._clock.is_detailed:
            self._clock.leave()
        self._counter._optimizer_stepped(optimizer)


def _samples_in(batch: Any) -> int:
    """Samples that are not collated: a list of them, or zip(*samples); 0 if it is neither. Collated ones hold arrays,
    lists and mappings only."""
    if all(isinstance(each, Mapping) for each in batch):
        return len(batch) if any(isinstance(value, (int, float, str)) for value in batch[0].values()) else 0
    if not all(type(each) is tuple for each in batch):
        return 0
    if isinstance(batch, list):
        return len(batch) if not all(hasattr(value, "shape") for value in batch[0]) else 0
    is_zipped = len({len(each) for each in batch}) == 1 and not all(hasattr(value, "shape") for each in batch
                                                                   for value in each)
    return len(batch[0]) if is_zipped else 0


def size_of(batch: Any) -> int:
    """Samples in a batch: the first number of the shape of the first array in it; 0 if there is none."""
    shape = None
    with contextlib.suppress(Exception):
        shape = batch.shape
    if shape is not None:
        with contextlib.suppress(Exception):
            return int(shape[0])
        return 0
    if isinstance(batch, Mapping):
        return next(filter(None, map(size_of, batch.values())), 0)
    for name in ("num_graphs", "batch_size"):  # of graphs
        number = getattr(batch, name, None)
        if isinstance(number, int):
            return number
    if isinstance(batch, (list, tuple)) and batch:
        return _samples_in(batch) or size_of(batch[0]) or (len(batch) if isinstance(batch[0], (str, bytes)) else 0)
    return 0


def shares(spent: List[int]) -> List[Tuple[str, float]]:
    """The phases' shares of the time, the largest first; those without any are not listed."""
    total = sum(spent) or 1
    return sorted(((name, value / total) for name, value in zip(NAMES, spent) if value), key=lambda pair: -pair[1])
