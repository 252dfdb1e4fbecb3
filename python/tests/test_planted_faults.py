"""The faults of bench/python_faults.py can be planted, and its table is right. Needs pytest alone."""

import pathlib
import sys
import types

import pytest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
sys.dont_write_bytecode = True

import planted_faults  # noqa: E402
import python_faults  # noqa: E402

# Lines of the scripts of others, in which faults are planted.
OTHERS = {"torchvision": """import torch
def train_one_epoch(model, data_loader):
    metric_logger = utils.MetricLogger(delimiter="  ")
    for image, target in data_loader:
        acc1, acc5 = utils.accuracy(output, target, topk=(1, 5))
""", "timm": """import torch
def train_one_epoch(loader, optimizer):
    second_order = hasattr(optimizer, 'is_second_order') and optimizer.is_second_order
    for input, target in loader:
        num_updates += 1
"""}


def test_there_are_twenty_faults_in_five_loops_and_five_in_one_on_a_gpu():
    for needs_gpu, faults, loops in ((False, 20, 5), (True, 5, 1)):
        names = {loop.name for loop in planted_faults.LOOPS if loop.needs_gpu == needs_gpu}
        found = [fault.loop for fault in planted_faults.FAULTS if fault.loop in names]
        assert len(found) == faults and len(names) == loops and set(found) == names


@pytest.mark.parametrize("fault", planted_faults.FAULTS, ids=lambda fault: f"{fault.loop}-{fault.cause}")
def test_each_fault_changes_its_script(fault, tmp_path):
    loop = next(loop for loop in planted_faults.LOOPS if loop.name == fault.loop)
    scripts = tmp_path / "scripts"
    if not loop.is_own:
        (scripts / loop.script).parent.mkdir(parents=True)
        (scripts / loop.script).write_text(OTHERS[loop.name])
    healthy, healthy_arguments = python_faults.planted(loop, None, scripts, tmp_path)
    faulty, arguments = python_faults.planted(loop, fault, scripts, tmp_path)
    compile(faulty.read_text(), faulty, "exec")
    same_arguments = [one.replace(f"-{fault.cause}", "-healthy") for one in arguments] == healthy_arguments
    assert (healthy.read_text() != faulty.read_text()) != (not same_arguments)  # one of the two
    assert not any("{" in part for part in arguments)


def test_a_script_of_another_version_is_an_error(tmp_path):
    loop = next(loop for loop in planted_faults.LOOPS if loop.name == "timm")
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm/train.py").write_text("pass\n")
    fault = next(fault for fault in planted_faults.FAULTS if fault.loop == "timm" and not fault.arguments)
    with pytest.raises(SystemExit, match="another version"):
        python_faults.planted(loop, fault, tmp_path, tmp_path)


@pytest.mark.parametrize("given, expected", [(None, [None, 75]), (25, [25, 25])])
def test_given_seconds_hold_for_each_diagnosis(given, expected, monkeypatch):
    asked = []
    monkeypatch.setattr(python_faults, "planted", lambda *_: ("script", []))
    monkeypatch.setattr(python_faults, "diagnosed", lambda _, arguments, seconds: (asked.append(seconds) or {}, 1.0))
    monkeypatch.setattr(python_faults, "traceml_says", lambda *_: None)
    monkeypatch.setattr(python_faults, "gains", lambda *_: (2.0, 2.0, 2.0))
    options = types.SimpleNamespace(diagnose_seconds=given, seconds=1, rounds=1)
    fault = planted_faults.FAULTS[0]
    loop = next(loop for loop in planted_faults.LOOPS if loop.name == fault.loop)
    for each in (None, fault):
        python_faults.row_of(loop, each, None, None, options)
    assert asked == expected


def test_the_table():
    rows = [{"loop": "bare", "fault": None, "verdict": "healthy", "first": None, "predicted": None, "low": None,
             "high": None, "median": None, "right": True, "traceml": "COMPUTE_BOUND"},
            {"loop": "bare", "fault": "threads", "verdict": "cause", "first": "prefetch", "predicted": 1.256,
             "low": 1.1, "high": 1.4, "median": 3.0, "right": False, "traceml": None}]
    assert python_faults.table(rows).splitlines()[2:] == [
        "| bare | nothing | healthy |  |  | yes | COMPUTE_BOUND |",
        "| bare | threads | prefetch | 1.26 [1.10, 1.40] | 3.00 | no |  |"]
