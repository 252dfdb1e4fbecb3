"""saturate.report() and python -m saturate report: the page of a watched loop. Needs pytest."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import saturate
from saturate import records, watching


@pytest.fixture
def watch(monkeypatch, tmp_path):
    """It goes on, and has written three records."""
    monkeypatch.setattr(watching, "RECORD_NS", 0)
    with saturate.watch(out=tmp_path / "run") as watch:
        for _ in range(3):
            watch.step(loss=0.5)
        yield watch


def data_of(page):
    _, _, rest = pathlib.Path(page).read_text().partition('<script type="application/json" id="report-data">')
    return json.loads(rest.partition("</script>")[0])


def run(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "saturate", "report", *map(str, arguments)], capture_output=True,
                          text=True, timeout=60, **options)


def test_a_watch_that_goes_on_has_a_page(watch, tmp_path):
    page = saturate.report(tmp_path / "run")
    assert page == str(tmp_path / "run/report.html")
    shown, = data_of(page)["runs"]
    assert (shown["state"], shown["name"], shown["warnings"]) == ("running", "run", [])
    assert shown["figures"]["steps"] == 3 and shown["figures"]["phases"]["host"] > 0
    assert (shown["unit"], shown["ended_by"]) == ("samples", "")
    assert shown["steps"]["loss"] == [0.5] * 3 and shown["steps"]["rss_bytes"][-1] > 10**6
    assert "saturate.watch" in dict(shown["host"])["saturate"]
    shutil.copytree(tmp_path / "run", tmp_path / "copy")  # as of a watch that was killed
    assert data_of(saturate.report(str(tmp_path / "copy")))["runs"][0]["state"] == "stopped"
    watch.close()
    assert data_of(saturate.report([tmp_path / "run"]))["runs"][0]["state"] == "ended"


def test_the_page_needs_nothing_else(watch, tmp_path):
    text = pathlib.Path(saturate.report(tmp_path / "run", out=tmp_path / "page.html")).read_text()
    assert text.startswith("<!DOCTYPE html>") and "default-src 'none'" in text
    assert all(title in text for title in ("Where the time went", "Learning and speed", "The machine",
                                           "Hardware and versions"))
    assert not any(part in text for part in ('src="http', 'href="http', "sourceMappingURL"))


def test_the_page_is_the_commands(watch, tmp_path, saturate_command):
    watch.close()
    ours, theirs = tmp_path / "ours.html", tmp_path / "theirs.html"
    saturate.report(tmp_path / "run", out=ours)
    subprocess.run([saturate_command, "report", str(tmp_path / "run"), "--out", str(theirs)], check=True, timeout=60)
    assert ours.read_bytes() == theirs.read_bytes()


def test_runs_and_ladders_are_compared(watch, tmp_path):
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    with open(tmp_path / "other/metrics.jsonl", "a") as file:
        file.write("{")
    (tmp_path / "ladder.json").write_text('{"title": "t", "rungs": [{"name": "first", "steps_per_s": 2.5}]}')
    done = run("run", "other", "ladder.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "report  report.html\n"), done.stderr
    assert done.stderr.startswith("saturate: warning: other: metrics.jsonl ends in the middle of line 4")
    data = data_of(tmp_path / "report.html")
    assert [each["name"] for each in data["runs"]] == ["run", "other"]
    assert data["ladders"][0]["rungs"][0]["steps_per_s"] == 2.5
    page = saturate.report([tmp_path / "ladder.json", tmp_path / "run"])
    assert page == str(tmp_path / "run/report.html")


def test_errors_are_the_commands(watch, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.json").write_text("{}")
    whole = (tmp_path / "run/metrics.jsonl").read_text()
    for folders, out, text, code in (
            (tmp_path / "empty", None, f"the folder holds no metrics.jsonl ({tmp_path}/empty)", 3),
            (tmp_path / "none", None, f"no such run folder ({tmp_path}/none)", 3),
            ("", None, "the name of a run is empty", 2),
            (tmp_path / "other.json", tmp_path / "page.html", "not JSON of a ladder", 3),
            ([tmp_path / "run", f"{tmp_path}/run/"], tmp_path / "page.html", "the run is given twice", 2),
            (tmp_path / "run", tmp_path, f"the report's file is a folder ({tmp_path})", 2),
            (tmp_path / "run", tmp_path / "run/metrics.jsonl", "is not an HTML page, and would be lost", 2),
            ([], None, "no run is given", 2)):
        with pytest.raises(saturate.Error) as error:
            saturate.report(folders, out)
        assert text in str(error.value) and error.value.exit_code == code
    assert (tmp_path / "run/metrics.jsonl").read_text() == whole and not (tmp_path / "page.html").exists()
    with pytest.raises(TypeError):
        saturate.report(3)
    with pytest.raises(ValueError):
        saturate.report(tmp_path / "run", out=f"{tmp_path}/run/metrics.jsonl\0.html")
    assert (tmp_path / "run/metrics.jsonl").read_text() == whole
    done = run(tmp_path / "none")
    assert done.returncode == 3 and done.stderr.startswith("saturate: error: no such run folder")
    assert run(tmp_path / "run", "--out", tmp_path).returncode == 2 == run().returncode


def test_names_that_are_not_utf_8(watch, tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    shutil.copytree(tmp_path / "run", folder)
    assert saturate.report(folder) == f"{folder}/report.html" and os.path.exists(f"{folder}/report.html")
    done = run(folder)
    assert (done.returncode, done.stdout) == (0, f"report  {tmp_path}/\\xff/report.html\n"), done.stderr


@pytest.mark.parametrize("owner, name, value", [(records, "is_rank_0", lambda: False),
                                                (records, "is_measured_script", True)])
def test_only_rank_0_of_a_script_that_is_not_measured_writes(monkeypatch, tmp_path, owner, name, value):
    monkeypatch.setattr(owner, name, value)
    assert saturate.report(tmp_path / "run") == str(tmp_path / "run/report.html")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("variables, is_written", [({"RANK": "0", "WORLD_SIZE": "2"}, True),
                                                   ({"RANK": "1", "WORLD_SIZE": "2"}, False)])
def test_only_rank_0_of_torchrun_writes(watch, tmp_path, variables, is_written):
    done = run(tmp_path / "run", env={**os.environ, **variables})
    assert (done.returncode, bool(done.stderr), bool(done.stdout)) == (0, not is_written, is_written)
    assert (tmp_path / "run/report.html").exists() == is_written


@pytest.mark.parametrize("argument, unbuffered", [("run", ""), ("run", "1"), ("--help", ""), ("--help", "1")])
def test_a_reader_of_the_output_may_have_gone(watch, tmp_path, argument, unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "saturate", "report", argument], stdout=writing, cwd=tmp_path,
                          stderr=subprocess.PIPE, text=True, timeout=60,
                          env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run/report.html").exists() == (argument == "run")


class Unprintable(Exception):
    def __str__(self):
        raise ValueError


@pytest.mark.parametrize("failure, text", [
    (ValueError("\nbad https://host/x.shard?X-Amz-Signature=hidden caf\udce9\nmore"),
     "ValueError: bad https://host/x.shard caf\\udce9"),
    (ValueError("Caught ValueError in DataLoader worker process 1.\nOriginal Traceback:\nValueError: bad sample"),
     "ValueError: bad sample"),
    (KeyboardInterrupt(), "KeyboardInterrupt"), (SystemExit(3), "SystemExit: exit code 3"), (SystemExit(0), ""),
    (GeneratorExit(), ""), (Unprintable(), "Unprintable")])
def test_an_exception_that_ends_a_block_is_shown(tmp_path, failure, text):
    with pytest.raises(type(failure)), saturate.watch(out=tmp_path / "run") as watch:
        watch.step()
        raise failure
    shown, = data_of(saturate.report(tmp_path / "run"))["runs"]
    assert (shown["state"], shown["ended_by"], shown["warnings"]) == ("ended", text, [])


LOOP = """
import sys, saturate
for number, _ in enumerate(saturate.watch([["a"]] * 9, out=sys.argv[1])):
    if number == 3:
        FAILURE
