"""saturate.diagnose(): why a training loop is slow, by experiment."""

from __future__ import annotations

import inspect
import math
import sys
import textwrap
from dataclasses import dataclass, field
from typing import Any, Callable, Collection, Dict, List, Optional, Sequence, Tuple

from ._core import Error, is_worth
from .loader_what_ifs import copyable
from .observing import Observation, check_torch
from .running import is_failure
from .session import Session, check_names
from .turns import Gain, Remedy, WhatIf

WIDTH = 80
# Among gains whose logarithms are at least this share of the greatest, one without a price comes first.
ALIKE = 0.9
# From this gain on, an error in the use of the machine comes before whatever has a price.
CLEAR = 1.25
NO_TIME = "there was no time"


@dataclass(frozen=True)
class Cause:
    """A change that is worth doing. `gain`: the predicted speedup of the training; `interval`: of 95 %."""

    name: str
    gain: float
    interval: Tuple[float, float]
    remedy: Remedy
    alters: bool  # the training
    is_trade: bool

    def to_dict(self) -> Dict[str, Any]:
        edit = self.remedy.edit
        return {"name": self.name, "gain": self.gain, "low": self.interval[0], "high": self.interval[1],
                "remedy": self.remedy.text, "lines": list(self.remedy.lines), "edit": edit and edit._asdict()}


@dataclass(frozen=True)
class Diagnosis:
    """`verdict` is "cause"; "healthy": nothing measured is worth doing; or "undecided": too little was measured."""

    verdict: str
    rate: Optional[float]  # steps/s of the loop as it is
    causes: List[Cause] = field(default_factory=list)              # the best first
    uncertain: List[Cause] = field(default_factory=list)           # may gain much, or nothing
    idle: List[Cause] = field(default_factory=list)                # not worth doing
    skipped: List[Tuple[str, str]] = field(default_factory=list)   # (name, why it was not measured)
    not_found: List[str] = field(default_factory=list)             # of a script
    held_rate: Optional[float] = None    # steps/s with one held batch
    loader_rate: Optional[float] = None  # batches/s of the loader alone
    refused: str = ""                                              # why a script's loop could not be measured

    def to_dict(self) -> Dict[str, Any]:
        causes = {kind: [cause.to_dict() for cause in getattr(self, kind)] for kind in ("causes", "uncertain", "idle")}
        return {"verdict": self.verdict, "rate": self.rate, "unit": "steps/s", "held_rate": self.held_rate,
                "loader_rate": self.loader_rate, **causes,
                "skipped": [{"name": name, "why": why} for name, why in self.skipped], "not_found": self.not_found,
                "refused": self.refused}

    def __str__(self) -> str:
        lines = [self._headline() + (f" ({self.rate:.3g} steps/s)" if self.rate else "")]
        if self.held_rate and self.loader_rate:
            lines.append(f"with one batch held: {self.held_rate:.3g} steps/s; the loader alone: "
                         f"{self.loader_rate:.3g} batches/s")
        for cause in self.causes:
            lines += ["", _gain_line(cause), *_wrapped(cause.remedy.text, "  "),
                      *(f"    {line}" for line in cause.remedy.lines)]
        for title, causes in (("not certain:", self.uncertain), ("not worth doing:", self.idle)):
            if causes:
                lines += ["", title, *(f"  {_gain_line(cause)}" for cause in causes)]
        if self.skipped:
            lines += ["", "not measured:"]
            for why, names in by_reason(self.skipped):
                lines += _wrapped(f"{', '.join(names)}: {why}", "  ")
        if self.not_found:
            lines += ["", *_wrapped("not found: " + "; ".join(self.not_found), "")]
        return "\n".join(lines)

    def _headline(self) -> str:
        if self.verdict == "cause":
            return f"cause: {self.causes[0].name}"
        if self.verdict == "healthy":
            return "healthy: no change that was measured is worth doing"
        return "undecided: too little was measured"


def _wrapped(text: str, indent: str) -> List[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)


def _gain_line(cause: Cause) -> str:
    gain = str(Gain(cause.gain, *cause.interval))
    return f"{cause.name:<18} {'' if cause.gain >= 10 else ' '}{gain}"


def by_reason(skipped: Sequence[Tuple[str, str]]) -> List[Tuple[str, List[str]]]:
    found: Dict[str, List[str]] = {}
    for name, why in skipped:
        names = found.setdefault(why, [])
        if name not in names:
            names.append(name)
    return list(found.items())


def _of_training(gain: Gain, start_share: float) -> Gain:
    """The gain of epochs from that of their steps."""
    return Gain(*(1 / (start_share + (1 - start_share) / each) if each > 0 else 0.0 for each in gain))


def _ratio(what_if: WhatIf) -> float:
    return what_if.gain.ratio if what_if.gain else 0.0


def _order(causes: List[WhatIf]) -> List[WhatIf]:
    """The first one is the cause: by gain, but an error before whatever has a price, if its gain is clear or alike."""
    causes = sorted(causes, key=lambda each: (each.is_trade or _ratio(each) < CLEAR, -_ratio(each)))
    if causes and causes[0].is_trade:
        for each in causes:
            if not each.is_trade and math.log(_ratio(each)) >= ALIKE * math.log(_ratio(causes[0])):
                return [each, *(other for other in causes if other is not each)]
    return causes


def _best_of_each(what_ifs: Sequence[WhatIf]) -> List[WhatIf]:
    """Several values of one setting are one cause."""
    best: Dict[str, WhatIf] = {}
    for each in what_ifs:
        if each.name not in best or _ratio(each) > _ratio(best[each.name]):
            best[each.name] = each
    return list(best.values())


