#!/usr/bin/env python3
"""Draws the modules of src/ from their includes, and holds them to their order.

    tools/module_graph.py            prints each module and those it includes; exits with 1 on a broken rule
    tools/module_graph.py --dot      the same as a graph for Graphviz, without edges that others imply

The rules:
- A module includes itself and those before it in MODULES. A public header counts as part of its module.
- A public header (include/saturate/) includes public headers only, and there are at most 40.
- Those of include/saturate/data/ include no others.
- They, the modules of TORCH_FREE, and torch_free_sources of CMakeLists.txt include no torch header, nor a header of the
  project that includes one.
"""

import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODULES = ("base", "recipe", "store", "image", "data", "trace", "feed", "model", "reduce", "task", "step", "record", "run",
           "report", "advise", "app")
TORCH_FREE = ("base", "recipe", "store", "image", "data", "report")
MOST_PUBLIC = 40
# Public headers without a source of the same name, or with several.
HEADER_MODULES = {
    "batch_norm": "model", "dataset": "data", "data_options": "recipe", "effects": "image", "env": "base",
    "image": "image", "input": "data", "metrics": "task", "model": "model", "optimizer": "step", "pixel": "base",
    "schedule": "step", "step_options": "recipe",
}
INCLUDE = re.compile(r'^\s*#include [<"]([^">]+)[">]', re.MULTILINE)


def modules_by_source():
    found = {}
    for path in ROOT.glob("src/*/*.cpp"):
        found.setdefault(path.stem, set()).add(path.parent.name)
    return found


def module_of(path, by_source):
    """The module of a file, given relative to the project; None for a public header that none is known of."""
    if path.parts[0] == "src":
        return path.parts[1]
    known = by_source.get(path.stem, set())
    return HEADER_MODULES.get(path.stem) or (next(iter(known)) if len(known) == 1 else None)


@functools.cache
def included(path):
    """Paths relative to the project of its own headers that a file includes, and whether it includes torch's."""
    names = INCLUDE.findall((ROOT / path).read_text())
    paths = [pathlib.Path("include" if name.startswith("saturate/") else "src", name) for name in names]
    return ([path for path in paths if (ROOT / path).is_file()],
            any(name.startswith(("torch/", "ATen/", "c10/")) for name in names))


def way_to_torch(path, seen):
    """The files from `path` to the one that includes torch, each included by the one before; empty if none does."""
    seen.add(path)
    headers, has_torch = included(path)
    if has_torch:
        return [path]
    for header in headers:
        if header not in seen and (rest := way_to_torch(header, seen)):
            return [path, *rest]
    return []


def torch_free_sources():
    """Sources of other modules that CMakeLists.txt compiles without torch."""
    text = re.search(r"set\(torch_free_sources(.*?)\)", (ROOT / "CMakeLists.txt").read_text(), re.DOTALL)
    return {pathlib.Path(name) for name in text[1].split()}


def examine():
    """(modules that each module includes, broken rules)"""
    graph, broken = {module: set() for module in MODULES}, []
    by_source, free = modules_by_source(), torch_free_sources()
    files = [path for folder in ("src", "include") for path in sorted((ROOT / folder).rglob("*"))
             if path.suffix in (".h", ".cuh", ".cpp", ".cu")]
    public = [path for path in files if path.is_relative_to(ROOT / "include")]
    if len(public) > MOST_PUBLIC:
        broken.append(f"include/saturate: {len(public)} public headers, more than {MOST_PUBLIC}")
    for file in files:
        path = file.relative_to(ROOT)
        module = module_of(path, by_source)
        if module not in graph:
            broken.append(f"{path}: its module is not known; add it to HEADER_MODULES of tools/module_graph.py")
            continue
        headers, _ = included(path)
        is_public, is_data = file in public, path.is_relative_to("include/saturate/data")
        if is_data or path in free or module in TORCH_FREE:
            if way := way_to_torch(path, set()):
                broken.append(f"{' -> '.join(map(str, way))} includes torch, and may not")
        for header in headers:
            if is_public and header.parts[0] == "src":
                broken.append(f"{path}, which is public, includes {header}, which is not")
            if is_data and not header.is_relative_to("include/saturate/data"):
                broken.append(f"{path} includes {header}, which is not of include/saturate/data")
            other = module_of(header, by_source)
            if other not in graph:
                continue
            if MODULES.index(other) > MODULES.index(module):
                broken.append(f"{path}, of {module}, includes {header}, of {other}, which comes after it")
            if other != module:
                graph[module].add(other)
    return graph, broken


def reachable(graph, start):
    found, left = set(), list(graph[start])
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            left.extend(graph[module])
    return found


def main():
    graph, broken = examine()
    if sys.argv[1:] == ["--dot"]:
        print("digraph saturate {\n  rankdir=BT;\n  node [shape=box];")
        for module, others in graph.items():
            implied = set().union(*(reachable(graph, other) for other in others)) if others else set()
            for other in sorted(others - implied, key=MODULES.index):
                print(f"  {module} -> {other};")
        print("}")
    else:
        for module, others in graph.items():
            print(f"{module:8}{' '.join(sorted(others, key=MODULES.index))}".rstrip())
    for rule in broken:
        print(rule, file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
