"""Batches on a device: copied from pinned memory on a separate stream. Images are normalised there by torch.

device="cpu" runs the same code, without streams and pinned memory.
"""

from __future__ import annotations

import collections
import contextlib
from typing import Any, Callable, Deque, List, NamedTuple, Optional, Sequence, Tuple

import torch

# How _core wants images mixed: (whether it is CutMix, lambda, offset, x, y, width, height).
MixPlan = Tuple[bool, float, int, int, int, int, int]

TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "uint8": torch.uint8}


class Staged(NamedTuple):
    """A batch whose copy may be in progress."""

    batch: Any  # (images, target), or fields by name
    done: Any  # the copy's event on a GPU; None on a CPU


class DeviceFeed:
    """Makes a device's batches from a loader's: images as bytes [N, S, S, 3], or fields of tensors by name."""

    depth = 2  # batches on the device: one in use, one being copied

    def __init__(self, device: Any, dtype: str, layout: str, mean: Sequence[float], std: Sequence[float]) -> None:
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._is_cuda = self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if self._is_cuda else None
        self._dtype, self._planar = TYPES[dtype], layout == "nchw"
        self._scale = torch.tensor([1 / (255 * s) for s in std], device=self.device, dtype=torch.float32)
        self._shift = torch.tensor([-m / s for m, s in zip(mean, std)], device=self.device, dtype=torch.float32)
        self._copying: Deque[Tuple[Any, Any]] = collections.deque()  # (event, tensors in host memory)

    def stage(self, data: Any, target: Any, mix: Optional[MixPlan]) -> Staged:
        """Starts to copy a batch: fields by name, or images with their target, and finishes images. Does not wait for
        the device."""
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()
        is_named = isinstance(data, dict)
        hosts = [torch.from_dlpack(each) for each in (data.values() if is_named else [data])]
        with torch.cuda.stream(self._stream) if self._is_cuda else contextlib.nullcontext():
            moved = [host.to(self.device, non_blocking=True) for host in hosts]
            batch = dict(zip(data, moved)) if is_named else (self._finished(moved.pop(), mix), self._moved(target))
            done = None
            if self._is_cuda:
                done = torch.cuda.Event()
                done.record()
                self._copying.append((done, hosts))  # the memory is the loader's again when this is gone
        return Staged(batch, done)

    def ready(self, staged: Staged) -> Any:
        """The batch, for use on the current stream, which waits for it."""
        if staged.done is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(staged.done)
            for tensor in _tensors(staged.batch):
                tensor.record_stream(current)
        # A new dictionary each time: a batch_transform may change it, and then fail.
        return dict(staged.batch) if isinstance(staged.batch, dict) else staged.batch

    def _finished(self, pixels: torch.Tensor, mix: Optional[MixPlan]) -> torch.Tensor:
        if self._dtype != torch.uint8:
            pixels = pixels.to(torch.float32).mul_(self._scale).add_(self._shift).to(self._dtype)
        if mix is not None:
            mix_pixels(pixels, mix)
        return pixels.permute(0, 3, 1, 2).contiguous() if self._planar else pixels

    def _moved(self, target: Any) -> Any:
        if isinstance(target, tuple):
            return tuple(self._moved(part) for part in target)
        if not hasattr(target, "__dlpack__"):
            return target  # lambda
        tensor = torch.from_dlpack(target)
        return (tensor.pin_memory() if self._is_cuda else tensor).to(self.device, non_blocking=True)


def allocator(device: Any) -> Optional[Callable[[int], Tuple[Any, int]]]:
    """How the loader's threads get the memory of a batch: pinned for a GPU, else their own."""
    return _pinned if torch.device(device).type == "cuda" else None


def _pinned(size: int) -> Tuple[torch.Tensor, int]:
    memory = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
    return memory, memory.data_ptr()


def _tensors(*values: Any) -> List[torch.Tensor]:
    found: List[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, tuple):
            found += _tensors(*value)
        elif isinstance(value, dict):
            found += _tensors(*value.values())
    return found


def mix_pixels(pixels: torch.Tensor, mix: MixPlan) -> None:
    """MixUp or CutMix of [N, S, S, 3] in place, as _core mixes on the CPU."""
    is_cut, lam, offset, x, y, width, height = mix
    if is_cut:
        box = pixels[:, y:y + height, x:x + width]
        box.copy_(box.roll(offset, 0))
    else:
        pixels.lerp_(pixels.roll(offset, 0), 1 - lam)
