"""An iteration in Accelerate's state, whose accumulate() has to know the end of an epoch."""

from __future__ import annotations

import functools
import sys
from typing import Any


@functools.lru_cache(maxsize=1)
def _kind(mixin: Any, gradient_state: Any) -> Any:
    def initialise(this: Any) -> None:
        this.gradient_state = gradient_state()
        this.begin()

    return type("SaturateIteration", (mixin,), {"__init__": initialise})


def begun_iteration() -> Any:
    """Registers an iteration with Accelerate, which holds it weakly until end(). None if there is no Accelerator."""
    state, loading = sys.modules.get("accelerate.state"), sys.modules.get("accelerate.data_loader")
    if state is None or loading is None or not state.is_initialized():
        return None
    return _kind(loading.DataLoaderStateMixin, state.GradientState)()
