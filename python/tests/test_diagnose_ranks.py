"""saturate.diagnose() of scripts on two processes, of which one fails or has fewer batches."""

import pytest

torch = pytest.importorskip("torch")

from test_diagnose_group import END, IMPATIENT, ends_of, outputs_of  # noqa: E402

SCRIPT = """
import datetime, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[1]), world_size=2,
                        timeout=datetime.timedelta(seconds=60))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = torch.utils.data.DataLoader(torch.randn(SAMPLES, 4), batch_size=2)
for _ in range(EPOCHS):
    with model.join():
        for batch in loader:
            EXTRA
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
"""
FUSED = """
import sys
from saturate import __main__, group_turns, observing
group_turns.TURN_S, observing.Observation.optimizer_s = 0.1, None
sys.argv[1:1] = ["diagnose", "--seconds", "60", "--only", "fused-optimizer"]
sys.exit(__main__.main())
"""
MEASURED = """
import sys
import torch.distributed as dist
from saturate import scripts
print(scripts.diagnose_script(sys.argv[1], sys.argv[2:], seconds=4, only=["straggler"]).rate)
"""


def made(tmp_path, samples, extra="pass", epochs=100_000):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("SAMPLES", samples).replace("EXTRA", extra).replace("EPOCHS", str(epochs)))
    return path


@pytest.mark.parametrize("rank", [0, 1])
def test_the_process_whose_script_fails_tells_what_was_measured(tmp_path, rank):
    """The other one then has no connection to it, and tells nothing."""
    script = made(tmp_path, "16", f"if dist.get_rank() == {rank} and optimizer.param_groups[0]['fused']:\n"
                                  "                raise ValueError('no fused steps')")
    found = ends_of(tmp_path / "store", ["-c", FUSED, script], ["-c", FUSED, script])
    code, out, errors = found[rank]
    assert code != 0 and "ValueError: no fused steps" in errors
    assert f"fused-optimizer: the script failed with it on rank {rank}: no fused steps" in out, errors
    assert "with one batch held" in out
    code, out, errors = found[1 - rank]
    assert code != 0 and not out, errors


@pytest.mark.parametrize("samples, extra", [
    ("12 + 8 * dist.get_rank()", "len(loader)"), ("12", "dist.get_rank() or len(loader)")])
def test_processes_end_their_epochs_together(tmp_path, samples, extra):
    """Also if one has more batches, or only one counts them: the end of join() waits for the other."""
    command = ["-c", MEASURED + END, made(tmp_path, samples, extra)]
    assert all(float(out) > 0 for out in outputs_of(tmp_path / "store", command, command))


def test_a_process_that_comes_too_late_trains_as_the_others_do(tmp_path):
    """Rank 0's measurement begins in its second epoch, when rank 1 no longer waits for it."""
    command = ["-c", IMPATIENT + END, made(tmp_path, "4 + 6 * dist.get_rank()", epochs=3)]
    for out in outputs_of(tmp_path / "store", command, command):
        assert "the other processes are not diagnosed" in out
