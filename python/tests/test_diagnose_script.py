"""python -m saturate diagnose: scripts as they are."""

import json
import subprocess
import sys

import pytest

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
    return subprocess.run([sys.executable, "-m", "saturate", *map(str, arguments)], capture_output=True, text=True,
                          timeout=300)


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


def timed(monkeypatch, script, text, epochs=9999, seconds=1e4, **named):
    """The diagnosis of a script whose clock is its own."""
    import builtins

    from saturate.scripts import diagnose_script

    clock = Clock()
    monkeypatch.setattr(builtins, "clock", clock, raising=False)
    script.write_text(text)
    return diagnose_script(str(script), [str(epochs)], seconds=seconds, clock=clock, **named)


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

    (tmp_path / "train.py").write_text("import inspect, os\ndef f(x: int): pass\nos.chdir('/')\n"
                                       "print(f.__annotations__['x'] is int, __file__, inspect.getsource(f))")
    monkeypatch.chdir(tmp_path)
    run_script("train.py", [])
    assert capsys.readouterr().out.split() == ["True", str(tmp_path / "train.py"), "def", "f(x:", "int):", "pass"]


def test_a_script_that_counts_gets_epochs_of_their_length(script, tmp_path):
    script.write_text(SCRIPT.replace("            if number == len(loader) - 1:\n                break\n",
                                     "            rest = 1 // (len(loader) - number)\n"))
    answer = tmp_path / "answer.json"
    done = run("diagnose", "--seconds", 3, "--only", "set-to-none", "--json", answer, script, 1000)
    assert done.returncode == 0, done.stderr
    assert json.loads(answer.read_text())["rate"] > 0


def test_a_script_may_ask_its_iteration_for_the_length(script, monkeypatch):
    """Also once its loop is known."""
    text = TIMED.replace("in enumerate(loader):", "in (lambda it: ((i, next(it)) for i in range(len(it))))(iter(loader)):")
    assert timed(monkeypatch, script, text, only=["data-loading"]).rate == pytest.approx(20, rel=0.01)


def test_a_script_that_begins_an_iteration_for_each_step(script, monkeypatch):
    text = (TIMED.replace("in enumerate(loader):", "in [(0, next(iter(loader)))]:").replace("+= 100", "+= 0")
            .replace("in held_out", "in ()"))
    found = timed(monkeypatch, script, text, only=["data-loading"])
    assert found.causes[0].gain == pytest.approx(5, rel=0.01)


def test_a_loader_for_evaluation_after_each_step_is_not_that_of_the_loop(script, monkeypatch):
    text = (TIMED.replace("DataLoader(Data(), batch_size=4)", "DataLoader(range(40))")
            .replace("for _, labels in held_out", "for labels in held_out")
            .replace("optimizer.step();", "optimizer.step(); list(held_out);"))
    found = timed(monkeypatch, script, text, 99999, only=["data-loading"])
    assert found.rate == pytest.approx(20, rel=0.01) and found.causes[0].gain == pytest.approx(5, rel=0.01)


def test_a_script_that_tries_whether_its_loader_has_a_length(script, monkeypatch):
    text = (TIMED.replace("Dataset", "IterableDataset").replace(", shuffle=True", "")
            .replace("    def __len__(self):\n        return 40\n\n", "    def __iter__(self):\n"
                     "        return map(self.at, range(40))\n\n").replace("def __getitem__", "def at")
            .replace("if number == len(loader) - 1:\n                break", "try:\n                len(loader)\n"
                     "            except TypeError:\n                pass"))
    found = timed(monkeypatch, script, text, only=["set-to-none"])
    assert found.rate == pytest.approx(20, rel=0.01)


TENSORBOARD = """
    from torch.utils.tensorboard import SummaryWriter
    writer = SummaryWriter(sys.argv[0] + ".tb")
    opened = writer._get_file_writer
    writer._get_file_writer = lambda: (slow(), opened())[1]
    log = lambda: writer.add_scalar("loss", 1.0, 1)
"""
LOGGING = """
    import logging
    logger = logging.getLogger("train")
    logger.addHandler(logging.Handler())
    logger.handlers[0].emit = lambda record: slow()
    log = lambda: logger.warning("loss")
"""


@pytest.mark.parametrize("opened", [TENSORBOARD, LOGGING], ids=["tensorboard", "logging"])
def test_a_script_that_logs(script, monkeypatch, opened):
    """TensorBoard is imported after the search for the loop has begun."""
    if opened is TENSORBOARD:
        pytest.importorskip("tensorboard")
        for name in [each for each in sys.modules if each.startswith("torch.utils.tensorboard")]:
            monkeypatch.delitem(sys.modules, name)
    slow = "    def slow():\n        builtins.clock.now += 0.05\n"
    text = (TIMED.replace("    torch.manual_seed(0)\n", slow + opened)
            .replace("optimizer.step();", "optimizer.step(); log();"))
    found = timed(monkeypatch, script, text, only=["logging"])
    assert [cause.name for cause in found.causes] == ["logging"]
    assert found.causes[0].gain == pytest.approx(2, rel=0.01)