def _input_limit(session: Session, measured: Sequence[WhatIf]) -> List[Cause]:
    """The gain with one held batch, as a cause. [] if it is small, or a measured change of that name is worth doing."""
    if session.held_rate is None or any(each.name == "data-loading" and each.is_worth() for each in measured):
        return []
    gain = _of_training(session.held_gain, session.start_share)
    least = CLEAR if any(each.is_input for each in measured) else 1.0  # less may be cores that both need
    if not session.is_wanted("data-loading") or not is_worth(tuple(gain), False) or gain.low < least:
        return []
    remedy = Remedy("Load batches faster, or ahead of the steps",
                    ("# inferred from steps with one held batch: at most this",))
    return [Cause("data-loading", gain.ratio, (gain.low, gain.high), remedy, False, False)]


def conclude(session: Session) -> Diagnosis:
    results = _best_of_each(session.results)
    for each in results:
        if each.gain and not each.is_inferred and session.start_share > 0:
            each.gain, each.is_inferred = _of_training(each.gain, session.start_share), True
    measured = [each for each in results if each.gain]

    def causes(chosen: Sequence[WhatIf]) -> List[Cause]:
        return [Cause(each.name, each.gain.ratio, (each.gain.low, each.gain.high), each.remedy, each.alters,
                      each.is_trade) for each in chosen if each.gain]

    worth = _order([each for each in measured if each.is_worth()])
    uncertain = [each for each in measured if each.may_be_worth()]
    idle = [each for each in measured if not each.is_worth() and not each.may_be_worth()]
    enough = math.ceil(session.needed_s() / 30) * 30
    why = f"{NO_TIME}: " + (f"give {enough} seconds or more" if session.is_complete else session.ended)
    skipped = [(each.name, each.skipped or why) for each in results if not each.gain]
    if not session.results and not session.is_complete:
        skipped.append(("all of them", why))
    is_short = any(why.startswith(NO_TIME) for _, why in skipped) or session.pace is None
    found = causes(worth)
    limit = _input_limit(session, measured)
    has_unmeasured = any(each.is_input and not each.gain and not each.skipped for each in session.results)
    if limit and (limit[0].interval[0] > max([CLEAR, *map(_ratio, worth)]) if has_unmeasured
                  else not (worth or uncertain or is_short)):
        found = limit + found  # and in no other list:
        uncertain = [each for each in uncertain if each.name != limit[0].name]
        idle = [each for each in idle if each.name != limit[0].name]
        skipped = [(name, why) for name, why in skipped if name != limit[0].name or not why.startswith(NO_TIME)]
    verdict = "cause" if found else "undecided" if uncertain or is_short else "healthy"
    return Diagnosis(verdict, session.pace.steps_per_s if session.pace else None, found, causes(uncertain),
                     causes(idle), skipped, held_rate=session.held_rate, loader_rate=session.loader_rate)


def drive(session: Session, step: Callable[[Any], Any]) -> None:
    """Makes the session's steps. A failure in a what-if is the session's, another one the caller's."""
    batches = session.run()
    try:
        batch = next(batches)
        while True:
            try:
                step(batch)
            except (Exception, SystemExit) as failure:
                if not is_failure(failure):
                    raise
                batch = batches.throw(session.thrown(failure))
            else:
                batch = next(batches)
    except StopIteration:
        pass
    finally:
        batches.close()


def diagnose(step: Callable[[Any], Any], loader: Any, *, model: Any = None, optimizer: Any = None, scaler: Any = None,
             seconds: Optional[float] = None, only: Optional[Collection[str]] = None, skip: Collection[str] = (),
             state: Sequence[Any] = ()) -> Diagnosis:
    """Measures why a training loop is slow, by changing one thing at a time while it runs.

        print(saturate.diagnose(step, loader))

    step: a function of a batch that makes one step of training.
    loader: a DataLoader, a saturate.Loader, or anything that can be iterated over again and again.
    model, optimizer: found in the first steps if not given.
    seconds: about how long to measure; None: as long as all changes take, 60 to 300.
    only, skip: names of causes to measure, or not to.
    state: further objects that the step changes: tensors, dicts, lists, generators of random numbers, or objects with
        state_dict() or attributes.

    At the end everything is as before, to the bit: all modules, optimizers, schedulers and scalers of this process,
    the random numbers of Python, numpy and torch, and the loader's place; an iteration in progress continues. Not
    restored: other objects that `step` changes, unless `state` has them, and files.
    Raises saturate.Error, and what `step` raises.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        raise Error("torch is not imported (saturate.diagnose). Give it a loop of torch's")
    check_torch(torch)
    if not callable(step):
        raise TypeError("step is a function of a batch: saturate.diagnose(step, loader)")
    if any(is_kind(step) for is_kind in (inspect.isgeneratorfunction, inspect.iscoroutinefunction,
                                         inspect.isasyncgenfunction)):
        raise TypeError("step is async, or has a yield, so that a call of it makes no step. Give a plain function")
    if hasattr(type(loader), "__next__"):
        raise Error("the loader is an iterator, which can be iterated once (saturate.diagnose). Give it the DataLoader")
    if seconds is not None and not seconds > 0:
        raise ValueError(f"seconds={seconds!r}: use a number above 0")
    check_names(only, skip)
    objects = [each for each in (optimizer, scaler, *state) if each is not None]
    session = Session(torch, copyable(loader), Observation(torch, model, optimizer), seconds=seconds, only=only,
                      skip=skip, objects=objects)
    drive(session, step)
    return conclude(session)
