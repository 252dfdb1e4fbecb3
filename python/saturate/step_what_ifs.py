"""What-ifs of a step: the same step with one setting of torch changed while its turn lasts."""

from __future__ import annotations

import contextlib
import operator
import os
import shutil
from typing import Any, Callable, Dict, Iterator, List, Tuple

from .loader_what_ifs import cores
from .observing import Observation
from .patches import all_replaced, replaced, uncounted_saves, without_calls
from .patching import Edit
from .turns import Remedy, WhatIf, not_tried

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
FOREACH = ("RMSprop", "RAdam", "NAdam", "Adadelta", "Adamax", "Rprop", "ASGD")  # which have no fused form
COMPILE_S = 120     # of measuring, from which on torch.compile is tried

REMEDIES: Dict[str, Remedy] = {
    "item-in-loop": Remedy("Read values rarely: each read waits for the device",
                           ("if step % 100 == 0:", "    print(loss.item())  # and sum losses as loss.detach()")),
    "print-in-loop": Remedy("Print rarely", ("if step % 100 == 0:", "    print(...)")),
    "logging": Remedy("Log rarely, and do not flush to the disk each time", ("if step % 100 == 0:", "    log(...)")),
    "checkpoint-saves": Remedy("Save checkpoints more rarely", ("if step % 1000 == 0:", "    torch.save(...)")),
}


def called_often(seen: Observation) -> List[WhatIf]:
    return [WhatIf(cause, remedy, uncounted_saves(seen.calls, seen.uncounted) if cause == "checkpoint-saves"
                   else without_calls(cause, seen.calls))
            for cause, remedy in REMEDIES.items() if seen.is_often(cause)]


@contextlib.contextmanager
def _without_anomaly(torch: Any) -> Iterator[None]:
    was_on, checked = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.set_anomaly_enabled(False)
    try:
        with replaced(torch, "set_anomaly_enabled", lambda *_, **__: None):
            yield
    finally:
        torch.set_anomaly_enabled(was_on, checked)


@contextlib.contextmanager
def _without_profiler(torch: Any) -> Iterator[None]:
    profile, outer = torch.autograd.profiler.profile, torch._C._autograd._profiler_enabled()
    kinds = {torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA}
    if outer:
        torch._C._autograd._toggle_collection_dynamic(False, kinds)
    of_step: List[Tuple[Any, str, Any]] = [] if outer else [  # the step itself starts the profiler
        (profile, "__enter__", lambda this: this), (profile, "__exit__", lambda *_: False),
        (torch.profiler.profile, "start", lambda _: None), (torch.profiler.profile, "stop", lambda _: None)]
    with all_replaced(of_step):
        try:
            yield
        finally:
            if outer:
                torch._C._autograd._toggle_collection_dynamic(True, kinds)


def _leftovers(seen: Observation) -> List[WhatIf]:
    found = []
    if seen.is_anomaly:
        remedy = Remedy("Switch anomaly detection off", ("torch.autograd.set_detect_anomaly(False)",),
                        Edit("set_detect_anomaly", {"mode": False}))
        found.append(WhatIf("anomaly-mode", remedy, lambda: _without_anomaly(seen.torch)))
    if seen.is_profiled:
        found.append(WhatIf("profiler-on", Remedy("Profile a few steps only", (
            "with torch.profiler.profile(schedule=torch.profiler.schedule(wait=10, warmup=2, active=3)) as p:",)),
            lambda: _without_profiler(seen.torch)))
    return found


def _set_to_none(seen: Observation) -> List[WhatIf]:
    if not seen.is_zeroed:
        return []

    def to_none(original: Callable[..., Any]) -> Callable[..., Any]:
        def zero_grad(this: Any, set_to_none: bool = True) -> Any:
            return original(this, True)

        return zero_grad

    def change() -> contextlib.AbstractContextManager[None]:
        return all_replaced([(owner, "zero_grad", to_none(owner.zero_grad))
                             for owner in (seen.torch.optim.Optimizer, seen.torch.nn.Module)])

    remedy = Remedy("Do not fill gradients with zeros", ("optimizer.zero_grad(set_to_none=True)",),
                    Edit("zero_grad", {"set_to_none": True}))
    return [WhatIf("set-to-none", remedy, change)]