def test_a_script_that_makes_a_loader_for_each_epoch(script, monkeypatch, capsys):
    begin, loader = "    for epoch in range(epochs):\n", "    loader = DataLoader(Data(), batch_size=4, shuffle=True)\n"
    text = TIMED.replace(loader, "").replace(begin, f"{begin}    {loader}")
    found = timed(monkeypatch, script, text, 1000, seconds=1e5, only=["data-loading"])
    assert found.rate == pytest.approx(20, rel=0.01) and found.causes[0].gain == pytest.approx(5, rel=0.01)
    assert "another loader" not in capsys.readouterr().err


def test_a_script_with_a_second_loop_is_told_that_it_is_not_measured(script, monkeypatch, capsys):
    text = TIMED.replace("    seen = sum(len(labels) for _, labels in held_out)", "    seen = 0\n"
                         "        for images, labels in held_out:\n            model(images).sum().backward()\n"
                         "            optimizer.step()")
    found = timed(monkeypatch, script, text, only=["set-to-none"])
    assert found.rate == pytest.approx(20, rel=0.01) and capsys.readouterr().err.count("another loader") == 1


AHEAD = """
def ahead(batches):
    import queue, threading

    found = queue.Queue(2)
    threading.Thread(target=lambda: [found.put(each) for each in [*batches, None]], daemon=True).start()
    return iter(found.get, None)


def main("""


@pytest.mark.parametrize("ahead", ["ahead(iter(loader))", "ahead(loader)"])
def test_a_loader_that_another_thread_iterates_is_not_found(script, ahead):
    """Nor is the one for the evaluation, although an optimizer makes steps between its batches."""
    script.write_text(SCRIPT.replace("\ndef main(", AHEAD).replace("enumerate(loader)", f"enumerate({ahead})"))
    done = run("diagnose", "--seconds", 2, "--only", "set-to-none", script, 4)
    assert done.returncode == 0 and "trained 4 40" in done.stdout, done.stderr
    assert "not found: a loop over a loader" in done.stderr.replace("Not", "not")


@pytest.mark.parametrize("when", ["main.was", "main.was and not optimizer.param_groups[0]['fused']"])
@pytest.mark.parametrize("failure, text", [("raise ValueError('no fused steps')", "no fused steps"),
                                           ("sys.exit(3)", "exit code 3")])
def test_a_script_that_fails_with_a_change_keeps_what_was_measured(script, monkeypatch, failure, text, when):
    """Also if it fails just afterwards, with what the change left."""
    import builtins

    from saturate.scripts import diagnose_script

    clock = Clock()
    monkeypatch.setattr(builtins, "clock", clock, raising=False)
    monkeypatch.setattr("saturate.observing.Observation.optimizer_s", None)  # it is real time
    indent = "\n" + 12 * " "
    fails = (f"optimizer.step(){indent}main.was = optimizer.param_groups[0]['fused'] or getattr(main, 'was', False)"
             f"{indent}if {when}: {failure}{indent[:-1]}")
    script.write_text(TIMED.replace("optimizer.step();", fails).replace("range(epochs)", "range(100000)"))
    found = diagnose_script(str(script), ["9"], seconds=1e5, only=["data-loading", "fused-optimizer"], clock=clock)
    assert [cause.name for cause in found.causes] == ["data-loading"]
    assert dict(found.skipped) == {"fused-optimizer": f"the script failed with it: {text}"}
    script.write_text(TIMED.replace("optimizer.step();", f"optimizer.step(); {failure};"))
    with pytest.raises((ValueError, SystemExit)):  # without a change
        diagnose_script(str(script), ["9"], seconds=1e5, clock=clock)


PROFILED = SCRIPT.replace("    for epoch in", "    profiler = torch.profiler.profile()\n    profiler.start()\n"
                          "    for epoch in").replace("    print(", "    profiler.stop()\n    print(")
EXITING = SCRIPT.replace("    main(int(sys.argv[1]))", "    try:\n        main(int(sys.argv[1]))\n"
                         "    except BaseException:\n        sys.exit(1)")


@pytest.mark.parametrize("text", [PROFILED, EXITING])
def test_a_script_that_profiles_itself_or_exits_at_its_end_is_diagnosed(script, text):
    script.write_text(text)
    done = run("diagnose", "--seconds", 2, "--only", "set-to-none", script, 1000)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments, named", [
    (("--only", "nosuch"), "'nosuch'"), (("--skip", "compile,batch-siz"), "'batch-siz'"),
    (("--json", "/no/such/folder/x.json"), "/no/such/folder/x.json"), (("--json", "."), "(.)")])
def test_what_cannot_be_done_is_said_before_the_script_runs(script, arguments, named):
    done = run("diagnose", *arguments, script, 1)
    assert done.returncode == 2 and named in done.stderr and "trained" not in done.stdout
    assert len(done.stderr.splitlines()) == 1


