#!/usr/bin/env python3
"""Writes docs/performance.md from results/runs.md, written by hand, and results/*.json, written by benches.

    tools/performance_page.py [--check]    --check: writes nothing, and exits with 1 if the page is out of date
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/performance.md"
HEAD = """# Performance

This page holds all measured figures of saturate, with machine, commit and spread: first what was compared with what,
in words and short tables, then every file under `results/` as a bench wrote it.
{gpu}

Release builds. The variants of a generated table, except gpu-check, were measured in turns in one run; it gives medians
with the range.
The machine's times vary by some per cent from minute to minute, so ratios within a table mean more than its numbers.
[bench.md](bench.md) says how each bench measures; `tools/performance_page.py` makes this page.
"""
NO_GPU = "**Nothing on this page was measured on a GPU.**"
GPU = """The section [On a GPU](#on-a-gpu) and the tables gpu-check and gpu_decode were measured on the GPUs that the section
names, everything else on a CPU."""


def number(value):
    magnitude = abs(value)
    if magnitude >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if magnitude >= 10 else f"{value:.3f}"


def machine_of(host):
    """ "cpu X, cores 2"; for an entry that is a table, such as a GPU, its name."""
    named = {key: value.get("name") if isinstance(value, dict) else value for key, value in host.items()}
    return ", ".join(f"{key} {value}" for key, value in named.items() if isinstance(value, (str, int)))


def rung_lines(rungs):
    """The table of a ladder's rungs, as `saturate ladder` and tools/peers/ladder.py write them."""
    lines = ["| | images/s | over the first | 95 % | n |", "|---|---|---|---|---|"]
    for rung in rungs:
        name = rung["name"].replace("|", "\\|")
        if rung["skipped"]:
            lines.append(f"| {name} | skipped: {rung['skipped']} | | | |")
            continue
        gain, interval = rung["gain_first"], ""
        if gain is not None and rung["high"] is not None:
            interval = f"{rung['low']:.2f} to {rung['high']:.2f}"
        lines.append(f"| {name} | {number(rung['images_per_s'])} | {f'{gain:.2f}' if gain else ''} | {interval} "
                     f"| {rung['n']} |")
    return lines


def table(path):
    result = json.loads(path.read_text())
    machine = machine_of(result.get("host", {}))
    title = path.stem if result.get("bench") else f"ladder: {result['title']}"
    lines = [f"\n## {title}\n", f"`results/{path.name}`, commit {result['commit']}: {machine}.\n"]
    if note := result.get("note"):
        lines.append(note + "\n")
    if "rungs" in result:
        return "\n".join(lines + rung_lines(result["rungs"])) + "\n"
    lines += ["| | median | range | unit | n |", "|---|---|---|---|---|"]
    for row in result["rows"]:
        name = row["name"].replace("|", "\\|")
        lines.append(f"| {name} | {number(row['median'])} | {number(row['min'])} to {number(row['max'])} "
                     f"| {row['unit']} | {row['n']} |")
    return "\n".join(lines) + "\n"


def main():
    results = sorted((ROOT / "results").glob("*.json"))
    gpu = any(path.name.startswith("gpu-check") for path in results)
    text = HEAD.format(gpu=GPU if gpu else NO_GPU) + (ROOT / "results/runs.md").read_text() + \
        "".join(table(path) for path in results)
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text() != text:
            sys.exit("docs/performance.md differs from results/: run tools/performance_page.py")
    else:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