def _is_of_torch(optimizer: Any, kinds: Tuple[str, ...]) -> bool:
    return type(optimizer).__name__ in kinds and type(optimizer).__module__.startswith("torch.optim")


def _fused(seen: Observation) -> List[WhatIf]:
    targets = [each for each in seen.optimizers if _is_of_torch(each, FUSED)
               and not any(group.get("fused") for group in each.param_groups)]
    if not targets:
        return []
    name = type(targets[0]).__name__
    remedy = Remedy("Update all weights in one call", (f"torch.optim.{name}(..., fused=True)",),
                    Edit(name, {"fused": True}))
    parameters = [parameter for each in targets for group in each.param_groups for parameter in group["params"]]

    @contextlib.contextmanager
    def change() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for each in targets:
                for group in each.param_groups:
                    stack.callback(group.update, {name: group.get(name) for name in ("fused", "foreach")})
                    group.update(fused=True, foreach=False)
                _move_counts(each, True)
                stack.callback(_move_counts, each, False)
            yield

    is_sparse = any(
        getattr(each, "sparse", False) is True for outer in seen.modules for each in outer.modules()) or any(
        parameter.grad is not None and parameter.grad.is_sparse for parameter in parameters)
    why = "it cannot update sparse gradients" if is_sparse else ""
    if name == "Adagrad" and any(each.is_cuda for each in parameters) and not _has_fused_adagrad(seen.torch):
        why = "this torch has no fused Adagrad for a GPU"
    if not all(each.is_floating_point() and each.device.type in ("cpu", "cuda") for each in parameters):
        why = "its parameters are not all floating-point on a CPU or GPU"
    return [WhatIf("fused-optimizer", remedy, change, skipped=why)]


def _has_fused_adagrad(torch: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key("aten::_fused_adagrad_", "CUDA"))


def _foreach(seen: Observation) -> List[WhatIf]:
    """On a GPU it is in use unless it is refused."""
    targets = [each for each in seen.optimizers if _is_of_torch(each, FOREACH) and any(
        group["foreach"] is False or (group["foreach"] is None and any(
            not parameter.is_cuda for parameter in group["params"])) for group in each.param_groups)]
    if not targets:
        return []
    name = type(targets[0]).__name__

    @contextlib.contextmanager
    def change() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for group in (group for each in targets for group in each.param_groups):
                stack.callback(group.update, foreach=group["foreach"])
                group.update(foreach=True)
            yield

    return [WhatIf("foreach-optimizer", Remedy("Update all weights with few calls", (
        f"torch.optim.{name}(..., foreach=True)",), Edit(name, {"foreach": True})), change)]


def _move_counts(optimizer: Any, to_device: bool) -> None:
    """A fused or capturable step on a GPU counts its steps there; any other one on the host."""
    for parameter in (each for group in optimizer.param_groups if not group.get("capturable")
                      for each in group["params"]):
        state = optimizer.state.get(parameter, {})
        if "step" in state and getattr(parameter, "is_cuda", False):
            state["step"] = state["step"].to(parameter.device if to_device else "cpu")


