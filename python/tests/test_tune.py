"""saturate.tune(): patches of a script's text."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import pytest

import saturate
from saturate.patching import Edit, edited
from saturate.tuning import _Script

WORKERS = {"name": "data-loading", "gain": 3.0, "lines": ["num_workers=2"],
           "edit": {"call": "DataLoader", "arguments": {"num_workers": 2}, "line": 2}}
BY_HAND = {"name": "print-in-loop", "gain": 4.0, "lines": ["print rarely"], "edit": None}
TEXT = "import torch\nDataLoader(data)\nDataLoader(held_out)\n"


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Known results in place of runs: with workers a script is three times as fast."""
    from saturate import tuning

    commands = []

    class Runs:
        loss, rate, refused, ended = 1.0, 30.0, "", ""
        causes, rest = [BY_HAND, WORKERS], {"verdict": "cause", "skipped": []}

        def run(self, command, text, *options):
            commands.append((command, *options))
            has_workers = "num_workers" in text
            if self.refused and self.refused in text:
                raise saturate.Error("the script failed")
            if command == "diagnose":
                if self.ended and self.ended in text:
                    return {"not_found": [], "rate": None, "causes": []}
                return {"not_found": [], "rate": 10.0, "causes": [BY_HAND] if has_workers else self.causes, **self.rest}
            return {"rate": self.rate if has_workers else 10.0, "loss": self.loss if has_workers else 1.0}

    made = Runs()
    made.commands, made.path = commands, tmp_path / "train.py"
    made.path.write_text(TEXT)
    monkeypatch.setattr(tuning, "_Script", lambda *given: setattr(made, "encoding", given[-1]) or made)
    return made


def test_tune_shows_a_patch_and_writes_when_asked(runs):
    found = saturate.tune(runs.path)
    assert found.changes == ["data-loading"] and found.is_kept and not found.is_written
    assert "-DataLoader(data)\n+DataLoader(data, num_workers=2)\n" in found.diff
    assert found.gain.ratio == pytest.approx(3) and runs.path.read_text() == TEXT
    assert "nothing is written" in str(found) and "print rarely" in str(found)
    assert [command for command, *_ in runs.commands] == ["diagnose", "measure", "diagnose"] + ["measure"] * 6
    assert runs.commands[2][-1] == "data-loading,print-in-loop"  # is not measured again
    runs.path.chmod(0o750)
    assert saturate.tune(runs.path, write=True).is_written
    assert "DataLoader(data, num_workers=2)\nDataLoader(held_out)" in runs.path.read_text()
    assert runs.path.stat().st_mode & 0o777 == 0o750
    assert [each.name for each in runs.path.parent.iterdir()] == ["train.py"]


def test_results_are_json_without_infinity(tmp_path, monkeypatch):
    """One measurement gives no interval, and a loss may be no number: neither is JSON, nor a text to read."""
    from saturate import __main__, tuning

    found = tuning.Tuning("", gain=tuning.Gain(0.52, 0.0, float("inf")), loss_before=1.0, loss_after=float("nan"))
    monkeypatch.setattr(tuning, "tune", lambda *_, **__: found)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    (tmp_path / "train.py").write_text("")
    monkeypatch.setattr("sys.argv", ["saturate", "tune", "--json", str(tmp_path / "x.json"),
                                     str(tmp_path / "train.py")])
    assert __main__.main() == 0
    written = json.loads((tmp_path / "x.json").read_text(), parse_constant=pytest.fail)
    assert written["gain"] == {"ratio": 0.52, "low": 0.0, "high": None} and written["loss_after"] is None
    assert "0.52 times as fast (too few measurements)" in str(found)


def test_a_result_that_cannot_be_written_is_printed(tmp_path, monkeypatch, capsys):
    from saturate import __main__, tuning

    folder, script = tmp_path / "results", tmp_path / "train.py"
    folder.mkdir()
    script.write_text("")
    monkeypatch.setattr(tuning, "tune", lambda *_, **__: shutil.rmtree(folder) or tuning.Tuning(""))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["saturate", "tune", "--json", str(folder / "x.json"), str(script)])
    assert __main__.main() == 2
    out, errors = capsys.readouterr()
    assert "no change of the script's text pays" in out and "the result cannot be written" in errors


