"""python -m saturate diagnose and tune: scripts as they are, and patches of their text."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

import saturate
from saturate.patching import Edit, edited
from saturate.session import NAMES

SCRIPT = '''
import sys
import time
import torch
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((6,), float(index)), index % 2


def main(epochs):
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = DataLoader(Data(), batch_size=4, shuffle=True)
    held_out = DataLoader(Data(), batch_size=4)
    for epoch in range(epochs):
        for number, (images, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            if number == len(loader) - 1:
                break
        with torch.no_grad():
            seen = sum(len(labels) for _, labels in held_out)
    print("trained", epochs, seen)


if __name__ == "__main__":
    main(int(sys.argv[1]))
'''


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "saturate", *map(str, arguments)], capture_output=True, text=True)


@pytest.fixture
def script(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


class Clock:
    """Moved by the script, so that its times are known."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1e-6
        return self.now


TIMED = (SCRIPT.replace("time.sleep(0.002)", "builtins.clock.now += 0.01")
         .replace("optimizer.step()", "optimizer.step(); builtins.clock.now += 0.01")
         .replace("with torch.no_grad():", "builtins.clock.now += 100\n        with torch.no_grad():")
         .replace("import sys", "import sys\nimport builtins"))


def test_a_script_is_diagnosed_as_it_is(script, monkeypatch, capsys):
    """Its loop breaks off each epoch, and evaluates in between, which does not count."""
    import builtins

    from saturate.scripts import diagnose_script

    clock = Clock()
    monkeypatch.setattr(builtins, "clock", clock, raising=False)
    script.write_text(TIMED)
    before = list(sys.argv), list(sys.path), sys.modules["__main__"]
    found = diagnose_script(str(script), ["100000"], seconds=1e5, only=["data-loading", "fused-optimizer"], clock=clock)
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before
    assert [cause.name for cause in found.causes] == ["data-loading"] and found.rate == pytest.approx(20, rel=0.01)
    assert found.causes[0].gain == pytest.approx(5, rel=0.01)
    edit = found.causes[0].remedy.edit
    assert edit.call == "DataLoader" and "batch_size=4, shuffle=True" in TIMED.splitlines()[edit.line - 1]
    assert "trained" not in capsys.readouterr().out and script.read_text() == TIMED


def test_a_script_runs_as_python_runs_it(tmp_path, monkeypatch, capsys):
    from saturate.scripts import run_script

    (tmp_path / "train.py").write_text("def f(x: int): pass\nprint(f.__annotations__['x'] is int, __file__)")
    monkeypatch.chdir(tmp_path)
    run_script("train.py", [])
    assert capsys.readouterr().out.split() == ["True", str(tmp_path / "train.py")]


def test_a_script_that_counts_gets_epochs_of_their_length(script, tmp_path):
    script.write_text(SCRIPT.replace("            if number == len(loader) - 1:\n                break\n",
                                     "            rest = 1 // (len(loader) - number)\n"))
    answer = tmp_path / "answer.json"
    done = run("diagnose", "--seconds", 3, "--only", "set-to-none", "--json", answer, script, 1000)
    assert done.returncode == 0, done.stderr
    assert json.loads(answer.read_text())["rate"] > 0


def test_a_script_that_begins_an_iteration_for_each_step(script, monkeypatch):
    import builtins

    from saturate.scripts import diagnose_script

    clock = Clock()
    monkeypatch.setattr(builtins, "clock", clock, raising=False)
    script.write_text(TIMED.replace("in enumerate(loader):", "in [(0, next(iter(loader)))]:").replace("+= 100", "+= 0")
                      .replace("in held_out", "in ()"))
    found = diagnose_script(str(script), ["9999"], seconds=1e4, only=["data-loading"], clock=clock)
    assert found.causes[0].gain == pytest.approx(5, rel=0.01)


def test_a_loader_for_evaluation_after_each_step_is_not_that_of_the_loop(script, monkeypatch):
    import builtins

    from saturate.scripts import diagnose_script

    clock = Clock()
    monkeypatch.setattr(builtins, "clock", clock, raising=False)
    script.write_text(TIMED.replace("DataLoader(Data(), batch_size=4)", "DataLoader(range(40))")
                      .replace("for _, labels in held_out", "for labels in held_out")
                      .replace("optimizer.step();", "optimizer.step(); list(held_out);"))
    found = diagnose_script(str(script), ["99999"], seconds=1e4, only=["data-loading"], clock=clock)
    assert found.rate == pytest.approx(20, rel=0.01) and found.causes[0].gain == pytest.approx(5, rel=0.01)


