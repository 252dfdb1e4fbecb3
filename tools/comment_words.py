#!/usr/bin/env python3
"""Lists comments and docstrings that begin with "Of" or "What", also on the line after the opening quotes.

    tools/comment_words.py [FILE...]       without files, all sources that git tracks

Exits with 1 if there are any.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ["src", "include", "tests", "bench", "python", "tools", ":!*.md"]
COMMENT = re.compile(r'(?:^|(?<=\s))(?://|#|/\*|[rf]?""")[ !<]*(?:Of|What) ', re.MULTILINE)
DOCSTRING = re.compile(r'^[ \t]*[rf]?"""\\?[ \t]*\n\s*(?=(?:Of|What) )', re.MULTILINE)


def wrong_comments(path):
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:  # no source
        return
    lines = text.splitlines()
    begins = [match.start() for match in COMMENT.finditer(text)] + [match.end() for match in DOCSTRING.finditer(text)]
    for number in sorted({text.count("\n", 0, begin) for begin in begins}):
        yield f'{path.relative_to(ROOT)}:{number + 1}:{lines[number]}: a comment begins with "Of" or "What"'


def main():
    names = sys.argv[1:] or subprocess.run(["git", "ls-files", *SOURCES], cwd=ROOT, capture_output=True, text=True,
                                           check=True).stdout.splitlines()
    found = [line for name in names for line in wrong_comments((ROOT / name).resolve())]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
