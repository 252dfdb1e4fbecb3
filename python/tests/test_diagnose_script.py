"""python -m saturate diagnose and tune: scripts as they are, and patches of their text."""

import json
import subprocess
import sys

import pytest

import saturate
from saturate.patching import Edit, edited

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


def test_a_script_is_diagnosed_as_it_is(script, tmp_path):
    """Its loop breaks off each epoch, and evaluates in between."""
    result = run("diagnose", "--seconds", 4, "--only", "data-loading", "--json", tmp_path / "found.json", script, 1000)
    assert result.returncode == 0, result.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["verdict"] == "cause" and found["unit"] == "steps/s" and found["rate"] > 0
    (cause,) = found["causes"]
    assert cause["name"] == "data-loading" and cause["low"] > 1 and cause["low"] <= cause["gain"] <= cause["high"]
    assert cause["edit"]["call"] == "DataLoader" and "DataLoader(Data(), batch_size=4, shuffle=True)" in (
        SCRIPT.splitlines()[cause["edit"]["line"] - 1])
    assert "cause: data-loading" in result.stdout and "trained" not in result.stdout
    assert script.read_text() == SCRIPT


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


def test_errors(script, tmp_path):
    result = run("diagnose", tmp_path / "none.py")
    assert result.returncode == 2 and result.stderr.startswith("saturate: error: there is no such script")
    assert run("diagnose", "--seconds", 0, script).returncode == 2
    result = run("diagnose", script)  # the script's own error
    assert result.returncode == 1 and "IndexError" in result.stderr


def test_tune_shows_a_patch_and_writes_when_asked(script):
    found = saturate.tune(script, ["1000"], seconds=3)
    assert found.changes[0] == "data-loading" and "+" in found.diff and "num_workers=" in found.diff
    assert script.read_text() == SCRIPT and not found.is_written
    assert found.loss_before == pytest.approx(found.loss_after, rel=0.2)
    assert "--write" in str(found) or found.why_not


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
])
def test_edits(before, edit, after):
    assert edited(before, edit) == after
