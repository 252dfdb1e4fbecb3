"""Training on several processes that is killed, and continued by another number of them. Needs numpy, pytest, torch,
and Lightning for one test."""

import collections
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from killed_loop import CHECKPOINT_STEPS, EPOCHS, latest, lines_of, loader_of  # noqa: E402

SCRIPT = pathlib.Path(__file__).with_name("killed_loop.py")
SAMPLES = 57   # 5 steps an epoch, of which the last is of 9 samples
KILLED_STEP = 8


def start(world, kind, folder, killed_step=0):
    """As torchrun does."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shared = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
              "GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": "test", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": 1}

    def one(rank):
        own = {name: str(value) for name, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()}
        return subprocess.Popen([sys.executable, str(SCRIPT), kind, str(folder), str(SAMPLES), str(killed_step)],
                                stderr=subprocess.PIPE, text=True, env={**os.environ, **own})

    return [one(rank) for rank in range(world)]


def noted(folder, world):
    """Counts of (step, label, checksum)."""
    found = collections.Counter()
    for path in folder.glob(f"notes-of-{world}-*"):
        found.update(tuple(map(int, line.split())) for line in path.read_text().splitlines())
    return found


def of_one_process():
    loader, step, found = loader_of(SAMPLES), 0, collections.Counter()
    for _ in range(EPOCHS):
        for batch in loader:
            step += 1
            found.update(tuple(map(int, line.split())) for line in lines_of(step, batch))
    return found


@pytest.mark.parametrize("kind, after", [("reference", 3), ("lightning", 1), ("lightning", 3)])
def test_a_killed_training_continues_with_the_same_samples(tmp_path, kind, after):
    if kind == "lightning":
        pytest.importorskip("lightning")
    first, second = start(2, kind, tmp_path, KILLED_STEP)
    assert second.wait(timeout=120) == -signal.SIGKILL, second.stderr.read()
    first.kill()
    first.wait()
    begin, lost = latest(tmp_path), noted(tmp_path, 2)
    assert begin == (KILLED_STEP - 1) // CHECKPOINT_STEPS * CHECKPOINT_STEPS and max(lost)[0] == KILLED_STEP
    for process in start(after, kind, tmp_path):
        text = process.communicate(timeout=120)[1]
        assert process.returncode == 0, text
    kept = collections.Counter({note: count for note, count in lost.items() if note[0] <= begin})
    rest = noted(tmp_path, after)
    assert min(rest)[0] == begin + 1
    assert kept + rest == of_one_process()
