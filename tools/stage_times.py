#!/usr/bin/env python3
"""Compares the seconds that CI's stages took with those on record, and says which grew by more than a fifth.

    tools/stage_times.py RECORD TOOK        both: a line "STAGE SECONDS" each

Machines differ in speed, and one machine from hour to hour. So a stage is compared with what the record predicts
for it at this run's pace, the median over the stages of seconds taken to seconds on record.
"""

import pathlib
import statistics
import sys

GROWTH = 1.2
LEAST_SECONDS = 20  # below it, a fifth is chance


def read(path):
    lines = pathlib.Path(path).read_text().splitlines() if pathlib.Path(path).is_file() else []
    return {name: float(seconds) for name, seconds in (line.split() for line in lines if line.strip())}


def main():
    record, took = read(sys.argv[1]), read(sys.argv[2])
    known = [name for name in took if record.get(name, 0) >= LEAST_SECONDS]
    if not known:
        return
    pace = statistics.median(took[name] / record[name] for name in known)
    print(f"pace: {pace:.2f} times the seconds in {sys.argv[1]}")
    for name in known:
        if took[name] > GROWTH * pace * record[name]:
            print(f"GREW    {name}: {took[name]:.0f} s, where {pace * record[name]:.0f} s were expected")


if __name__ == "__main__":
    main()
