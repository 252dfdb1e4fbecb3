"""Runs a script as Python does, and tells how it ended."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import os
import sys
import threading
import types
from typing import Any, List, Optional, Sequence, Tuple

from . import records
from ._core import Error
from .patches import replaced

THREADS = "OMP_NUM_THREADS"


def this_thread() -> Tuple[int, int]:
    """A forked process's thread has the number of its parent's."""
    return os.getpid(), threading.get_ident()


class Threads:
    """The number of threads that a script sets before it imports torch: here torch is imported already, and OpenMP has
    read the variable."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._before = os.environ.get(THREADS, ""), torch.get_num_threads()

    def take(self) -> None:
        asked = os.environ.get(THREADS, "")
        if asked != self._before[0] and asked.isdigit() and self._torch.get_num_threads() == self._before[1]:
            self._torch.set_num_threads(max(1, int(asked)))


def spec_of(name: str) -> Any:
    """The spec of the module that `python -m name` runs."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError) as failure:
        raise Error(f"the module cannot be found: {failure} ({name}). Give -m a name that python -m takes") from None
    if spec is None or not os.path.isfile(spec.origin or ""):
        raise Error(f"there is no such module ({name}). Give -m a name that python -m takes")
    return spec


def run_script(path: str, arguments: Sequence[str], source: Optional[str] = None, spec: Any = None) -> None:
    """As `python path arguments` does, or `python -m` with the module of `spec`, whose file is `path`. source: a file
    with the text that runs in place of the script's."""
    file_path = os.path.abspath(path)
    with open(source or path, "rb") as file:
        code = compile(file.read(), file_path, "exec", dont_inherit=True)
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=file_path, __cached__=None)
    if spec is not None:  # processes that the script starts import it by that
        module.__dict__.update(__spec__=spec, __package__=spec.parent, __loader__=spec.loader, __cached__=spec.cached)
    before = sys.argv, sys.path[:], sys.modules["__main__"]
    try:
        sys.argv, sys.modules["__main__"] = [path, *arguments], module
        sys.path[0] = os.getcwd() if spec is not None else os.path.dirname(os.path.realpath(path))
        with replaced(records, "is_measured_script", True):
            exec(code, module.__dict__)
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = before


def is_interrupt(failure: BaseException) -> bool:
    """Whether it is Ctrl-C, or what a program makes of that."""
    each: Optional[BaseException] = failure
    while each is not None and not isinstance(each, KeyboardInterrupt):
        each = each.__context__
    return each is not None


def is_failure(failure: BaseException) -> bool:
    """Whether a program that ends with it has failed."""
    is_exit = isinstance(failure, SystemExit) and failure.code not in (None, 0)
    return (isinstance(failure, Exception) or is_exit) and not is_interrupt(failure)


def saved_by_cycle(iterator: Any) -> Optional[List[Any]]:
    """The list in which itertools.cycle saves a first pass, which has no end in a measurement; None: there is none."""
    for cycle in gc.get_referrers(iterator):
        if isinstance(cycle, itertools.cycle):
            sys.stderr.write("saturate: itertools.cycle keeps all batches of its first pass; that pass is measured\n")
            return next((each for each in gc.get_referents(cycle) if type(each) is list), None)
    return None