@pytest.mark.parametrize("rank", [0, 1])
def test_one_of_several_processes_says_the_result(tmp_path, monkeypatch, capsys, rank):
    from saturate import __main__, measuring

    for name, value in (("RANK", rank), ("WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    (tmp_path / "train.py").write_text("")
    monkeypatch.setattr(measuring, "measure_script", lambda *_: {"rate": 1.0, "loss": None})
    monkeypatch.setattr("sys.argv", ["saturate", "measure", "--json", str(tmp_path / "x.json"),
                                     str(tmp_path / "train.py")])
    assert __main__.main() == 0
    assert (tmp_path / "x.json").exists() == bool(capsys.readouterr().out) == (rank == 0)
    with pytest.raises(saturate.Error, match="one of 2"):
        saturate.tune(tmp_path / "train.py")


def test_an_output_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "train.py").write_text("import saturate.measuring\n"
                                       "saturate.measuring.measure_script = lambda *_: {'rate': 1.0, 'loss': None}\n"
                                       "from saturate.__main__ import main\nimport sys\nsys.exit(main())\n")
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, tmp_path / "train.py", "measure", tmp_path / "train.py"], stdout=full,
                              stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr.startswith("saturate: error: the output cannot be written: [Errno 28]")


def test_a_world_size_without_a_rank_is_one_process(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "train.py").write_text("")
    with pytest.raises(saturate.Error, match="loop was not found"):  # it was looked for
        saturate.tune(tmp_path / "train.py")


def test_a_tune_that_is_ended_ends_the_script(tmp_path):
    pytest.importorskip("torch")
    script, pid = tmp_path / "train.py", tmp_path / "pid"
    (tmp_path / "temporary").mkdir()
    script.write_text(f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(300)")
    tune = subprocess.Popen([sys.executable, "-m", "saturate", "tune", script], stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "TMPDIR": str(tmp_path / "temporary")})
    latest = time.monotonic() + 100
    while time.monotonic() < latest and not (pid.exists() and pid.read_text()):
        time.sleep(0.1)
    tune.terminate()
    errors = tune.communicate(timeout=100)[1]
    assert tune.returncode == 143 and f"saturate: diagnose runs {script}" in errors, errors
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert not list((tmp_path / "temporary").glob("saturate-*"))


SLEEPING = """import time
import torch


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.ones(4)


torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=0)
for _ in range(100):
    for batch in loader:
        loss = (model(batch) - 9).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.015)
"""