def _channels_last(seen: Observation) -> List[WhatIf]:
    torch = seen.torch
    models = [module for module in seen.modules if any(
        isinstance(each, torch.nn.Conv2d) and not each.weight.is_contiguous(memory_format=torch.channels_last)
        for each in module.modules())]
    if not models:
        return []

    def by_pixel(value: Any) -> Any:
        is_images = isinstance(value, torch.Tensor) and value.dim() == 4
        return value.contiguous(memory_format=torch.channels_last) if is_images else value

    def convert(_: Any, arguments: Any, named: Any) -> Any:
        return tuple(map(by_pixel, arguments)), {name: by_pixel(value) for name, value in named.items()}

    @contextlib.contextmanager
    def change() -> Iterator[None]:
        weights = [each for module in models for each in module.parameters() if each.dim() == 4]
        # Gradients and optimizer states too: with mixed layouts, foreach optimizers fall back to a call per tensor.
        weights += [each.grad for each in weights if each.grad is not None and each.grad.dim() == 4]
        states = [state for each in seen.optimizers for state in each.state.values() if isinstance(state, dict)]
        weights += [each for state in states for each in state.values()
                    if isinstance(each, torch.Tensor) and each.dim() == 4]
        for weight in weights:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        handles = [module.register_forward_pre_hook(convert, with_kwargs=True) for module in models]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for weight in weights:
                weight.data = weight.data.contiguous()

    return [WhatIf("channels-last", Remedy("Store images and weights by pixel", (
        "model = model.to(memory_format=torch.channels_last)",
        "images = images.to(memory_format=torch.channels_last)")), change)]


def _has_bf16(torch: Any, has_gpu: bool) -> bool:
    if has_gpu:
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    try:
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    except AttributeError:
        return False


def unscaling(torch: Any) -> Callable[[Any, Any, Any], None]:
    """As a GradScaler before an optimizer's step: looks for gradients that are not finite, and waits."""
    def unscale(optimizer: Any, *_: Any) -> None:
        grads = [each.grad for group in optimizer.param_groups for each in group["params"]
                 if each.grad is not None and not each.grad.is_sparse and each.grad.dtype == torch.float32]
        for device in {each.device for each in grads}:
            found, scale = torch.zeros(1, device=device), torch.ones(1, device=device)
            with torch.no_grad():
                torch._amp_foreach_non_finite_check_and_unscale_(
                    [each for each in grads if each.device == device], found, scale)
            found.item()

    return unscale


def _autocast(seen: Observation, has_gpu: bool) -> List[WhatIf]:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    torch = seen.torch
    if seen.is_autocast or not seen.modules:
        return []

    def as_float(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.float() if value.is_floating_point() else value
        if isinstance(value, dict):
            for name in list(value):
                value[name] = as_float(value[name])
        return type(value)(as_float(each) for each in value) if type(value) in (list, tuple) else value

    device = "cuda" if has_gpu else "cpu"

    @contextlib.contextmanager
    def casting(kind: Any) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for module in seen.modules:
                def forward(*arguments: Any, _call: Any = module.forward, **named: Any) -> Any:
                    with torch.autocast(device, dtype=kind):
                        return as_float(_call(*arguments, **named))

                stack.enter_context(replaced(module, "forward", forward))
            if kind is torch.float16:
                stack.callback(register_optimizer_step_pre_hook(unscaling(torch)).remove)
            yield

    bf16 = Remedy("Compute in bfloat16", (f'with torch.autocast("{device}", dtype=torch.bfloat16):',
                                          "    loss = criterion(model(images), labels)"))
    fp16 = Remedy("Compute in float16, with a loss scale", ('scaler = torch.amp.GradScaler("cuda")',
                                                            'with torch.autocast("cuda", dtype=torch.float16):'))
    return [WhatIf("autocast-bf16", bf16, lambda: casting(torch.bfloat16), is_trade=True,
                   skipped="" if _has_bf16(torch, has_gpu) else "this processor has no bfloat16"),
            WhatIf("autocast-fp16", fp16, lambda: casting(torch.float16), is_trade=True,
                   skipped="" if has_gpu else "there is no GPU")]


def _uses_tf32(torch: Any) -> Tuple[bool, str]:
    """Also why that cannot be told, if so."""
    try:
        is_on, _ = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        return bool(is_on), ""
    except RuntimeError:
        return False, "it is set in torch's old and its new way, which torch refuses to read"


@contextlib.contextmanager
def _switched_on(torch: Any, *flags: str) -> Iterator[None]:
    """Sets these flags of torch.backends, such as "cudnn.benchmark", to True meanwhile."""
    with contextlib.ExitStack() as stack:
        for path in flags:
            library, _, name = path.rpartition(".")
            owner = operator.attrgetter(library)(torch.backends)
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, True)
        yield