"""


@pytest.mark.parametrize("failure, text", [("raise ValueError('bad')", "ValueError: bad"),
                                           ("raise KeyboardInterrupt", "KeyboardInterrupt"), ("sys.exit(3)", None),
                                           ("sys.ps1 = ''; raise ValueError", None)])
def test_an_exception_that_ends_a_program_is_recorded(tmp_path, failure, text):
    subprocess.run([sys.executable, "-c", LOOP.replace("FAILURE", failure), str(tmp_path)], capture_output=True,
                   timeout=60)
    *_, end = (json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (end["kind"], end["step"], end["ended_by"]) == ("end", 4, text)


def test_a_short_watch_has_its_last_step(monkeypatch, tmp_path):
    monkeypatch.setattr(watching, "RECORD_NS", 10**15)  # none is due
    with saturate.watch(out=tmp_path / "run") as watch:
        for loss in range(3):
            watch.step(loss=loss)
    assert watch.folder == str(tmp_path / "run")
    shown, = data_of(saturate.report(watch.folder))["runs"]
    assert (shown["figures"]["steps"], shown["figures"]["loss"], shown["steps"]["loss"]) == (3, 2, [2])


def test_a_page_does_not_replace_what_a_link_leads_to(watch, tmp_path):
    (tmp_path / "mine").write_text("notes")
    (tmp_path / "run/report.html").symlink_to(tmp_path / "mine")
    for out in (None, tmp_path / "run/report.html"):
        with pytest.raises(saturate.Error):
            saturate.report(tmp_path / "run", out)
    assert (tmp_path / "mine").read_text() == "notes"
