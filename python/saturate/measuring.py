"""Measures a script as it is: its rate and losses, which `tune` compares."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Generator, List, Optional, Sequence

from ._core import Error
from .device_time import synchronize
from .group_turns import world_of
from .loader_what_ifs import own_batches
from .observing import imported_torch
from .patches import endless_schedules, replaced
from .running import run_script
from .scripts import Finished, ScriptLoop
from .turns import Arm, Turns


class MeasuredLoop(ScriptLoop):
    """Runs some more steps as they are, and notes their losses: the values that backward starts from."""

    def __init__(self, torch: Any, path: str, steps: int) -> None:
        super().__init__(torch, path)
        self._steps = steps
        self.rate = 0.0                # steps/s
        self.losses: List[Any] = []
        self._unscaled: Dict[int, Any] = {}  # by the id of what a GradScaler made of it, which is kept too

    def begin(self) -> Generator[Any, None, None]:
        if world_of(self.torch) > 1:  # they would wait for this one
            raise Error("several processes train together, which only diagnose measures. Use diagnose")
        backward = self.torch.autograd.backward

        def noting(tensors: Any, *arguments: Any, **named: Any) -> Any:
            first = tensors if isinstance(tensors, self.torch.Tensor) else tensors[0]
            if first.numel() == 1:
                self.losses.append(self._unscaled.get(id(first), (first, None))[0].detach())
            self._unscaled.clear()
            return backward(tensors, *arguments, **named)

        scaler = self.torch.amp.GradScaler
        scale = scaler.scale

        def scaling(this: Any, outputs: Any) -> Any:
            made = scale(this, outputs)
            if isinstance(made, self.torch.Tensor):
                self._unscaled[id(made)] = outputs, made
            return made

        arm = Arm(own_batches(self.loader))
        turns = Turns((lambda: synchronize(self.torch)) if self.torch.cuda.is_available() else lambda: None)
        with replaced(self.torch.autograd, "backward", noting), replaced(scaler, "scale", scaling), (
                endless_schedules(self.torch)):
            pace = yield from turns.steps(arm, contextlib.nullcontext, 0.0, self._steps)
        self.rate = pace.steps_per_s

    def loss(self) -> Optional[float]:
        losses = self.losses[:self._steps]  # more if loaders had to settle, which differs between scripts
        last = [float(each) for each in losses[3 * len(losses) // 4:]]
        return sum(last) / len(last) if last else None


def measure_script(path: str, arguments: Sequence[str], steps: int, source: Optional[str] = None) -> Dict[str, Any]:
    """Steps/s, and the mean loss of the last quarter of the steps."""
    loop = MeasuredLoop(imported_torch(), path, steps)
    try:
        with loop.active():
            run_script(path, arguments, source)
    except (Finished, SystemExit):
        pass
    if not loop.rate:
        raise Error(f"the script ended before {steps} steps were measured ({path}). Give it more epochs, or measure "
                    "less: a smaller --steps, or for tune --seconds")
    return {"rate": loop.rate, "loss": loop.loss()}
