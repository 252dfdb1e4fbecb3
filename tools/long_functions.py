#!/usr/bin/env python3
"""Lists every function of more than 60 lines, counted from its signature's last line to its closing brace.

    tools/long_functions.py [FILE...]       C++, CUDA and Python; without files, all that git tracks

Exits with 1 if there are any. A line `// Long: WHY` or `# Long: WHY` above a function excuses it. Relies on
clang-format's layout: a body ends at the first brace that is indented like its function.
"""

import ast
import pathlib
import re
import subprocess
import sys

LIMIT = 60
ROOT = pathlib.Path(__file__).resolve().parent.parent
# Lines that end with an opening brace, but do not begin a function.
OTHER = re.compile(r"\s*(?:}|(?:inline )?namespace|extern|class|struct|enum|union|if|for|while|switch|else|do|try|return)\b"
                   r"|.*[=,(]\s*{$|.*\b(?:class|struct|enum)\b[^()]*{$|.*\[[^\]]*\] ?(?:\(.*)?{$")


def cpp_functions(lines):
    """(first line, line of the brace, last line), from 0, of functions and methods."""
    for begin, line in enumerate(lines):
        if not re.match(r"\s*\S.*{$", line) or OTHER.match(line):
            continue
        first, head = begin, line
        # A signature over several lines, or a constructor's list of initialisers.
        while first > 0 and (head.count("(") != head.count(")") or lines[first].lstrip().startswith(":")
                             or lines[first - 1].endswith(",")):
            first -= 1
            head = lines[first] + head
        if "(" not in head or OTHER.match(lines[first]):
            continue
        closing = lines[first][:len(lines[first]) - len(lines[first].lstrip())] + "}"
        end = next((end for end in range(begin + 1, len(lines)) if lines[end].startswith(closing)), begin)
        yield first, begin, end


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno - 1, node.lineno - 1, node.end_lineno - 1


def long_functions(path):
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    functions = python_functions(text) if text.startswith("#!/usr/bin/env python") or path.suffix == ".py" \
        else cpp_functions(lines)
    for first, begin, end in functions:
        # Above the function, or above the lambda or class that contains it.
        excused = first > 0 and re.match(r"\s*(//|#) Long: ", lines[first - 1])
        if end - begin + 1 > LIMIT and not excused:
            yield f"{path.relative_to(ROOT)}:{first + 1}: {end - begin + 1} lines: {lines[first].strip()}"


def main():
    names = sys.argv[1:] or subprocess.run(
        ["git", "-C", ROOT, "ls-files", "*.cpp", "*.h", "*.cu", "*.cuh", "*.py", "tools/gpu-check"],
        capture_output=True, text=True, check=True).stdout.split()
    found = [line for name in names for line in long_functions((ROOT / name).resolve())]
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
