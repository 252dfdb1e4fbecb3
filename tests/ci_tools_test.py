#!/usr/bin/env python3
"""The tools with which .ci/run chooses sources and judges its stages' times."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


class StageTimes(unittest.TestCase):
    RECORD = {"test": 100, "tsan": 200, "fuzz": 300, "net": 4}

    def lines(self, record, took):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for name, times in (("record", record), ("took", took)):
                paths.append(pathlib.Path(folder) / name)
                paths[-1].write_text("".join(f"{stage} {seconds}\n" for stage, seconds in times.items()))
            done = subprocess.run([ROOT / "tools/stage_times.py", *paths], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    def words(self, took, first):
        return [line.split()[1].rstrip(":") for line in self.lines(self.RECORD, took) if line.startswith(first)]

    def test_a_stage_that_is_not_recorded_is_listed(self):
        self.assertEqual(self.words(self.RECORD | {"install": 50, "new": 1}, "NEW"), ["install", "new"])
        self.assertEqual(self.words(self.RECORD, "NEW"), [])
        self.assertEqual([line.split()[0] for line in self.lines({}, {"install": 50})], ["NEW"])

    def test_a_stage_that_grew_more_than_the_others_is_listed(self):
        self.assertEqual(self.words({"test": 100, "tsan": 200, "fuzz": 370, "net": 9}, "GREW"), ["fuzz"])
        self.assertEqual(self.words({"test": 200, "tsan": 400, "fuzz": 600, "net": 9}, "GREW"), [], "a slower machine")

    def test_the_total_shows_that_all_grew_alike(self):
        lines = self.lines(self.RECORD, {"test": 150, "tsan": 300, "install": 1000})
        self.assertIn("total: 450 s, 1.50 times the 300 s recorded for these stages", lines)


class ChangedSources(unittest.TestCase):
    FILES = {
        "src/a/deep.h": "",
        "src/a/middle.h": '#include "a/deep.h"\n',
        "src/a/top.h": '#include "a/middle.h"\n',
        "src/a/direct.cpp": '#include "a/deep.h"\n',
        "src/b/far.cpp": '#include "a/top.h"\n',
        "src/b/ring.h": '#include "b/ring2.h"\n',
        "src/b/ring2.h": '#include "b/ring.h"\n',
        "src/b/round.cpp": '#include "ring.h"\n',
        "src/b/alone.cpp": "#include <vector>\n",
        "include/saturate/public.h": "",
        "src/c/public.cpp": '#include "saturate/public.h"\n',
    }

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        for name, text in self.FILES.items():
            self.write(name, text)
        self.write("tools/changed_sources.py", "")
        shutil.copy(ROOT / "tools/changed_sources.py", self.root / "tools")
        self.git("init", "-q")
        self.git("add", ".")
        self.git("-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", "first")
        self.write(".ci/tidied", self.git("rev-parse", "HEAD"))

    def write(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def git(self, *arguments):
        return subprocess.run(["git", *arguments], cwd=self.root, capture_output=True, text=True, check=True).stdout

    def changed(self, *options):
        command = [sys.executable, self.root / "tools/changed_sources.py", ".ci/tidied", *options]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    def test_nothing_changed(self):
        self.assertEqual(self.changed(), [])

    def test_a_header_changes_all_that_include_it_through_others(self):
        self.write("src/a/deep.h", "int changed;\n")
        self.assertEqual(self.changed(), ["src/a/direct.cpp", "src/b/far.cpp"])

    def test_headers_that_include_each_other_end(self):
        self.write("src/b/ring2.h", '#include "b/ring.h"\nint changed;\n')
        self.assertEqual(self.changed(), ["src/b/round.cpp"])

    def test_a_new_file_counts(self):
        self.write("src/b/new.cpp", "")
        self.assertEqual(self.changed(), ["src/b/new.cpp"])

    def test_without_the_commit_all_are_printed(self):
        self.write(".ci/tidied", "0" * 40)
        self.assertEqual(len(self.changed()), 5)
        self.assertEqual(self.changed("--modules"), ["a", "b", "c"])

    def test_modules_are_those_of_the_files_themselves(self):
        self.assertEqual(self.changed("--modules"), [])
        self.write("src/a/deep.h", "int changed;\n")
        self.write("tests/a_test.cpp", "")
        self.assertEqual(self.changed("--modules"), ["a"])
        self.write("include/saturate/public.h", "int changed;\n")
        self.assertEqual(self.changed("--modules"), ["a", "c"])


class CommentWords(unittest.TestCase):
    SOURCES = {
        "src/a.cpp": "int a;  //" + " Of a\n// Often\n",
        "tools/same_line.py": '"""' + "Of a.\"\"\"\n",
        "python/next_line.py": 'def f():\n    r"""\n\n    What it does. """\n\n\ndef g():\n    """\n    Does. """\n',
        "python/text.py": 'text = """\nOf a text."""\n',
    }

    def test_lists_comments_and_docstrings_also_on_the_next_line(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder).resolve()
            for name, text in self.SOURCES.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            shutil.copy(ROOT / "tools/comment_words.py", root / "tools")
            done = subprocess.run([sys.executable, root / "tools/comment_words.py", *self.SOURCES], capture_output=True,
                                  text=True, check=False)
        places = [":".join(line.split(":")[:2]) for line in done.stdout.splitlines()]
        self.assertEqual(places, ["src/a.cpp:1", "tools/same_line.py:1", "python/next_line.py:4"])
        self.assertEqual(done.returncode, 1)


if __name__ == "__main__":
    unittest.main()