def test_the_command_writes_json(script, tmp_path, monkeypatch):
    """Also if the script changes the folder."""
    monkeypatch.chdir(tmp_path)
    script.write_text(script.read_text().replace("    main(int", "    __import__('os').chdir('/')\n    main(int"))
    result = run("diagnose", "--seconds", 2, "--only", "data-loading", "--json", "found.json", script, 1000)
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


PLAIN = SCRIPT.replace("            if number == len(loader) - 1:\n                break\n", "").replace(
    '"trained", epochs, seen', "[each.tolist() for each in model.parameters()], loss.item()")
LOADER, MAIN = "DataLoader(Data(), batch_size=4, shuffle=True)", "def main("
GROUP = """    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
"""
UNREADABLE = """class Sampler:
    def __iter__(self):
        return iter(range(20))

    def state_dict(self):
        raise RuntimeError("no state")

    def load_state_dict(self, state):
        pass


def main("""
ONCE = """class Once(torch.utils.data.IterableDataset):
    batches = iter([(torch.full((6,), float(index)), 1) for index in range(40)])

    def __iter__(self):
        return self.batches


def main("""


@pytest.mark.parametrize("old, new, loader, reason", [
    ("    model =", GROUP + "    model =", LOADER, "no DistributedDataParallel module"),
    (MAIN, MAIN, "DataLoader(Data(), batch_sampler=iter([[each, 2] for each in range(9)]))", "sampler is an iterator"),
    (MAIN, UNREADABLE, "DataLoader(Data(), sampler=Sampler())", "no state"),
    (MAIN, ONCE, "DataLoader(Once(), batch_size=1)", "no batch"),
])
def test_a_script_that_cannot_be_measured_goes_on_as_it_is(script, tmp_path, old, new, loader, reason):
    """Whatever fails before the first batch of the measurement."""
    script.write_text(PLAIN.replace(old, new).replace(LOADER, loader))
    alone = subprocess.run([sys.executable, script, "1"], capture_output=True, text=True, timeout=300)
    assert alone.returncode == 0, alone.stderr
    done = run("diagnose", "--seconds", 2, "--json", tmp_path / "found.json", script, 1)
    line, = [each for each in done.stderr.splitlines() if each.startswith("saturate:")]
    assert done.returncode == 0 and reason in line, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["verdict"] == "undecided" and reason in found["refused"]
    if reason != "no batch":  # its 40 samples are gone, however it is iterated again
        assert done.stdout == alone.stdout and "[[" in done.stdout


def test_a_script_that_ends_early_is_undecided(script, tmp_path):
    result = run("diagnose", "--seconds", 60, "--json", tmp_path / "found.json", script, 1)
    assert result.returncode == 0, result.stderr
    assert "trained 1 40" in result.stdout
    assert json.loads((tmp_path / "found.json").read_text())["verdict"] == "undecided"


@pytest.mark.parametrize("caught", ["", "sys.exit(1)", "raise ValueError"])  # Lightning exits
@pytest.mark.parametrize("steps, measured", [(2, False), (30, True)])
def test_ctrl_c_keeps_what_was_measured(script, tmp_path, steps, measured, caught):
    path = tmp_path / "interrupted.py"
    call = "    main(int(sys.argv[1]))"
    handled = f"    try:\n    {call}\n    except KeyboardInterrupt:\n        {caught}" if caught else call
    step = "            optimizer.step()\n"
    path.write_text(SCRIPT.replace(call, handled).replace(step, f"""{step}\
            main.steps = getattr(main, "steps", 0) + 1
            if main.steps == {steps}:
                raise KeyboardInterrupt
"""))
    done = run("diagnose", path, 1000)
    if measured:
        assert done.returncode == 0 and "it was interrupted" in done.stdout and "undecided" in done.stdout
    else:
        assert done.returncode == (1 if caught else 130)
        assert caught or done.stderr.endswith("saturate: interrupted\n")
    assert ("Traceback" in done.stderr) == (not measured and caught == "raise ValueError")


def test_errors(script, tmp_path):
    result = run("diagnose", tmp_path / "none.py")
    assert result.returncode == 2 and result.stderr.startswith("saturate: error: there is no such script")
    assert run("diagnose", "--seconds", 0, script).returncode == 2
    result = run("diagnose", script)  # the script's own error
    assert result.returncode == 1 and "IndexError" in result.stderr


def test_a_script_that_lists_its_batches_first_goes_on_as_it_is(script):
    script.write_text(SCRIPT.replace("in enumerate(loader)", "in enumerate(list(loader))"))
    done = run("diagnose", "--seconds", "20", script, "30")
    assert "trained 30 40" in done.stdout and "cannot be measured" in done.stderr and "as list(loader)" in done.stderr


def test_gradients_may_be_accumulated_over_an_epoch(script, monkeypatch):
    text = TIMED.replace("optimizer.step()", "if number % 10 == 9:\n                    optimizer.step()")
    assert text != TIMED
    found = timed(monkeypatch, script, text, 1000, seconds=1e5, only=["set-to-none"])
    assert not found.refused and found.rate > 0
