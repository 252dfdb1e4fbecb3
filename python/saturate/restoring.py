"""Keeps the state of a training, and restores it to the bit: weights, gradients, optimizers, schedulers, loss scale,
random numbers, samplers. Tensors, dicts and lists stay the same objects."""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import gc
import random
import signal
import sys
import threading
from typing import Any, Callable, Collection, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from ._core import Error

Restore = Callable[[], None]
CONTAINERS: Tuple[Any, ...] = (dict, list, set, collections.deque)


def _nothing() -> None:
    pass


def _call_each(parts: List[Restore]) -> None:
    for part in parts:
        part()


def _keep_tensor(tensor: Any, torch: Any) -> Restore:
    if tensor.is_meta or isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        return _nothing
    copy, data = tensor.detach().to("cpu", copy=True), tensor.data
    grad = tensor.grad if tensor.is_leaf else None
    keep_grad = _keep_tensor(grad, torch) if grad is not None else None
    is_dense = str(tensor.layout) == "torch.strided"
    own: Tuple[slice, ...] = ()  # the part of an expanded tensor that has memory of its own
    if is_dense and 0 in tensor.stride():
        own = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())

    def restore() -> None:
        if is_dense and (tensor.data_ptr() != data.data_ptr() or tensor.stride() != data.stride()):
            tensor.data = data  # a what-if has replaced its memory
        if own:
            tensor.data[own].copy_(copy[own])
        else:
            tensor.data.copy_(copy)
        if tensor.is_leaf:
            tensor.grad = grad
        if keep_grad:
            keep_grad()

    return restore


def _keep_elements(value: Any) -> Restore:
    """Keeps which elements one of CONTAINERS has, but not what is in them."""
    kind = next(each for each in CONTAINERS if isinstance(value, each))
    elements = kind(value)

    def restore() -> None:
        value.clear()
        (value.update if kind in (dict, set) else value.extend)(elements)

    return restore


def _keep_numbers(value: Any, torch: Any) -> Optional[Restore]:
    """Keeps an array, or a generator of random numbers; None: it is something else."""
    numpy = sys.modules.get("numpy")
    if numpy and isinstance(value, numpy.ndarray) and value.flags.writeable:
        array, copy_to = value.copy(), numpy.copyto
        return lambda: copy_to(value, array)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        before = value.getstate()
        return lambda: value.setstate(before)
    numpy = sys.modules.get("numpy.random")
    if isinstance(value, torch.Generator) or (numpy and isinstance(value, numpy.RandomState)):
        state = value.get_state()
        return lambda: value.set_state(state)
    if numpy and isinstance(value, (numpy.Generator, numpy.BitGenerator)):
        bits = getattr(value, "bit_generator", value)
        numbers = bits.state
        return lambda: setattr(bits, "state", numbers)
    return None


def _generators(torch: Any, objects: List[Any]) -> List[Any]:
    """The torch.Generators that `objects` refer to: gc has no list of them, nor of dicts and tuples of such alone."""
    found: Dict[int, Any] = {}
    while objects:
        referred = gc.get_referents(*objects)
        found.update((id(each), each) for each in referred if type(each) is torch.Generator)
        objects = [each for each in referred if type(each) in (dict, tuple) and not gc.is_tracked(each)]
    return list(found.values())


def _keep(value: Any, seen: Set[int], torch: Any) -> Restore:
    """Keeps a tensor, a generator, an array or one of CONTAINERS, however nested; other values are taken to be
    immutable."""
    if id(value) in seen:
        return _nothing
    if isinstance(value, tuple):
        parts = _keep_each(value, seen, torch)
        return functools.partial(_call_each, parts) if parts else _nothing
    if isinstance(value, torch.Tensor):
        keep: Optional[Restore] = _keep_tensor(value, torch)
    else:
        keep = _keep_elements(value) if isinstance(value, CONTAINERS) else _keep_numbers(value, torch)
    if keep is None:
        return _nothing
    seen.add(id(value))
    inside: Iterable[Any] = ()
    if isinstance(value, CONTAINERS):
        inside = list(dict(value).values() if isinstance(value, dict) else value)
    parts = _keep_each(inside, seen, torch)
    return functools.partial(_call_each, [keep, *parts]) if parts else keep


def _keep_each(values: Iterable[Any], seen: Set[int], torch: Any) -> List[Restore]:
    return [part for part in (_keep(each, seen, torch) for each in values) if part is not _nothing]


