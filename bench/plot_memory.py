#!/usr/bin/env python3
"""Plots the results of `saturate bench memory --json FILE` as SVG: peak memory against depth.

  build/saturate bench memory --json memory.json && bench/plot_memory.py memory.json memory.svg
"""

import json
import sys

WIDTH, HEIGHT, MARGIN = 640, 400, 60
COLOURS = {"off": "#c0392b", "sqrt": "#2471a3"}


def main(source, target):
    rows = json.load(open(source))["rows"]
    lines = {
        name: [(row["depth"], row["median"]) for row in rows if row["name"].endswith("=" + name)]
        for name in COLOURS
    }
    right = max(row["depth"] for row in rows)
    top = max(row["median"] for row in rows)

    def place(depth, mib):
        return (MARGIN + depth / right * (WIDTH - 2 * MARGIN),
                HEIGHT - MARGIN - mib / top * (HEIGHT - 2 * MARGIN))

    def text(x, y, words, colour="#333"):
        return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}" font-size="13">{words}</text>'

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
             'font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>']
    (x0, y0), (x1, y1) = place(0, 0), place(right, top)
    parts.append(f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="#333"/>')
    parts.append(text(x0, y1 - 12, f"peak of tensors, MiB (top: {top:.1f})"))
    parts.append(text(x1 - 120, y0 + 24, f"stages (to {right})"))
    for name, points in lines.items():
        path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" '
                     'stroke-width="2"/>')
        x, y = place(*points[-1])
        parts.append(text(x + 6, y + 4, name, COLOURS[name]))
    open(target, "w").write("\n".join(parts) + "\n</svg>\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
