"""saturate.tune(): makes a script's training loop faster by a patch that is measured before it is offered."""

from __future__ import annotations

import difflib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import tokenize
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ._core import Error, is_worth, paired_gain
from .diagnosing import NO_TIME, WIDTH, by_reason
from .patching import Edit, edited
from .session import SHORTEST_S
from .turns import Gain
from .world import found_world

MOST_CHANGES = 4
ROUNDS = 3             # of the script and the changed script
TRIAL_STEPS = 1        # that show whether a changed script runs at all
LEAST_STEPS = 16       # that a loss is taken from
RUN_SHARE = 0.2        # of the seconds, for one run of the script


@dataclass(frozen=True)
class Tuning:
    """`diff` is empty if nothing pays. `is_kept`: it is faster and learns as well."""

    diff: str
    changes: List[str] = field(default_factory=list)          # causes that the diff removes
    gain: Optional[Gain] = None                               # of the whole diff, measured
    loss_before: Optional[float] = None
    loss_after: Optional[float] = None
    is_kept: bool = False
    is_written: bool = False
    by_hand: List[Dict[str, Any]] = field(default_factory=list)  # causes whose lines are to be added by hand
    why_not: str = ""
    not_measured: List[Dict[str, str]] = field(default_factory=list)  # for want of time: name and why
    verdict: str = ""                                         # of the last diagnosis

    def to_dict(self) -> Dict[str, Any]:
        return {**vars(self), "gain": None if self.gain is None else self.gain._asdict()}

    def __str__(self) -> str:
        lines = [self.diff.rstrip("\n")] if self.diff else [
            "no change pays that tune can make in the script's text" if self.by_hand else
            "too little was measured to change the script" if self.verdict == "undecided" else
            "no change of the script's text pays"]
        if self.gain:
            lines += ["", str(self.gain)]
        if self.loss_after is not None and self.loss_before is not None:
            lines.append(f"loss {self.loss_before:.4g} before, {self.loss_after:.4g} after")
        elif self.gain:
            lines.append("losses are not compared: no backward() of a single value was seen")
        if self.why_not:
            lines.append(self.why_not)
        if self.diff and self.is_kept and not self.why_not:
            lines.append("written" if self.is_written else "nothing is written: add --write, or write=True")
        for cause in self.by_hand:
            lines += ["", f"by hand: {cause['name']}, about {cause['gain']:.2f} times as fast"[:WIDTH],
                      *(f"    {line}" for line in cause["lines"])]
        for why, names in by_reason([(each["name"], each["why"]) for each in self.not_measured]):
            lines += ["", *textwrap.wrap(f"not measured: {', '.join(names)}: {why}", WIDTH, subsequent_indent="    ")]
        return "\n".join(lines)


