"""The loader's arguments: what they may be, and the values that are meant."""

from __future__ import annotations

import importlib
import operator
from typing import Any, Callable, Union

TYPES = ("float32", "float16", "bfloat16", "uint8")


def text_of(value: Any) -> str:
    """The value as a recipe writes it."""
    if hasattr(value, "tolist"):  # an array or a tensor
        value = value.tolist()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(text_of(item) for item in value) + "]"
    return str(value)


def flag(name: str, value: Any) -> bool:
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):  # numpy's
        return bool(value)
    raise TypeError(f"{name}={value!r}: give True or False")


def whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: give an integer") from None


def type_name(dtype: Any) -> str:
    """The name of a type of numpy, torch or another framework."""
    if isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype
    name = str(name).rpartition(".")[2]
    if name not in TYPES:
        raise TypeError(f'dtype={dtype!r}: use "float32", "float16", "bfloat16" or "uint8", or such a type of numpy or '
                        "torch")
    return name


def one_of(name: str, value: Any, other: str, alias: Any) -> Any:
    if value is not None and alias is not None:
        raise TypeError(f"{name} and {other} are both given: {other} is DataLoader's name for it")
    return alias if value is None else value


def converter(to: Union[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    if to == "dlpack":
        return lambda array: array
    if to == "cupy":
        raise ValueError('to="cupy": CuPy imports arrays that are on the GPU. Leave `to` out, and give device="cuda" '
                         "and batch_transform=lambda batch: [cupy.from_dlpack(each) for each in batch]")
    if isinstance(to, str) and to in ("numpy", "torch", "jax", "tensorflow"):
        try:
            module = importlib.import_module(to)
        except ModuleNotFoundError as error:
            if error.name != to:
                raise
            raise ModuleNotFoundError(f'to="{to}" needs {to}, which is not installed: install it or set another `to`',
                                      name=error.name) from None
        if to == "tensorflow":
            return lambda array: module.experimental.dlpack.from_dlpack(array.__dlpack__())
        # Before 2.1 numpy's from_dlpack() made arrays that cannot be written, and before 1.25 none of bool.
        is_old = to == "numpy" and tuple(map(int, module.__version__.split(".")[:2])) < (2, 1)
        found: Callable[[Any], Any] = module.asarray if is_old else (
            module.dlpack if to == "jax" else module).from_dlpack
        return found
    if callable(to):
        return to
    raise ValueError(f'to={to!r}: use "numpy", "torch", "jax", "tensorflow", "dlpack" or a function of a DLPack array')