def test_tune_measures_and_writes_a_script(tmp_path):
    """All of it, by its command. Samples and steps sleep, so that cores do not matter."""
    pytest.importorskip("torch")
    script, answer = tmp_path / "train.py", tmp_path / "answer.json"
    script.write_text(SLEEPING)
    done = subprocess.run([sys.executable, "-m", "saturate", "tune", "--seconds", "4", "--write", "--json", answer,
                           script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "written" in done.stdout, done.stdout + done.stderr
    found = json.loads(answer.read_text())
    assert found["is_written"] and "data-loading" in found["changes"] and found["gain"]["ratio"] > 1.3, found
    assert found["loss_before"] == pytest.approx(found["loss_after"]) and found["loss_before"] > 0
    before, after = SLEEPING.splitlines(), script.read_text().splitlines()
    (old, new), = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
    assert "num_workers=0" in old and "DataLoader(Data(), batch_size=2, num_workers=" in new and "=0" not in new


@pytest.mark.parametrize("loss, rate, reason", [(1.2, 30.0, "learns worse"), (float("nan"), 30.0, "learns worse"),
                                                (1.0, 10.1, "not faster")])
def test_tune_keeps_no_change_that_does_not_pay(runs, loss, rate, reason):
    runs.loss, runs.rate = loss, rate
    found = saturate.tune(runs.path, write=True)
    assert not found.is_kept and reason in str(found) and runs.path.read_text() == TEXT


def test_tune_says_that_no_loss_was_compared(runs):
    runs.loss = None
    found = saturate.tune(runs.path)
    assert found.is_kept and "losses are not compared" in str(found)


def test_a_script_that_cannot_be_written_is_shown_as_a_diff(runs, monkeypatch):
    """Its new text is made beside it, not beside a link to it, which may be on another disk."""
    def failing(source, _):
        assert os.path.dirname(source) == str(runs.path.parent)
        raise OSError(errno.ENOSPC, "No space left on device")

    (runs.path.parent / "links").mkdir()
    link = runs.path.parent / "links/train.py"
    link.symlink_to(runs.path)
    monkeypatch.setattr("os.replace", failing)
    found = saturate.tune(link, write=True)
    assert found.is_kept and not found.is_written and "+DataLoader(data, num_workers=2)" in found.diff
    assert "nothing is written: " in str(found) and runs.path.read_text() == TEXT
    assert sorted(each.name for each in runs.path.parent.iterdir()) == ["links", "train.py"]
    runs.commands.clear()
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(saturate.Error, match="folder cannot be written"):
        saturate.tune(runs.path, write=True)
    assert not runs.commands


def test_tune_leaves_a_change_that_does_not_run_to_the_user(runs):
    runs.refused = "num_workers"
    found = saturate.tune(runs.path, write=True)
    assert found.diff == "" and [each["name"] for each in found.by_hand] == ["print-in-loop", "data-loading"]
    assert runs.path.read_text() == TEXT


def test_tune_says_what_it_had_no_time_to_measure(runs):
    late = {"name": "workers-too-few", "why": "there was no time: give 60 seconds or more"}
    runs.causes, runs.rest = [], {"verdict": "undecided", "skipped": [late, {"name": "tf32", "why": "there is no GPU"}]}
    found = saturate.tune(runs.path)
    assert found.not_measured == [late] and found.verdict == "undecided" and not found.diff
    assert str(found).startswith("too little was measured to change the script\n\nnot measured: workers-too-few: there")
    runs.causes, runs.rest = [BY_HAND], {"verdict": "cause", "skipped": []}
    assert str(saturate.tune(runs.path)).startswith("no change pays that tune can make in the script's text\n\nby hand:")
    runs.causes, runs.rest = [], {"verdict": "healthy", "skipped": []}
    assert str(saturate.tune(runs.path)) == "no change of the script's text pays"


def test_tune_does_not_overwrite_what_was_saved_meanwhile(runs, monkeypatch):
    run = runs.run

    def saving(command, text, *options):
        runs.path.write_text("# new\n" + TEXT)
        return run(command, text, *options)

    monkeypatch.setattr(runs, "run", saving)
    found = saturate.tune(runs.path, write=True)
    assert found.is_kept and not found.is_written and "changed meanwhile" in str(found)
    assert runs.path.read_text() == "# new\n" + TEXT


def test_a_script_that_ends_before_it_is_measured(runs):
    runs.ended = "num_workers"  # it is too fast then, but the change is measured
    assert saturate.tune(runs.path).changes == ["data-loading"]
    runs.ended = "DataLoader"
    with pytest.raises(saturate.Error, match="ended before its loop was measured .*train.py.*more epochs"):
        saturate.tune(runs.path)


@pytest.mark.parametrize("first, encoding", [("# coding: latin-1", "iso-8859-1"), ("import torch", "utf-8-sig")])
def test_tune_keeps_the_encoding_and_the_ends_of_lines(runs, first, encoding):
    text = f"{first}\r\nDataLoader(data)\r\nname = 'é'\r\n"
    runs.path.write_bytes(text.encode(encoding))
    found = saturate.tune(runs.path, write=True)
    after = text.replace("(data)", "(data, num_workers=2)").encode(encoding)
    assert found.is_written and runs.path.read_bytes() == after and " name = 'é'\r\n" in found.diff
    assert runs.encoding == encoding


def test_a_script_that_is_no_text_is_an_error(runs):
    for text in (b"# coding: nosuch\n", b"name = '\xe9'\n"):
        runs.path.write_bytes(text)
        with pytest.raises(saturate.Error, match="not valid Python text: .*train.py"):
            saturate.tune(runs.path)


def test_a_changed_script_runs_in_its_encoding(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit")
    text = """# coding: latin-1
import torch
assert "é" == chr(233)
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for values in torch.utils.data.DataLoader(torch.ones(9, 1)):
    weight.sum().backward()
    optimizer.step()
"""
    with tempfile.TemporaryDirectory() as folder:
        found = _Script(str(path), [], folder, "latin-1").run("measure", text, "--steps", "9")
    assert found["rate"] > 0


def test_a_diff_of_the_last_line(runs):
    runs.path.write_text("import torch\f\nDataLoader(data)")
    told = "\\ No newline at end of file"
    assert saturate.tune(runs.path).diff.split("\n")[3:] == [
        " import torch\f", "-DataLoader(data)", told, "+DataLoader(data, num_workers=2)", told, ""]


BENCHMARK = Edit("", {}, added="torch.backends.cudnn.benchmark = True")


@pytest.mark.parametrize("before, edit, after", [
    ("import os\nimport torch  # ü\nx = 1\n", BENCHMARK,
     "import os\nimport torch  # ü\ntorch.backends.cudnn.benchmark = True\nx = 1\n"),
    ("import os, torch\r\nx = 1\r\n", BENCHMARK,
     "import os, torch\r\ntorch.backends.cudnn.benchmark = True\r\nx = 1\r\n"),
    ("import torch\ncudnn.benchmark = False\n", BENCHMARK, None),
    ("import torch as t\nfrom torch import nn\n", BENCHMARK, None),
    ("DataLoader(d, 4)", Edit("DataLoader", {"num_workers": 2}, 1), "DataLoader(d, 4, num_workers=2)"),
    ("x = data.DataLoader(d, num_workers=args.n, pin_memory=True)", Edit("DataLoader", {"num_workers": 2}, 1),
     "x = data.DataLoader(d, num_workers=2, pin_memory=True)"),
    ("DataLoader(d, 4, True, None, None, 7)", Edit("DataLoader", {"num_workers": 2}, 1),
     "DataLoader(d, 4, True, None, None, 2)"),
    ("DataLoader(\n    d,  # ü\n    batch_size=(4),\n)", Edit("DataLoader", {"num_workers": 2}, 1),
     "DataLoader(\n    d,  # ü\n    batch_size=(4), num_workers=2,\n)"),
    ("DataLoader(d, num_workers=2, prefetch_factor=4, persistent_workers=True)", Edit("DataLoader", {"num_workers": 0}, 1),
     "DataLoader(d, num_workers=0, prefetch_factor=None, persistent_workers=False)"),
    ("'ü'; DataLoader(d); DataLoader(e)", Edit("DataLoader", {"num_workers": 2}, 1), None),
    ("DataLoader(held_out)  # the loop's is made elsewhere", Edit("DataLoader", {"num_workers": 2}), None),
    ("DataLoader(d)\nDataLoader(e)\n", Edit("DataLoader", {"num_workers": 2}, 2),
     "DataLoader(d)\nDataLoader(e, num_workers=2)\n"),
    ("DataLoader(d, **options)", Edit("DataLoader", {"num_workers": 2}, 1), None),
    ("DataLoader(*parts)", Edit("DataLoader", {"num_workers": 2}, 1), None),
    ("torch.optim.Adam(p, lr=1)", Edit("Adam", {"fused": True}), "torch.optim.Adam(p, lr=1, fused=True)"),
    ("set_detect_anomaly(True)", Edit("set_detect_anomaly", {"mode": False}), "set_detect_anomaly(False)"),
    ("torch.set_num_threads(1)", Edit("set_num_threads", {"number": 2}), "torch.set_num_threads(2)"),
    ("o.zero_grad()\no.zero_grad(set_to_none=False)", Edit("zero_grad", {"set_to_none": True}),
     "o.zero_grad()\no.zero_grad(set_to_none=True)"),
    ("o.zero_grad()", Edit("zero_grad", {"set_to_none": True}), None),
    ("print()", Edit("print", {"end": ""}), "print(end='')"),
    ("Adam(p for p in ps)", Edit("Adam", {"fused": True}), None),
    ("f(Adam(p for p in ps), lr=1)", Edit("Adam", {"fused": True}), None),
])
def test_edits(before, edit, after):
    assert edited(before, edit) == after
