"""A program of test_killed.py: trains like torchvision's reference script, or with Lightning, from the latest
checkpoint on, and notes each sample's label and checksum by step.

    killed_loop.py KIND FOLDER SAMPLES KILLED_STEP

Process 1 kills itself once that step has its batch (0: never).
"""

import os
import pathlib
import signal
import sys
import zlib

import saturate
import torch
from torch import nn

BATCH, EPOCHS, CHECKPOINT_STEPS = 12, 3, 2


def loader_of(samples):
    from sample_sets import Noisy

    return saturate.Loader(Noisy(samples), batch=BATCH, size=8, crop="random_resized", to="torch", threads=2,
                           uneven="join", options={"augment.hue": 0.2})


def lines_of(step, batch):
    images, labels = batch
    return [f"{step} {label} {zlib.crc32(image.numpy())}\n" for image, label in zip(images, labels.tolist())]


class Notes:
    def __init__(self, folder, killed_step):
        self.rank, self.killed_step = int(os.environ["RANK"]), killed_step
        self.file = open(folder / f"notes-of-{os.environ['WORLD_SIZE']}-{self.rank}", "w")

    def add(self, step, batch):
        self.file.writelines(lines_of(step, batch))
        self.file.flush()
        if step == self.killed_step and self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def network():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1000))


def train_one_epoch(model, criterion, optimizer, data_loader, notes, step, save):
    model.train()
    for image, target in data_loader:
        step += 1
        notes.add(step, (image, target))
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % CHECKPOINT_STEPS == 0:
            save(step)
    return step


def reference(folder, samples, notes):
    """As references/classification/train.py: DistributedDataParallel, and a checkpoint of all states."""
    torch.distributed.init_process_group("gloo")
    data_loader = loader_of(samples)
    model = nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    parts = {"model": model.module, "optimizer": optimizer, "data_loader": data_loader}

    def save(step):
        if notes.rank == 0:
            torch.save({"step": step, **{name: part.state_dict() for name, part in parts.items()}}, folder / "part")
            os.replace(folder / "part", folder / f"{step}.ckpt")

    step = 0
    if latest(folder):
        checkpoint = torch.load(folder / f"{latest(folder)}.ckpt", weights_only=True)
        step = checkpoint["step"]
        for name, part in parts.items():
            part.load_state_dict(checkpoint[name])
    while step < EPOCHS * len(data_loader):
        step = train_one_epoch(model, nn.CrossEntropyLoss(), optimizer, data_loader, notes, step, save)
    torch.distributed.destroy_process_group()


def with_lightning(folder, samples, notes):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()

        def training_step(self, batch, _):
            notes.add(self.trainer.global_step + 1, batch)
            return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    saving = lightning.pytorch.callbacks.ModelCheckpoint(
        str(folder), filename="{step}", auto_insert_metric_name=False, every_n_train_steps=CHECKPOINT_STEPS,
        save_top_k=-1)
    trainer = lightning.Trainer(accelerator="cpu", strategy="ddp", devices=int(os.environ["WORLD_SIZE"]),
                                max_epochs=EPOCHS, callbacks=[saving], logger=False, enable_progress_bar=False,
                                enable_model_summary=False)
    step = latest(folder)
    trainer.fit(Module(), loader_of(samples), ckpt_path=str(folder / f"{step}.ckpt") if step else None)


def latest(folder):
    """The step of the latest checkpoint; 0 if there is none."""
    return max((int(path.stem) for path in folder.glob("*.ckpt")), default=0)


def main(kind, folder, samples, killed_step):
    torch.set_num_threads(1)
    folder = pathlib.Path(folder)
    {"reference": reference, "lightning": with_lightning}[kind](folder, int(samples), Notes(folder, int(killed_step)))


if __name__ == "__main__":
    main(*sys.argv[1:])