def _tracked() -> List[Any]:
    if not gc.get_freeze_count():
        return gc.get_objects()
    gc.unfreeze()  # gc.get_objects() leaves out what is frozen
    try:
        return gc.get_objects()
    finally:
        gc.freeze()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits for the end of the block."""
    handler = signal.getsignal(signal.SIGINT)
    caught: List[Any] = []
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda *arguments: caught.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if caught:
            handler(*caught[0])


class Kept:
    """The state of `objects` and of everything of torch's that trains: all modules, optimizers, schedulers and
    scalers of this process, and all its generators of random numbers; and of `samplers`, as far as they have one.
    restore() may be called several times. `data`, which samplers may hold, is only kept if it is one of `objects`.
    Raises TypeError if one of these cannot be kept, and Error if a sampler is an iterator without a state."""

    def __init__(self, torch: Any, objects: Collection[Any] = (), samplers: Iterable[Any] = (),
                 data: Any = None) -> None:
        self._parts: List[Restore] = []
        self._torch = torch
        seen = {id(data)} - {id(each) for each in objects}
        self._kinds = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler,
                       torch.amp.GradScaler)
        tracked = _tracked()
        found = [each for each in tracked if issubclass(type(each), self._kinds)]
        generators = _generators(torch, tracked)
        del tracked
        given = [module for each in objects if issubclass(type(each), torch.nn.Module) for module in each.modules()]
        for each in {id(each): each for each in [*found, *given]}.values():
            if issubclass(type(each), torch.nn.Module) and hasattr(each, "_parameters"):  # else its __init__ failed
                self._keep_module(each, seen)
        for each in [*found, *generators]:
            if not issubclass(type(each), torch.nn.Module):
                self._keep_object(each, seen)
        for each in samplers:
            if not self._keep_object(each, seen) and hasattr(type(each), "__next__"):
                raise Error("the loader's sampler or batch_sampler is an iterator, which can be iterated once "
                            "(saturate.diagnose). Give the DataLoader a list, or an object with __iter__()")
        for each in objects:
            if not issubclass(type(each), torch.nn.Module) and not self._keep_object(each, seen):
                raise TypeError(f"state has a {type(each).__name__}, which cannot be restored (saturate.diagnose). "
                                "Give tensors, dicts, lists, generators of random numbers, objects with state_dict()")
        self._keep_random()

    def _keep_module(self, module: Any, seen: Set[int]) -> None:
        training = getattr(module, "training", None)  # torch.jit.freeze removes it

        def restore_mode() -> None:
            if training is not None and module.training != training:
                module.training = training

        is_lazy = isinstance(module, self._torch.nn.modules.lazy.LazyModuleMixin)
        is_of_torch = type(module).__module__.startswith("torch.")  # some, such as DDP, also have state in C++
        if not is_lazy and not is_of_torch:
            self._parts.append(_keep_elements(vars(module)))
        self._parts.append(restore_mode)
        for name in ("_parameters", "_buffers"):
            if isinstance(vars(module).get(name), dict):
                self._parts.append(_keep_elements(vars(module)[name]))
        own = self._torch.nn.Module  # whose methods a class may override
        for _, tensor in [*own.named_parameters(module, recurse=False), *own.named_buffers(module, recurse=False)]:
            self._parts.append(_keep(tensor, seen, self._torch))

    def _keep_object(self, value: Any, seen: Set[int]) -> bool:
        """False: its state is unknown."""
        if isinstance(value, (*CONTAINERS, tuple, self._torch.Tensor)):
            self._parts.append(_keep(value, seen, self._torch))
        elif (keep := _keep_numbers(value, self._torch)) is not None:
            self._parts.append(keep)
        elif (state := self._own_state(value)) is not None:
            self._parts.append(lambda: value.load_state_dict(copy.deepcopy(state)))
        elif hasattr(value, "__dict__"):
            self._parts.append(_keep(vars(value), seen, self._torch))
        else:
            return False
        return True

    def _own_state(self, value: Any) -> Any:
        """None: its attributes are its state, as those of torch's objects are."""
        is_of_torch = isinstance(value, self._kinds) or type(value).__module__.startswith("torch.")
        if is_of_torch or not callable(getattr(value, "load_state_dict", None)):
            return None
        try:
            return copy.deepcopy(value.state_dict())  # it may refer to what the object goes on changing
        except (AttributeError, NotImplementedError):  # Accelerate's loaders have both methods, and mostly no state
            return None

    def _keep_random(self) -> None:
        torch, numpy = self._torch, sys.modules.get("numpy")
        python, host = random.getstate(), torch.get_rng_state()
        self._parts += [lambda: random.setstate(python), lambda: torch.set_rng_state(host)]
        if numpy is not None:
            arrays = numpy.random.get_state()
            self._parts.append(lambda: numpy.random.set_state(arrays))
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            devices = torch.cuda.get_rng_state_all()
            self._parts.append(lambda: torch.cuda.set_rng_state_all(devices))

    def restore(self) -> None:
        """All that it can; then raises the first failure."""
        failure: Optional[Exception] = None
        with self._torch.no_grad(), _uninterrupted():
            for part in self._parts:
                try:
                    part()
                except Exception as found:
                    failure = failure or found
        if failure:
            raise failure
