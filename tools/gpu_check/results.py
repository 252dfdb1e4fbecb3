"""The results of a check so far: a JSON file and a table, rewritten after every addition."""

import json
import os
import re
import statistics
import threading


class Mismatch(Exception):
    """Results of another GPU or another commit."""


def gain_of(row):
    if "share_reached" in row:
        return f"{row['share_reached']:.2f} of the copy above"
    if row.get("gain") is None:
        return ""
    spread = "" if row.get("low") is None else f" ({row['low']:.2f} to {row['high']:.2f})"
    return f"{row['gain']:.2f}{spread}"


def table(content):
    """The results as Markdown."""
    gpu = content["host"]["gpu"]
    lines = [f"# {gpu['name']}, driver {gpu['driver']}, commit {content['commit']}", "",
             "| test | result |", "|---|---|"]
    lines += [f"| {test['name']} | {test['result']} |" for test in content["tests"]]
    lines += ["", "| measured | median | spread | unit | gain over the first |", "|---|---|---|---|---|"]
    lines += [f"| {row['name']} | {row['median']:.4g} | {row['min']:.4g} to {row['max']:.4g} "
              f"(n={row['n']}) | {row['unit']} | {gain_of(row)} |" for row in content["rows"]]
    for title in ("failures", "skipped"):
        if content[title]:
            lines += ["", f"## {title.capitalize()}", ""]
            lines += [f"- {name}: {' '.join(text.split())}" for name, text in content[title].items()]
    return "\n".join(lines) + "\n"


class Results:
    """Results of one GPU and one commit, in `folder`. Any thread may add to them."""

    def __init__(self, folder, host, commit):
        folder.mkdir(parents=True, exist_ok=True)
        stem = "gpu-check-" + re.sub(r"[^a-z0-9]+", "-", host["gpu"]["name"].lower())
        self.path, self.page = folder / f"{stem}.json", folder / f"{stem}.md"
        self.content = {"bench": "gpu-check", "host": host, "commit": commit, "tests": [], "rows": [],
                        "failures": {}, "skipped": {}, "done": []}
        self.lock = threading.RLock()

    def take(self, path):
        """Adds the results of an earlier call; a row replaces an earlier one of the same name."""
        earlier = json.loads(path.read_text(encoding="utf-8"))
        for what, here, there in (("GPU", self.content["host"]["gpu"]["name"], earlier["host"]["gpu"]["name"]),
                                  ("commit", self.content["commit"], earlier["commit"])):
            if here != there:
                raise Mismatch(f"{path} is of the {what} {there}, not {here}")
        for key in ("tests", "rows"):
            for entry in earlier[key]:
                self._put(key, entry)
        for name in earlier["done"]:
            self.begin(name)
        for key in ("failures", "skipped"):
            self.content[key] |= earlier[key]
        self.content["done"] += earlier["done"]

    def begin(self, job):
        """Removes a job's earlier failures and skips, since it runs again."""
        with self.lock:
            for key in ("failures", "skipped"):
                self.content[key] = {name: text for name, text in self.content[key].items()
                                     if name != job and not name.startswith(job + ": ")}
            self.content["done"] = [name for name in self.content["done"] if name != job]

    def row(self, name, unit, values, **more):
        if values:
            self.add_row({"name": name, "unit": unit, "median": statistics.median(values), "min": min(values),
                          "max": max(values), "n": len(values), **more})

    def add_row(self, row):
        self._add("rows", row)
        print(f"gpu-check:   {row['name']}: {row['median']:.4g} {row['unit']}", flush=True)

    def test(self, name, result, seconds):
        self._add("tests", {"name": name, "result": result, "seconds": seconds})
        print(f"gpu-check:   {name}: {result}", flush=True)

    def note(self, key, name, text):
        """Adds to `failures` or `skipped`."""
        with self.lock:
            self.content[key][name] = text
            self.save()
        print(f"gpu-check:   {key}: {name}: {' '.join(text.split())[:300]}", flush=True)

    def done(self, job):
        with self.lock:
            self.content["done"].append(job)
            self.save()

    def failed(self):
        return bool(self.content["failures"]) or any(test["result"] in ("failed", "crashed")
                                                     for test in self.content["tests"])

    def save(self):
        """Replaces the files atomically, so that a call that is cut off loses only the row in progress."""
        with self.lock:
            for path, text in ((self.path, json.dumps(self.content, indent=2) + "\n"),
                               (self.page, table(self.content))):
                written = path.with_suffix(path.suffix + ".tmp")
                written.write_text(text, encoding="utf-8")
                os.replace(written, path)

    def _put(self, key, entry):
        """The new entry comes last, so that interleaved measurements are side by side."""
        self.content[key] = [other for other in self.content[key] if other["name"] != entry["name"]] + [entry]

    def _add(self, key, entry):
        with self.lock:
            self._put(key, entry)
            self.save()