@pytest.mark.parametrize("failure, text", [("raise ValueError('no fused steps')", "no fused steps"),
                                           ("sys.exit(3)", "exit code 3")])
def test_a_script_that_fails_with_a_change_keeps_what_was_measured(script, monkeypatch, failure, text):
    import builtins

    from saturate.scripts import diagnose_script

    clock = Clock()
    monkeypatch.setattr(builtins, "clock", clock, raising=False)
    indent = "\n" + 12 * " "
    fails = f"optimizer.step(){indent}if optimizer.param_groups[0]['fused']: {failure}{indent[:-1]}"
    script.write_text(TIMED.replace("optimizer.step();", fails).replace("range(epochs)", "range(100000)")
                      .replace("clock.now += 0.01\n        return", "clock.now += 0\n        return"))
    found = diagnose_script(str(script), ["9"], seconds=1e5, only=["batch-size", "fused-optimizer"], clock=clock)
    assert [cause.name for cause in found.causes] == ["batch-size"]
    assert dict(found.skipped) == {"fused-optimizer": f"the script failed with it: {text}"}
    script.write_text(TIMED.replace("optimizer.step();", f"optimizer.step(); {failure};"))
    with pytest.raises((ValueError, SystemExit)):  # without a change
        diagnose_script(str(script), ["9"], seconds=1e5, clock=clock)


def test_a_script_that_profiles_itself_is_diagnosed(script):
    script.write_text(SCRIPT.replace("    for epoch in", "    profiler = torch.profiler.profile()\n    profiler.start()\n"
                                     "    for epoch in").replace("    print(", "    profiler.stop()\n    print("))
    done = run("diagnose", "--seconds", 2, "--only", "set-to-none", script, 1000)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments, named", [
    (("--only", "nosuch"), "'nosuch'"), (("--skip", "compile,batch-siz"), "'batch-siz'"),
    (("--json", "/no/such/folder/x.json"), "/no/such/folder/x.json"), (("--json", "."), "(.)")])
def test_what_cannot_be_done_is_said_before_the_script_runs(script, arguments, named):
    done = run("diagnose", *arguments, script, 1)
    assert done.returncode == 2 and named in done.stderr and "trained" not in done.stdout
    assert len(done.stderr.splitlines()) == 1


def test_the_documentation_has_every_cause():
    page = pathlib.Path(__file__).parents[2] / "docs/diagnose_python.md"
    rows = [line.split("|")[1] for line in page.read_text().splitlines() if line.startswith("| `")]
    assert sorted({name for row in rows for name in re.findall("`([^`]+)`", row)}) == sorted(NAMES)


def test_the_command_writes_json(script, tmp_path):
    result = run("diagnose", "--seconds", 2, "--only", "data-loading", "--json", tmp_path / "found.json", script, 1000)
    assert result.returncode == 0, result.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["unit"] == "steps/s" and found["rate"] > 0 and found["not_found"] == []
    assert found["verdict"] in result.stdout and "trained" not in result.stdout
    result = run("measure", "--steps", 8, "--json", tmp_path / "found.json", script, 1000)
    assert result.returncode == 0, result.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["rate"] > 0 and 0 < found["loss"] < 100


@pytest.mark.parametrize("text, missing", [
    ("print(1 + 1)", "DataLoader"),
    ("import torch\nfor each in torch.utils.data.DataLoader(list(range(9))):\n    print(each.item())\nprint(1 + 1)",
     "optimizer"),
])
def test_a_script_without_a_loop_runs_untouched_and_gets_one_line(script, tmp_path, text, missing):
    script.write_text(text)
    result = run("diagnose", "--json", tmp_path / "found.json", script)
    assert result.returncode == 0 and result.stdout.splitlines()[-1] == "2"
    line, = [each for each in result.stderr.splitlines() if each.startswith("saturate:")]
    assert "not found" in line and missing in line
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["verdict"] == "undecided" and any(missing in each for each in found["not_found"])


def test_a_script_that_ends_early_is_undecided(script, tmp_path):
    result = run("diagnose", "--seconds", 60, "--json", tmp_path / "found.json", script, 1)
    assert result.returncode == 0, result.stderr
    assert "trained 1 40" in result.stdout
    assert json.loads((tmp_path / "found.json").read_text())["verdict"] == "undecided"


