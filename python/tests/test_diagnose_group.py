"""saturate.diagnose() of several processes: two real ones, whose steps must stay in line, and known times."""

import subprocess
import sys

import pytest

from saturate.diagnosing import _order

torch = pytest.importorskip("torch")

from saturate.group_turns import group_what_ifs  # noqa: E402


def test_a_straggler_and_all_reduces_by_known_times():
    whole = [0.5, 0.5, 0.5]
    sums, straggler = group_what_ifs(whole, [[0.1] * 3, [0.4] * 3])
    assert sums.gain.ratio == pytest.approx(1.25) and straggler.gain.ratio == pytest.approx(2.5)
    assert "Rank 1" in straggler.remedy.text and _order([sums, straggler])[0] is straggler
    sums, straggler = group_what_ifs(whole, [[0.4, 0.41, 0.4, ][:3], [0.41, 0.4, 0.405]])
    assert not straggler.is_worth() and sums.is_worth()


PROGRAM = """
import sys, time, torch, saturate
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[1]), world_size=2)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = [each.clone() for each in model.parameters()]

def step(batch):
    optimizer.zero_grad()
    if dist.get_rank() == 1:
        time.sleep(0.03)
    model(batch).sum().backward()
    optimizer.step()

found = saturate.diagnose(step, torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=2), seconds=3)
assert all(a.equal(b) for a, b in zip(before, model.parameters()))
print(found.causes[0].name, found.causes[0].remedy.text)
dist.destroy_process_group()
"""


def test_two_processes_find_the_slow_one(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("this torch has no distributed")
    (tmp_path / "program.py").write_text(PROGRAM)
    runs = [subprocess.Popen([sys.executable, tmp_path / "program.py", str(rank), tmp_path / "store"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(2)]
    for run in runs:
        out, errors = run.communicate(timeout=300)
        assert run.returncode == 0, errors
        assert out.startswith("straggler Rank 1"), out