class _Script:
    """Runs of a script in separate processes, with a changed text."""

    def __init__(self, path: str, arguments: Sequence[str], folder: str, encoding: str) -> None:
        self._path, self._arguments, self._folder, self._encoding = path, list(arguments), folder, encoding

    def run(self, command: str, text: str, *options: str) -> Dict[str, Any]:
        source, result = os.path.join(self._folder, "script.py"), os.path.join(self._folder, "result.json")
        with open(source, "w", encoding=self._encoding, newline="") as file:
            file.write(text)
        if os.path.exists(result):
            os.unlink(result)
        sys.stderr.write(f"saturate: {command} runs {self._path}\n")
        run = subprocess.run([sys.executable, "-m", "saturate", command, "--source", source, "--json", result, *options,
                              self._path, *self._arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             stdin=subprocess.DEVNULL, text=True, errors="replace")
        if run.returncode or not os.path.exists(result):
            last = (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
            raise Error(f"the script failed: {last} ({self._path}). Run it alone")
        with open(result, encoding="utf-8") as file:
            return dict(json.load(file))


def _read(path: str) -> Tuple[str, str]:
    """The text, and the encoding that it says it has."""
    try:
        with open(path, "rb") as file:
            encoding = tokenize.detect_encoding(file.readline)[0]
        with open(path, encoding=encoding, newline="") as script:
            return script.read(), encoding
    except (SyntaxError, UnicodeDecodeError) as failure:
        raise Error(f"the script is not valid Python text: {failure} ({path}). Save it as UTF-8") from None


def _is_still(path: str, text: str) -> bool:
    try:
        return _read(path)[0] == text
    except (OSError, Error):
        return False


def _write(path: str, text: str, encoding: str) -> None:
    """Complete or not at all."""
    path = os.path.realpath(path)
    temporary = f"{path}.saturate-{os.getpid()}"
    try:
        with open(temporary, "w", encoding=encoding, newline="") as file:
            file.write(text)
        shutil.copymode(path, temporary)
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _lines(text: str) -> List[str]:
    """For a diff: the form feeds in them end no line, and a last line without an end is told apart."""
    return [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in io.StringIO(text, newline="\n")]


def _is_runnable(script: _Script, text: str) -> bool:
    try:
        script.run("measure", text, "--steps", str(TRIAL_STEPS))
    except Error:
        return False
    return True


def _apply_best(script: _Script, text: str, causes: List[Dict[str, Any]],
                by_hand: Dict[str, Dict[str, Any]]) -> Optional[Tuple[str, str]]:
    """(name, the changed text) of the first cause whose edit runs; those before it are for the user's hands."""
    for cause in causes:
        edit = cause.get("edit")
        changed = edited(text, Edit(**edit)) if edit else None
        if changed is not None and _is_runnable(script, changed):
            return cause["name"], changed
        by_hand[cause["name"]] = cause
    return None


def _untried(skipped: List[Dict[str, str]]) -> List[Dict[str, str]]:
    return [each for each in skipped if each["why"].startswith(NO_TIME)]


def _compared(script: _Script, before: str, after: str, steps: int, tolerance: float) -> Dict[str, Any]:
    runs: Dict[str, List[Dict[str, Any]]] = {before: [], after: []}
    for number in range(ROUNDS):
        for text in ((before, after) if number % 2 == 0 else (after, before)):
            runs[text].append(script.run("measure", text, "--steps", str(steps)))
    gain = Gain(*paired_gain(*([run["rate"] for run in runs[text]] for text in (before, after))))
    losses = [[run["loss"] for run in runs[text] if run["loss"] is not None] for text in (before, after)]
    found: Dict[str, Any] = {"gain": gain}
    why_not = "" if is_worth(tuple(gain), False) else "it is not faster, measured again"
    if all(losses):
        found.update(loss_before=statistics.median(losses[0]), loss_after=statistics.median(losses[1]))
        if not found["loss_after"] <= max(losses[0]) + tolerance * abs(max(losses[0])):
            why_not = "it learns worse"
    return {**found, "why_not": why_not, "is_kept": not why_not}


def _processes() -> int:
    try:
        return found_world()[1]
    except Error:  # only some of a launcher's variables are set
        return 1


def tune(script: Union[str, os.PathLike[str]], arguments: Sequence[str] = (), *,
         seconds: Optional[float] = None, write: bool = False, tolerance: float = 0.05) -> Tuning:
    """Diagnoses a script, and changes its text where that pays.

    Changes that do not alter the training are made one by one, with a diagnosis of `seconds` (None: as long as it
    takes, 60 to 300) before each. Then the script and the changed one run in turns: the changes are kept if that is
    faster, and the loss of as many steps is at most `tolerance` higher. Nothing is written without write=True, or if
    the file has changed meanwhile. Lines of other changes are in `by_hand`.
    Raises saturate.Error if the script fails, or cannot be written.
    """
    path = os.fspath(script)
    if not os.path.isfile(path):
        raise Error(f"there is no such script ({path}). Check the path")
    if write and not os.access(os.path.dirname(os.path.realpath(path)), os.W_OK):
        raise Error(f"the script's folder cannot be written ({path}). Leave out write, and apply the diff yourself")
    if _processes() > 1:
        raise Error(f"tune measures one process, and this is one of {_processes()}. Use diagnose in each of them")
    before, encoding = _read(path)
    text = before
    changes: List[str] = []
    by_hand: Dict[str, Dict[str, Any]] = {}
    last: Dict[str, Any] = {}
    steps = LEAST_STEPS
    given = [] if seconds is None else ["--seconds", str(seconds)]
    with tempfile.TemporaryDirectory(prefix="saturate-") as folder:
        runs = _Script(path, arguments, folder, encoding)
        for _ in range(MOST_CHANGES):
            skip = ",".join([*changes, *by_hand])
            found = runs.run("diagnose", text, *given, "--skip", skip)
            if found["not_found"]:
                raise Error(f"the training loop was not found: {'; '.join(found['not_found'])} ({path}). "
                            "Call saturate.diagnose(step, loader) in the script")
            if found.get("refused"):
                raise Error(f"the training loop cannot be measured: {found['refused']} ({path}). "
                            "Call saturate.diagnose(step, loader) in the script")
            if found["rate"] is None and changes:
                break  # it is faster now
            if found["rate"] is None:
                raise Error(f"the script ended before its loop was measured ({path}). "
                            "Give it more epochs, or fewer seconds")
            steps = max(steps, int(RUN_SHARE * (seconds or SHORTEST_S) * found["rate"]))
            last = {"verdict": found["verdict"], "not_measured": _untried(found["skipped"])}
            change = _apply_best(runs, text, found["causes"], by_hand)
            if change is None:
                break
            changes.append(change[0])
            text = change[1]
        if text == before:
            return Tuning("", by_hand=list(by_hand.values()), **last)
        compared = _compared(runs, before, text, steps, tolerance)
    diff = "".join(difflib.unified_diff(_lines(before), _lines(text), path, path))
    is_written = write and compared["is_kept"] and _is_still(path, before)
    if is_written:
        try:
            _write(path, text, encoding)
        except OSError as failure:
            is_written, compared["why_not"] = False, f"nothing is written: {failure}"
    elif write and compared["is_kept"]:
        compared["why_not"] = f"nothing is written: {path} was changed meanwhile"
    return Tuning(diff, changes, by_hand=list(by_hand.values()), is_written=is_written, **last, **compared)