@pytest.mark.parametrize("steps, measured", [(2, False), (30, True)])
def test_ctrl_c_keeps_what_was_measured(script, tmp_path, steps, measured):
    path = tmp_path / "interrupted.py"
    path.write_text(SCRIPT.replace("            optimizer.step()\n", f"""            optimizer.step()
            main.steps = getattr(main, "steps", 0) + 1
            if main.steps == {steps}:
                raise KeyboardInterrupt
"""))
    done = run("diagnose", path, 1000)
    if measured:
        assert done.returncode == 0 and "it was interrupted" in done.stdout and "undecided" in done.stdout
    else:
        assert done.returncode == 130 and done.stderr.endswith("saturate: interrupted\n")
    assert "Traceback" not in done.stderr


def test_errors(script, tmp_path):
    result = run("diagnose", tmp_path / "none.py")
    assert result.returncode == 2 and result.stderr.startswith("saturate: error: there is no such script")
    assert run("diagnose", "--seconds", 0, script).returncode == 2
    result = run("diagnose", script)  # the script's own error
    assert result.returncode == 1 and "IndexError" in result.stderr


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
        loss, rate, refused = 1.0, 30.0, ""

        def run(self, command, text, *options):
            commands.append((command, *options))
            has_workers = "num_workers" in text
            if self.refused and self.refused in text:
                raise saturate.Error("the script failed")
            if command == "diagnose":
                return {"not_found": [], "rate": 10.0, "causes": [BY_HAND] if has_workers else [BY_HAND, WORKERS]}
            return {"rate": self.rate if has_workers else 10.0, "loss": self.loss if has_workers else 1.0}

    made = Runs()
    made.commands, made.path = commands, tmp_path / "train.py"
    made.path.write_text(TEXT)
    monkeypatch.setattr(tuning, "_Script", lambda *_: made)
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


@pytest.mark.parametrize("loss, rate, reason", [(1.2, 30.0, "learns worse"), (float("nan"), 30.0, "learns worse"),
                                                (1.0, 10.1, "not faster")])
def test_tune_keeps_no_change_that_does_not_pay(runs, loss, rate, reason):
    runs.loss, runs.rate = loss, rate
    found = saturate.tune(runs.path, write=True)
    assert not found.is_kept and reason in str(found) and runs.path.read_text() == TEXT


def test_tune_leaves_a_change_that_does_not_run_to_the_user(runs):
    runs.refused = "num_workers"
    found = saturate.tune(runs.path, write=True)
    assert found.diff == "" and [each["name"] for each in found.by_hand] == ["print-in-loop", "data-loading"]
    assert runs.path.read_text() == TEXT


def test_tune_does_not_overwrite_what_was_saved_meanwhile(runs, monkeypatch):
    run = runs.run

    def saving(command, text, *options):
        runs.path.write_text("# new\n" + TEXT)
        return run(command, text, *options)

    monkeypatch.setattr(runs, "run", saving)
    found = saturate.tune(runs.path, write=True)
    assert found.is_kept and not found.is_written and "changed meanwhile" in str(found)
    assert runs.path.read_text() == "# new\n" + TEXT


@pytest.mark.parametrize("before, edit, after", [
    ("DataLoader(d, 4)", Edit("DataLoader", {"num_workers": 2}), "DataLoader(d, 4, num_workers=2)"),
    ("x = data.DataLoader(d, num_workers=args.n, pin_memory=True)", Edit("DataLoader", {"num_workers": 2}),
     "x = data.DataLoader(d, num_workers=2, pin_memory=True)"),
    ("DataLoader(d, 4, True, None, None, 7)", Edit("DataLoader", {"num_workers": 2}),
     "DataLoader(d, 4, True, None, None, 2)"),
    ("DataLoader(\n    d,  # ü\n    batch_size=(4),\n)", Edit("DataLoader", {"num_workers": 2}),
     "DataLoader(\n    d,  # ü\n    batch_size=(4), num_workers=2,\n)"),
    ("DataLoader(d, num_workers=2, prefetch_factor=4, persistent_workers=True)", Edit("DataLoader", {"num_workers": 0}),
     "DataLoader(d, num_workers=0, prefetch_factor=None, persistent_workers=False)"),
    ("'ü'; DataLoader(d); DataLoader(e)", Edit("DataLoader", {"num_workers": 2}), None),
    ("DataLoader(d)\nDataLoader(e)\n", Edit("DataLoader", {"num_workers": 2}, 2),
     "DataLoader(d)\nDataLoader(e, num_workers=2)\n"),
    ("DataLoader(d, **options)", Edit("DataLoader", {"num_workers": 2}), None),
    ("DataLoader(*parts)", Edit("DataLoader", {"num_workers": 2}), None),
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
