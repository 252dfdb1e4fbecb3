#!/usr/bin/env python3
"""Lists the CI stages that took over a fifth longer than the recorded times predict, and those without such a time.

    tools/stage_times.py RECORD TOOK        files with lines "STAGE SECONDS"

Machines differ in speed, and one machine differs from hour to hour. So the recorded seconds are first multiplied by
this run's pace: the median, over the stages, of the ratio of seconds taken to recorded seconds. If all stages grow alike,
only the totals show it.
"""

import pathlib
import statistics
import sys

GROWTH = 1.2
LEAST_SECONDS = 20  # shorter stages vary by a fifth by chance


def read(path):
    lines = pathlib.Path(path).read_text().splitlines() if pathlib.Path(path).is_file() else []
    return {name: float(seconds) for name, seconds in (line.split() for line in lines if line.strip())}


def main():
    record, took = read(sys.argv[1]), read(sys.argv[2])
    for name in took:
        if name not in record:
            print(f"NEW     {name}: {took[name]:.0f} s, not in {sys.argv[1]}")
    both = [name for name in took if name in record]
    recorded = sum(record[name] for name in both)
    if recorded > 0:
        now = sum(took[name] for name in both)
        print(f"total: {now:.0f} s, {now / recorded:.2f} times the {recorded:.0f} s recorded for these stages")
    known = [name for name in both if record[name] >= LEAST_SECONDS]
    if not known:
        return
    pace = statistics.median(took[name] / record[name] for name in known)
    print(f"pace: {pace:.2f} times the seconds in {sys.argv[1]}")
    for name in known:
        if took[name] > GROWTH * pace * record[name]:
            print(f"GREW    {name}: {took[name]:.0f} s, expected {pace * record[name]:.0f} s")


if __name__ == "__main__":
    main()
