"""Scripts that start processes, exit, cycle or zip their loaders, and modules in place of scripts."""

import json

import pytest

torch = pytest.importorskip("torch")

import saturate  # noqa: E402
from saturate.observing import Observation  # noqa: E402
from saturate.step_what_ifs import step_what_ifs  # noqa: E402
from test_diagnose_script import SCRIPT, TIMED, run, script, timed  # noqa: E402,F401
from timed_loop import Data, Loop  # noqa: E402

CALL = "    main(int(sys.argv[1]))\n"
FOLD = """    import multiprocessing

    fold = multiprocessing.get_context("fork").Process(target=main, args=[int(sys.argv[1])])
    fold.start()
    fold.join()
    print("exit code", fold.exitcode)
"""


def test_a_process_that_the_script_forks_is_not_measured(script):  # noqa: F811
    script.write_text(SCRIPT.replace(CALL, FOLD).replace("sleep(0.002)", "sleep(0.0001)"))
    done = run("diagnose", "--seconds", 0.5, "--only", "set-to-none", script, 200)
    assert "trained 200 40" in done.stdout and "exit code 0" in done.stdout, done.stderr
    assert "others that the script starts are not measured" in done.stderr and "Finished" not in done.stderr


@pytest.mark.parametrize("name, file", [("pkg.train", "train.py"), ("pkg", "__main__.py")])
def test_a_module_runs_as_python_runs_it(script, tmp_path, monkeypatch, name, file):  # noqa: F811
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").write_text("VALUE = 3\n")
    (tmp_path / "pkg" / file).write_text(
        "import sys\nfrom . import VALUE\nassert VALUE == 3 and __spec__.parent == __package__ == 'pkg'\n"
        f"assert sys.argv == [__file__, '1000'] and __name__ == '__main__'\n{SCRIPT}")
    monkeypatch.chdir(tmp_path)
    done = run("diagnose", "--seconds", 2, "--only", "set-to-none", "--json", "found.json", "-m", name, 1000)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "found.json").read_text())["rate"] > 0
    done = run("diagnose", "-m", "pkg.none", 1000)
    assert done.returncode == 2 and "there is no such module (pkg.none)" in done.stderr


ENDING = """            if number == len(loader) - 1:
                break
"""
EPOCHS = """class Epochs:
    def __init__(self, loader):
        self.batches, self.marks = iter(loader), [0] * len(loader)

    def __iter__(self):
        for number, batch in enumerate(self.batches):
            self.marks[number] += 1
            yield batch


def main("""


def test_an_iterator_that_a_trainer_makes_in_its_init_ends(script, monkeypatch):  # noqa: F811
    text = TIMED.replace("def main(", EPOCHS).replace("enumerate(loader)", "enumerate(Epochs(loader))")
    found = timed(monkeypatch, script, text.replace(ENDING, ""), only=["set-to-none"])
    assert found.rate == pytest.approx(20, rel=0.01)


def test_a_cycle_of_a_loader_keeps_no_batches(script, monkeypatch, capsys):  # noqa: F811
    live = ("optimizer.step(); main.live = getattr(main, 'live', {}); main.live[id(images)] = weakref.ref(images); "
            "assert sum(each() is not None for each in main.live.values()) < 20;")
    text = TIMED.replace("import sys", "import itertools\nimport weakref\nimport sys", 1).replace(ENDING, "")
    text = text.replace("enumerate(loader)", "enumerate(itertools.cycle(loader))").replace("optimizer.step();", live)
    assert timed(monkeypatch, script, text, only=["set-to-none"]).rate == pytest.approx(20, rel=0.01)
    assert capsys.readouterr().err.count("itertools.cycle keeps all batches") == 1


def test_a_loader_that_is_asked_together_with_the_loops_is_told(script, monkeypatch, capsys):  # noqa: F811
    text = TIMED.replace("(images, labels) in enumerate(loader)",
                         "(_, (images, labels)) in enumerate(zip(DataLoader(Data(), batch_size=4), loader))")
    assert text != TIMED and timed(monkeypatch, script, text, only=["set-to-none"]).rate > 0
    assert capsys.readouterr().err.count("another loader") == 1


def test_a_loop_that_accumulates_gradients_has_no_other_loader(script, monkeypatch, capsys):  # noqa: F811
    text = TIMED.replace("optimizer.step();", "number % 2 and optimizer.step();")
    assert text != TIMED and timed(monkeypatch, script, text, only=["set-to-none"]).rate > 0
    assert "another loader" not in capsys.readouterr().err


def test_a_script_that_exits_without_a_change_keeps_what_was_measured(script, monkeypatch):  # noqa: F811
    """As by a signal's handler."""
    indent = "\n" + 12 * " "
    exits = (f"optimizer.step();{indent}main.was = images.is_shared() or getattr(main, 'was', False){indent}"
             f"if main.was and not images.is_shared(): sys.exit(1){indent[:-1]}")  # after a turn with workers
    found = timed(monkeypatch, script, TIMED.replace("optimizer.step();", exits), only=["data-loading", "batch-size"])
    assert found.rate == pytest.approx(20, rel=0.01)
    assert dict(found.skipped)["batch-size"] == "there was no time: the script exited: exit code 1"


class Exiting(Data):
    is_due = False

    def __getitem__(self, index):
        if self.is_due:
            raise SystemExit(0)
        return super().__getitem__(index)


def test_an_exit_while_a_change_loads_is_no_failure_of_it():
    """As by a signal's handler."""
    loop = Loop()
    loop.loader, step = torch.utils.data.DataLoader(Exiting(loop.clock, 1e-4), batch_size=8), loop.step

    def changed(batch):
        loop.loader.dataset.is_due = len(batch[1]) == 16
        step(batch)

    loop.step = changed
    with pytest.raises(SystemExit):
        loop.diagnose(only=["batch-size"])


async def waiting(_):
    pass


def yielding(batch):
    yield batch


@pytest.mark.parametrize("step", [waiting, yielding])
def test_a_step_that_a_call_does_not_make_is_refused(step):
    with pytest.raises(TypeError, match="makes no step"):
        saturate.diagnose(step, torch.utils.data.DataLoader([1, 2]))


@pytest.mark.parametrize("make", [lambda: torch.zeros(2), lambda: torch.nn.Linear(1, 1)])
def test_what_a_module_calls_sparse_may_be_anything(make):
    model = torch.nn.Linear(2, 1)
    model.sparse = make()
    seen = Observation(torch, model, torch.optim.SGD(model.parameters(), lr=0.1))
    fused, = [each for each in step_what_ifs(seen, False, 60) if each.name == "fused-optimizer"]
    assert not fused.skipped
