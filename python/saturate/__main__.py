"""python -m saturate diagnose script.py [arguments of the script]; tune and measure likewise; report FOLDER"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
from typing import Any, List, Optional

from ._core import Error
from .world import is_rank_0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m saturate")
    commands = parser.add_subparsers(dest="command", required=True)
    diagnose = commands.add_parser("diagnose", help="measure why a script's training loop is slow")
    diagnose.add_argument("--seconds", type=float,
                          help="about how long to measure (as long as all changes take, 60 to 300)")
    diagnose.add_argument("--only", metavar="NAME,NAME", help="names of causes to measure")
    diagnose.add_argument("--skip", metavar="NAME,NAME", default="", help="names of causes not to measure")
    diagnose.add_argument("--json", metavar="FILE", help="where to write the result")
    diagnose.add_argument("-m", dest="is_module", action="store_true",
                          help="the script is the name of a module, which runs as by python -m")
    diagnose.set_defaults(spec=None)
    tune = commands.add_parser("tune", help="make a script's training loop faster by a patch")
    tune.add_argument("--seconds", type=float,
                      help="about how long to measure before each change (as long as all take, 60 to 300)")
    tune.add_argument("--write", action="store_true", help="change the script")
    tune.add_argument("--json", metavar="FILE", help="where to write the result")
    measure = commands.add_parser("measure", help="steps/s and loss of a script's training loop")
    measure.add_argument("--steps", type=int, default=100, help="number of steps (100)")
    measure.add_argument("--json", metavar="FILE", help="where to write the result")
    for command in (diagnose, measure):
        command.add_argument("--source", metavar="FILE", help="a text to run in place of the script's")
    for command in (diagnose, tune, measure):
        command.add_argument("script", help="a Python script that trains with torch")
        command.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    report = commands.add_parser("report", help="show a run, or compare several, as one HTML file")
    report.add_argument("folders", metavar="DIR", nargs="+",
                        help="run folders; and files (.json) that the command's ladder or sweep wrote with --json")
    report.add_argument("--out", metavar="FILE",
                        help="the file (DIR/report.html; report.html for several runs). Replaces a file that ends in "
                             ".html or is an HTML page, and no other")
    return parser


def _plain(value: Any) -> Any:
    """For JSON, which has neither infinity nor NaN."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_json(path: Optional[str], value: Any) -> None:
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1, default=str)
            file.write("\n")


def _is_spokesman() -> bool:
    """All processes of a training have about the same result."""
    try:
        return is_rank_0()
    except Error:  # the launcher's variables are incomplete
        return True


def _flush() -> Optional[OSError]:
    """Returns why the output cannot be written. None if its reader has gone, as after `| head`."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as failure:
        with open(os.devnull, "w") as null:  # else Python tries again at its end, and prints the error
            os.dup2(null.fileno(), 1)
        if not isinstance(failure, BrokenPipeError):
            return failure
    return None


def _print(text: str, file: Any = None) -> None:
    _flush()
    failure = None
    try:
        print(text, file=file)
    except BrokenPipeError:
        pass
    except OSError as error:
        failure = error
    if failure := _flush() or failure:
        raise Error(f"the output cannot be written: {failure}. Make room, or print it elsewhere")


def _tell(path: Optional[str], value: Any, text: str, file: Any = None) -> None:
    """Writes before it prints, so that `| head` loses no file; prints also what cannot be written."""
    try:
        _write_json(path, value)
    except OSError as failure:
        raise Error(f"the result cannot be written: {failure}. Give --json another file") from None
    finally:
        if text:
            _print(text, file)


def _report(path: Optional[str], value: Any, text: str) -> None:
    if _is_spokesman():
        _tell(path, value, text)


def _exit(number: int, _: Any) -> None:
    sys.exit(128 + number)


def _is_writable(path: str) -> bool:
    if os.path.exists(path):
        return not os.path.isdir(path) and os.access(path, os.W_OK)
    return os.access(os.path.dirname(path) or ".", os.W_OK)


def _names(text: Optional[str]) -> Optional[List[str]]:
    return None if text is None else [name for name in text.split(",") if name]


def _diagnose(arguments: Any) -> None:
    from .scripts import diagnose_script

    def tell_of_failure(found: Any) -> None:
        try:
            tell(found)
        except Error as failure:  # the script's own follows
            sys.stderr.write(f"saturate: error: {failure}\n")

    def tell(found: Any) -> None:
        text = "" if found.refused else f"\n{found}"  # the refusal has been printed
        if found.not_found:
            text = ("saturate: the training loop was not found, and the script ran as it is. Not found: "
                    f"{'; '.join(found.not_found)}. Call saturate.diagnose(step, loader) in the script")
        _tell(arguments.json, _plain(found.to_dict()), text, sys.stderr if found.not_found else None)

    found = diagnose_script(arguments.script, arguments.arguments, seconds=arguments.seconds, spec=arguments.spec,
                            only=_names(arguments.only), skip=_names(arguments.skip) or (), source=arguments.source,
                            if_failed=tell_of_failure)
    if _is_spokesman():
        tell(found)


def _tune(arguments: Any) -> None:
    from .tuning import tune

    for each in (signal.SIGTERM, signal.SIGHUP):  # by default they would leave a script running
        if signal.getsignal(each) == signal.SIG_DFL:
            signal.signal(each, _exit)
    found = tune(arguments.script, arguments.arguments, seconds=arguments.seconds, write=arguments.write)
    _report(arguments.json, _plain(found.to_dict()), str(found))


def _measure(arguments: Any) -> None:
    from .measuring import measure_script

    found = measure_script(arguments.script, arguments.arguments, arguments.steps, arguments.source)
    _report(arguments.json, found, f"{found['rate']:.3g} steps/s, loss {found['loss']}")


def _make_page(arguments: Any) -> None:
    from .reporting import write_page

    if not _is_spokesman():
        print("saturate: only rank 0 writes the report", file=sys.stderr)
        return
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        # Python's handler would run only after the page is written.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _print(f"report  {write_page(arguments.folders, arguments.out)[1]}")


def _check(arguments: Any) -> None:
    """The arguments of a command that runs a script."""
    if getattr(arguments, "is_module", False):
        from .running import spec_of

        arguments.spec = spec_of(arguments.script)
        arguments.script = arguments.spec.origin
    elif not os.path.isfile(arguments.script):
        raise Error(f"there is no such script ({arguments.script}). Check the path")
    if arguments.json is not None:
        if not _is_writable(arguments.json):
            raise Error(f"the result cannot be written there ({arguments.json}). "
                        "Give --json a file that you may write")
        arguments.json = os.path.abspath(arguments.json)  # the script may change the folder
    for name in ("seconds", "steps"):
        if getattr(arguments, name, None) is not None and not getattr(arguments, name) > 0:
            raise Error(f"{getattr(arguments, name)} is not above 0 (--{name}). Give a number above 0")


def main() -> int:
    try:
        arguments = _parser().parse_args()
    except BrokenPipeError:  # the reader of the help has gone
        return 0
    finally:
        _flush()
    try:
        if "script" in arguments:
            _check(arguments)
        commands = {"diagnose": _diagnose, "tune": _tune, "measure": _measure, "report": _make_page}
        commands[arguments.command](arguments)
    except Error as failure:
        print(f"saturate: error: {failure}", file=sys.stderr)
        return failure.exit_code
    except KeyboardInterrupt:
        print("saturate: interrupted", file=sys.stderr)
        return 130
    finally:
        _flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
