"""Lightning and Accelerate, if they are installed: the examples, and resuming. Needs numpy, pytest and torch."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import saturate
from sample_sets import Numbered

torch = pytest.importorskip("torch")
EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


def run(*command, **variables):
    result = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300,
                            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **variables})
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_lightning_example_learns():
    pytest.importorskip("lightning")
    text = run(str(EXAMPLES / "lightning_module.py"))
    accuracy, steps = re.search(r"accuracy ([\d.]+) after (\d+) steps", text).groups()
    assert float(accuracy) > 0.4 and steps == "200"


def test_the_accelerate_example_learns():
    pytest.importorskip("accelerate")
    accuracies = re.findall(r"accuracy ([\d.]+) on 1 processes", run(str(EXAMPLES / "accelerate_loop.py")))
    assert len(accuracies) == 5 and float(accuracies[4]) > 0.4


def test_a_loader_of_accelerate_is_diagnosed_and_restored():
    accelerate = pytest.importorskip("accelerate")
    settings = accelerate.utils.DataLoaderConfiguration(use_seedable_sampler=True)  # its order depends on the epoch
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=settings)

    def orders(is_diagnosed):
        torch.manual_seed(1)
        loader = accelerator.prepare(torch.utils.data.DataLoader(list(range(40)), batch_size=4, shuffle=True))
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def step(batch):
            (weight * batch.sum()).backward()
            optimizer.step()

        found = [torch.cat(list(loader)).tolist()]
        if is_diagnosed:
            assert saturate.diagnose(step, loader, seconds=0.5, only=[]).rate > 0
        return [*found, *(torch.cat(list(loader)).tolist() for _ in range(2))]

    assert orders(True) == orders(False)


def synchronised(accelerator, loader, evaluation=(), epochs=2):
    """Whether each step had the gradients of all its micro-batches; with an evaluation after each third batch."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = accelerator.prepare(torch.optim.SGD([weight], lr=0.1))
    found = []
    for _ in range(epochs):
        for number, _ in enumerate(loader):
            with accelerator.accumulate():
                accelerator.backward(weight.sum())
                found.append(accelerator.sync_gradients)
                optimizer.step()
                optimizer.zero_grad()
            if number % 3 == 2:
                for _ in evaluation:
                    pass
    return found


@pytest.mark.parametrize("device", [None, "cpu"])
def test_accelerate_accumulates_within_an_epoch(device):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    loader, evaluation = (saturate.Loader(Numbered(size), batch=4, size=6, to="torch", device=device)
                          for size in (22, 8))
    loader, evaluation = accelerator.prepare(loader, evaluation)
    plain = [accelerator.prepare(torch.utils.data.DataLoader(list(range(size)), batch_size=4)) for size in (22, 8)]
    expected = [False, False, False, True, False, True] * 2
    assert synchronised(accelerator, *plain) == synchronised(accelerator, loader, evaluation) == expected

    class LeftAtOnce:
        def __iter__(self):
            next(iter(evaluation))
            return iter(())

    assert synchronised(accelerator, loader, LeftAtOnce()) == expected
    for _ in loader:
        break
    assert not accelerator.gradient_state.in_dataloader
    assert synchronised(accelerator, loader)[:6] == expected[:6]


def test_accelerate_saves_and_loads_the_position(tmp_path):
    accelerate = pytest.importorskip("accelerate")

    def made():
        accelerator = accelerate.Accelerator(cpu=True)
        loader = accelerator.prepare(saturate.Loader(Numbered(22), batch=4, size=6, to="torch"))
        accelerator.register_for_checkpointing(loader)
        return accelerator, loader

    accelerator, loader = made()
    found = []
    for _ in range(2):
        for _, labels in loader:
            found.append(labels.tolist())
            if len(found) in (3, 6, 8):
                accelerator.save_state(str(tmp_path / str(len(found))))
    for batches in (3, 6, 8):
        accelerator, loader = made()
        accelerator.load_state(str(tmp_path / str(batches)))
        rest = [labels.tolist() for _ in range(2 if batches < 6 else 1) for _, labels in loader]
        assert rest == found[batches:]


def test_a_loader_that_accelerate_has_prepared_is_watched():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    loader = accelerator.prepare(torch.utils.data.DataLoader(list(range(22)), batch_size=4))
    expected = [False, False, False, True, False, True] * 2
    with saturate.watch(loader) as watch:
        assert synchronised(accelerator, watch) == expected
    assert watch.samples == 44
    with saturate.watch() as watch:
        assert synchronised(accelerator, loader) == expected
    assert (watch.steps, watch.samples) == (4, 44)


def test_the_accelerate_example_runs_on_two_processes():
    pytest.importorskip("accelerate")
    text = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               str(EXAMPLES / "accelerate_loop.py"), OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="true")
    accuracies = re.findall(r"accuracy ([\d.]+) on 2 processes", text)
    assert len(accuracies) == 5 and float(accuracies[4]) > 0.4


def test_lightning_resumes_within_an_epoch(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Recording(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.seen = []

        def training_step(self, batch, _):
            self.seen.append(batch[1].tolist())
            return self.weight.sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0)

    def fit(checkpoint=None, callbacks=None):
        module = Recording()
        trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=bool(callbacks), max_epochs=3,
                                    callbacks=callbacks, enable_progress_bar=False, enable_model_summary=False)
        loader = saturate.Loader(Numbered(24), batch=4, size=6, to="torch")
        trainer.fit(module, loader, ckpt_path=checkpoint)
        return module.seen

    saving = lightning.pytorch.callbacks.ModelCheckpoint(str(tmp_path), filename="{step}", every_n_train_steps=1,
                                                         save_top_k=-1)
    whole = fit(callbacks=[saving])
    assert len(whole) == 18
    for step in (2, 6, 9, 17):  # also at the end of an epoch
        assert fit(str(tmp_path / f"step={step}.ckpt")) == whole[step:]


def test_a_watch_around_lightning_counts_its_steps():
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, _):
            return self.layer(batch).sum()

        def validation_step(self, batch, _):
            self.layer(batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, max_epochs=3,
                                enable_progress_bar=False, enable_model_summary=False)
    training, validation = (torch.utils.data.DataLoader(torch.zeros(size, 1), batch_size=4) for size in (24, 8))
    with saturate.watch() as watch:
        trainer.fit(Module(), training, validation)
    assert (watch.steps, watch.samples) == (18, 72)
    assert min(watch.phases[name] for name in ("forward", "backward", "optimizer", "evaluation")) > 0