def _flags(torch: Any, has_gpu: bool) -> List[WhatIf]:
    """Settings of a GPU's libraries."""
    why = "" if has_gpu else "there is no GPU"
    found = []
    is_tf32, why_no_tf32 = _uses_tf32(torch) if has_gpu else (False, why)
    if not is_tf32:
        line = 'torch.set_float32_matmul_precision("high")'
        found.append(WhatIf("tf32", Remedy("Multiply float32 as TF32", (line,), Edit("", {}, added=line)),
                            lambda: _switched_on(torch, "cuda.matmul.allow_tf32", "cudnn.allow_tf32"), is_trade=True,
                            skipped=why_no_tf32))
    if not torch.backends.cudnn.benchmark:
        line = "torch.backends.cudnn.benchmark = True"
        found.append(WhatIf("cudnn-benchmark", Remedy("Let cuDNN choose by measuring", (line,),
                                                      Edit("", {}, added=line)),
                            lambda: _switched_on(torch, "cudnn.benchmark"), skipped=why))
    return found


def _threads(torch: Any, has_gpu: bool) -> List[WhatIf]:
    now, best = torch.get_num_threads(), cores()
    if now == best or has_gpu:
        return []

    @contextlib.contextmanager
    def change() -> Iterator[None]:
        torch.set_num_threads(best)
        try:
            yield
        finally:
            torch.set_num_threads(now)

    remedy = Remedy("Compute on one thread for each core", (f"torch.set_num_threads({best})",),
                    Edit("set_num_threads", {"number": best}))
    return [WhatIf("threads", remedy, change)]


def _compiled(seen: Observation, has_gpu: bool, seconds: float) -> List[WhatIf]:
    targets = [each for each in seen.modules if getattr(each, "_compiled_call_impl", None) is None
               and not hasattr(each, "_orig_mod")]  # which compile() and torch.compile() set
    if not targets:
        return []
    why = ""
    if seconds < COMPILE_S:
        why = f"compiling takes up to a minute: give {COMPILE_S} seconds or more"
    elif not has_gpu and not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++")):
        why = "there is no C++ compiler"
    compiled: List[Any] = []

    @contextlib.contextmanager
    def change() -> Iterator[None]:
        if not compiled:
            compiled.extend(seen.torch.compile(each._call_impl) for each in targets)
        with contextlib.ExitStack() as stack:
            for each, call in zip(targets, compiled):
                stack.enter_context(replaced(each, "_compiled_call_impl", call))
            yield

    return [WhatIf("compile", Remedy("Compile the model", ("model = torch.compile(model)",)), change, is_trade=True,
                   skipped=why)]


def _not_found(seen: Observation) -> List[WhatIf]:
    """Changes that are not tried since the parts that they would change were not found."""
    of_modules = [] if seen.modules else ["channels-last", "autocast-bf16", "autocast-fp16", "compile"]
    of_optimizers = [] if seen.optimizers else ["fused-optimizer", "foreach-optimizer"]
    return [*(not_tried(name, "no module was found that is called with gradients, outside compiled code")
              for name in of_modules),
            *(not_tried(name, "no optimizer of torch's was found that makes a step") for name in of_optimizers)]


def step_what_ifs(seen: Observation, has_gpu: bool, seconds: float) -> List[WhatIf]:
    """Those that cannot fail first: in a script, a failure ends the measurement. See also session.LAST."""
    return [*_leftovers(seen), *_not_found(seen), *called_often(seen), *_set_to_none(seen),
            *_threads(seen.torch, has_gpu), *_flags(seen.torch, has_gpu), *_fused(seen), *_foreach(seen),
            *_channels_last(seen), *_autocast(seen, has_gpu), *_compiled(seen, has_gpu, seconds)]
