"""Changes of a script's text: arguments of a call, or a line."""

from __future__ import annotations

import ast
from typing import Any, Dict, List, NamedTuple, Optional, Tuple


class Edit(NamedTuple):
    """Arguments that calls of a function get: all calls, or that of `line`. Or a line to be added after `import torch`.
    """

    call: str
    arguments: Dict[str, Any]
    line: int = 0
    added: str = ""


POSITIONS: Dict[str, Tuple[str, ...]] = {
    "DataLoader": ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers"),
    "set_num_threads": ("number",),
    "set_detect_anomaly": ("mode",),
    "zero_grad": ("set_to_none",),
}
# Only what is there is changed: these calls are not made to add an argument.
ONLY_PRESENT = ("set_num_threads", "set_detect_anomaly", "zero_grad")


def _name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


class _Text:
    """Places of a source, whose columns count bytes."""

    def __init__(self, source: str) -> None:
        self.bytes = source.encode()
        self._lines = [0]
        for line in self.bytes.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def begin(self, node: Any) -> int:
        return self._lines[int(node.lineno) - 1] + int(node.col_offset)

    def after(self, node: Any) -> int:
        """The begin of the next line."""
        return self._lines[int(node.end_lineno)]

    def end(self, node: Any) -> int:
        return self._lines[int(node.end_lineno) - 1] + int(node.end_col_offset)


Change = Tuple[int, int, str]  # begin, end, and the new text


def _changed(text: _Text, call: ast.Call, name: str, value: Any) -> Optional[Change]:
    """None: the argument cannot be told."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return text.begin(keyword.value), text.end(keyword.value), repr(value)
    positions = POSITIONS.get(_name_of(call), ())
    is_open = any(isinstance(each, ast.Starred) for each in call.args) or any(
        keyword.arg is None for keyword in call.keywords)
    if is_open:
        return None
    if name in positions and positions.index(name) < len(call.args):
        place = call.args[positions.index(name)]
        return text.begin(place), text.end(place), repr(value)
    if _name_of(call) in ONLY_PRESENT:
        return None
    parts = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not parts:
        return text.end(call) - 1, text.end(call) - 1, f"{name}={value!r}"
    last = max(text.end(part) for part in parts)
    if last >= text.end(call):  # a generator, which may be the only argument without its parentheses
        return None
    while text.bytes[last:last + 1] == b")" and last < text.end(call) - 1:  # a part in parentheses
        last += 1
    return last, last, f", {name}={value!r}"


def _calls(tree: ast.AST, edit: Edit) -> List[ast.Call]:
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name_of(node) == edit.call]
    if edit.call == "DataLoader" and not edit.line:  # the loop's is made elsewhere
        return []
    if edit.line:
        found = [each for each in found if each.lineno <= edit.line <= (each.end_lineno or each.lineno)]
    return found if len(found) == 1 or edit.call != "DataLoader" else []


def _with_dependents(edit: Edit, call: ast.Call) -> Dict[str, Any]:
    """Without workers a DataLoader refuses the arguments that are theirs."""
    if edit.arguments.get("num_workers") != 0:
        return edit.arguments
    present = {keyword.arg for keyword in call.keywords}
    others = {"prefetch_factor": None, "persistent_workers": False, "timeout": 0, "multiprocessing_context": None}
    return {**edit.arguments, **{name: value for name, value in others.items() if name in present}}


def _with_line(source: str, line: str) -> Optional[str]:
    """None: it does not import torch at its top level, or has such a line itself."""
    setting = line.partition("(")[0].partition(" =")[0]
    if ".".join(setting.split(".")[-2:]) in source:  # which may come later, or be False on purpose
        return None
    text = _Text(source)
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import) and any(each.name == "torch" and not each.asname for each in node.names):
            place = text.after(node)
            end = "\r\n" if text.bytes[:place].endswith(b"\r\n") else "\n"
            return (text.bytes[:place] + (line + end).encode() + text.bytes[place:]).decode()
    return None


def edited(source: str, edit: Edit) -> Optional[str]:
    """The source with the arguments; None if the calls are not in it, or could mean something else."""
    if edit.added:
        return _with_line(source, edit.added)
    text, changes = _Text(source), []
    for call in _calls(ast.parse(source), edit):
        for name, value in _with_dependents(edit, call).items():
            change = _changed(text, call, name, value)
            if change is None and edit.call not in ONLY_PRESENT:
                return None
            if change is not None:
                changes.append(change)
    result = text.bytes
    for begin, end, new in sorted(changes, key=lambda each: each[0], reverse=True):
        result = result[:begin] + new.encode() + result[end:]
    found = result.decode()
    try:
        ast.parse(found)
    except SyntaxError:
        return None
    return found if found != source else None
