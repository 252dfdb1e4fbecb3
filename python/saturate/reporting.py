"""saturate.report(): the page of a run."""

from __future__ import annotations

import os
from typing import List, Optional, Sequence, Tuple, Union

from . import _core, records

Path = Union[str, "os.PathLike[str]"]


def write_page(folders: Sequence[Path], out: Optional[Path], writes: bool = True) -> Tuple[str, str]:
    """Writes the page, if it `writes`. Returns its path, and the same for printing."""
    if not folders:
        raise _core.Error("no run is given (saturate.report). Give the folder of a run")
    names = [os.fsencode(each) for each in (*folders, "" if out is None else out)]
    if any(b"\0" in name for name in names):
        raise ValueError("a path has a NUL byte (saturate.report)")
    return _core.report(names[:-1], names[-1], writes)


def report(folders: Union[Path, Sequence[Path]], out: Optional[Path] = None) -> str:
    """Writes an HTML page that shows a run, or compares several, and returns its path.

        saturate.report("runs/mine")  # writes runs/mine/report.html

    The page is that of the command `saturate report`: one file, with its charts. A run that is still watched, also by
    this program, is shown up to its last record. Warnings about what cannot be read go to stderr. Like watch(), it
    writes nothing on other ranks than 0, nor in a script that saturate measures (diagnose, tune).

    folders: run folders, of saturate.watch() or of the command, one or several; and files (.json) that the command's
        `ladder` or `sweep` wrote with --json.
    out: the file; by default report.html in the run's folder, or in the current one if there are several runs. A file
        that ends in .html or is an HTML page is replaced, and no other.

    Raises saturate.Error.
    """
    several: List[Path] = [folders] if isinstance(folders, (str, os.PathLike)) else list(folders)
    return write_page(several, out, records.keeps_runs())[0]
