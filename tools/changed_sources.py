#!/usr/bin/env python3
"""Prints the C++ sources that differ from a commit, and those that include a changed header, also through other
headers.

    tools/changed_sources.py .ci/tidied|.ci/fuzzed
    tools/changed_sources.py .ci/sanitized --modules

The files name the last commits that passed clang-tidy, 60 s of each fuzzer, or the tests under sanitizers, over
everything. If git does not have the commit, as in a shallow clone, every source is printed.

--modules: prints instead the folders of src/ in which a file differs, or includes a public header that does.
"""

import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.MULTILINE)


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.split() if done.returncode == 0 else None


def resolved(include, includer):
    """The file of the checkout that an #include names, by the build's include paths; None: a foreign header."""
    for folder in (includer.parent, ROOT / "src", ROOT / "include", ROOT):
        if (folder / include).is_file():
            return (folder / include).resolve()
    return None


def with_includers(stale, includes):
    """`stale` and all files that include one of them, directly or not. `includes`: the files that each file includes."""
    includers = collections.defaultdict(set)
    for path, included in includes.items():
        for each in included:
            includers[each].add(path)
    found, left = set(stale), list(stale)
    while left:
        new = includers[left.pop()] - found
        found |= new
        left += new
    return found


def modules_of(stale, includes):
    """The folders of src/ with a stale file, or with one that includes a stale public header itself."""
    public = {path for path in stale if path.is_relative_to(ROOT / "include")}
    stale = stale | {path for path, included in includes.items() if included & public}
    folders = (path.relative_to(ROOT).parts for path in stale)
    return {parts[1] for parts in folders if parts[0] == "src" and len(parts) > 2}


def main():
    tracked = [ROOT / name for name in git("ls-files", "-co", "--exclude-standard", "*.cpp", "*.h", "*.cuh")]
    tracked = [path for path in tracked if path.is_file()]
    changed = git("diff", "--name-only", (ROOT / sys.argv[1]).read_text().strip())
    if changed is None:
        stale = set(tracked)
    else:
        stale = {ROOT / name for name in changed} | set(
            ROOT / name for name in git("ls-files", "-o", "--exclude-standard"))
    includes = {path: {resolved(name, path) for name in INCLUDE.findall(path.read_text(errors="replace"))}
                for path in tracked}
    if "--modules" in sys.argv:
        print(*sorted(modules_of(stale, includes)), sep="\n")
        return
    for path in sorted(with_includers(stale, includes)):
        if path.suffix == ".cpp" and path.is_file():
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
