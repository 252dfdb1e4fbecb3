"""bench/python_resume.py kills and resumes a script, here a small one in place of torchvision's. Needs pytest, and
torch for one test."""

import collections
import json
import pathlib
import shutil
import subprocess
import sys

import pytest

from sample_sets import IMAGES

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
sys.dont_write_bytecode = True

import planted_faults  # noqa: E402
import python_resume  # noqa: E402

SAMPLES, BATCH, BATCHES = 117, 12, 10  # the last batch of an epoch has 9 samples

TRAIN = """
import argparse
import os
import time
import torch
from torch import nn
import utils


def train_one_epoch(model, criterion, optimizer, data_loader, device, epoch, args, model_ema=None, scaler=None):
    for i, (image, target) in enumerate(data_loader):
        image, target = image.to(device), target.to(device)
        output = model(image)
        optimizer.zero_grad()
        criterion(output, target).backward()
        optimizer.step()
        time.sleep(0.1)
        acc1, acc5 = utils.accuracy(output, target, topk=(1, 5))


def main(args):
    utils.init_distributed_mode(args)
    device = torch.device(args.device)
    train_dir = os.path.join(args.data_path, "train")
    data_loader = LOADER
    model_without_ddp = model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)
    model_ema = scaler = None
    if args.distributed:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu", weights_only=True)
        model_without_ddp.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        lr_scheduler.load_state_dict(checkpoint["lr_scheduler"])
        args.start_epoch = checkpoint["epoch"] + 1
    print("Start training")
    for epoch in range(args.start_epoch, args.epochs):
        train_one_epoch(model, criterion, optimizer, data_loader, device, epoch, args, model_ema, scaler)
        lr_scheduler.step()
        if args.output_dir:
            checkpoint = {
                "model": model_without_ddp.state_dict(),
                "optimizer": optimizer.state_dict(),
                "lr_scheduler": lr_scheduler.state_dict(),
                "epoch": epoch,
                "args": args,
            }
            utils.save_on_master(checkpoint, os.path.join(args.output_dir, "checkpoint.pth"))


parser = argparse.ArgumentParser()
for name in ("data-path", "device", "output-dir", "resume"):
    parser.add_argument("--" + name)
for name in ("batch-size", "train-crop-size", "epochs", "start-epoch", "world-size"):
    parser.add_argument("--" + name, type=int, default=int(name == "world-size"))
parser.add_argument("--lr", type=float)
main(parser.parse_known_args()[0])
"""

UTILS = """
import os
import torch
import torch.distributed as dist


def accuracy(output, target, topk):
    return reduce_across_processes([0.0, 0.0])


def reduce_across_processes(val):
    return torch.tensor(val, device="cuda")


def save_on_master(*args, **kwargs):
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(*args, **kwargs)


def init_distributed_mode(args):
    args.distributed = "RANK" in os.environ
    if not args.distributed:
        return
    args.world_size, args.gpu = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(args.gpu)
    args.dist_backend = "nccl"
    dist.init_process_group(args.dist_backend)
"""


@pytest.fixture
def scripts(tmp_path):
    for name in planted_faults.SOURCES:  # those that are missing would be downloaded
        path = tmp_path / "scripts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "scripts/torchvision/train.py").write_text(TRAIN.replace("LOADER\n", python_resume.LOADER))
    (tmp_path / "scripts/torchvision/utils.py").write_text(UTILS)
    return tmp_path / "scripts"


def test_a_killed_script_continues_with_the_same_samples(tmp_path, scripts):
    pytest.importorskip("torch")
    (tmp_path / "images/val").mkdir(parents=True)
    for number in range(SAMPLES):
        folder = tmp_path / "images/train" / str(number % 3)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(IMAGES / "exif_1.jpg", folder / f"{number}.jpg")
    command = [sys.executable, str(BENCH / "python_resume.py"), "--trials", "1", "--worlds", "3", "--batch", str(BATCH),
               "--images", "images", "--scripts", "scripts", "--work", "work", "--json", "rows.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    row, = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert row["world"] == 3 and row["missing"] == row["more"] == 0
    assert 0 < row["resumed_from"] <= row["killed_at"] < python_resume.EPOCHS * BATCHES
    assert row["resumed_from"] % BATCHES and row["kept"] + row["rest"] == python_resume.EPOCHS * SAMPLES


def test_samples_that_differ_are_counted():
    whole = collections.Counter({(step, name, 0, 7): 1 for step in (1, 2, 3) for name in "ab"})
    kept = collections.Counter({one: 1 for one in whole if one[0] == 1})
    rest = collections.Counter({one: 1 for one in whole if one[0] > 1})
    row = python_resume.compared(0, 1, 2, 1, kept, rest, whole)
    assert (row["kept"], row["rest"], row["missing"], row["more"]) == (2, 4, 0, 0)
    rest[3, "b", 0, 8] = rest.pop((3, "b", 0, 7))  # other pixels
    rest[2, "a", 0, 7] += 1
    row = python_resume.compared(0, 1, 2, 1, kept, rest, whole)
    assert (row["missing"], row["more"], row["median"]) == (1, 2, 3)
    assert python_resume.table([row]).splitlines()[2:] == ["| 0 | 2 | 1 | 1 | 2 | 5 | 1 | 2 |"]


def test_an_epoch_of_one_process_has_each_sample_once():
    epochs = range(1, python_resume.EPOCHS + 1)
    whole = collections.Counter({(step, name, 0, 7): 1 for step in epochs for name in "ab"})
    assert python_resume.require_each_once(whole) == 1
    whole[2, "b", 0, 7] = 2
    with pytest.raises(SystemExit, match="each sample once"):
        python_resume.require_each_once(whole)


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    (tmp_path / "0-17").write_text('[1, "a", 0, 7]\n[1, "b", 0, 7]\n[2, "a", 0')
    (tmp_path / "1-18").write_text('[1, "a", 0, 7]\n')
    assert python_resume.noted(tmp_path) == {(1, "a", 0, 7): 2, (1, "b", 0, 7): 1}


def test_a_script_of_another_version_is_an_error(tmp_path, scripts):
    (scripts / "torchvision/utils.py").write_text("pass\n")
    with pytest.raises(SystemExit, match="another version: adapt bench/python_resume.py"):
        python_resume.edited(scripts, tmp_path / "work")
