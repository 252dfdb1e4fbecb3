#!/usr/bin/env python3
"""Kills torchvision's reference script in the middle of an epoch, and resumes it with another number of processes.

    bench/python_resume.py [--trials 3] [--worlds 1,3] [--images DIR] [--batch 24] [--seed 0] [--scripts DIR]
                           [--work DIR] [--json FILE]

A copy of references/classification/train.py gets the changes of python/README.md: it reads through saturate.Loader,
stores the loader's position in its checkpoints, and also saves one every second step. Other changes let it run on a
CPU, and record each sample's step, name, label and the CRC32 of its pixels. torchrun starts it with two processes. Both
are killed by SIGKILL at a random moment in the middle of a random epoch, and each number of processes in --worlds
resumes from the latest checkpoint. The samples before the checkpoint and after it must be, step by step, those of the
script as one process, which gets each sample once in an epoch. The script is downloaded from GitHub into --scripts
unless it is there already. DIR has folders train and val, of five classes or more; by default images are generated.
--batch: images of all processes together; the last batch of an epoch must have one for each process. --seed: of the
random moments of the kills. Needs the package, torch and torchvision.
"""

import argparse
import collections
import contextlib
import importlib.metadata
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
import zlib

from planted_faults import LOOPS
from python_faults import ROOT, TIME_LIMIT_S, edit, fetch_scripts, make_images

sys.path.insert(0, str(ROOT.parent / "tools/peers"))
from peer_report import commit_of_checkout, cores, cpu_name  # noqa: E402

LOOP = next(loop for loop in LOOPS if loop.name == "torchvision")
EPOCHS, SAVE_STEPS, KILLED_WORLD, MAX_DELAY_S = 3, 2, 2, 0.05

# The script's own, of the training data.
LOADER = """torch.utils.data.DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=train_sampler,
        num_workers=args.workers,
        pin_memory=True,
        collate_fn=collate_fn,
    )
"""
# (before, after) in train.py.
TRAIN = [
    ("import utils\n", "import utils\nimport python_resume\nimport saturate\n"),
    (LOADER, """saturate.Loader(
        f"folder:{train_dir}", batch=args.batch_size * args.world_size, size=args.train_crop_size,
        crop="random_resized", device=device, uneven="join", names=True)
"""),
    ("scaler=None):\n", "scaler=None, save=None):\n"),
    ("for i, (image, target) in enumerate(", "for i, (image, target, names) in enumerate("),
    ("        image, target = image.to(device), target.to(device)\n",
     "        python_resume.note(data_loader, names, image, target)\n"
     "        image, target = image.to(device), target.to(device)\n"),
    (LOOP.step, LOOP.step + f"""        if (i + 1) % {SAVE_STEPS} == 0 and data_loader.state_dict()["epoch"] == epoch:
            save(epoch)
"""),
    ("DistributedDataParallel(model, device_ids=[args.gpu])", "DistributedDataParallel(model)"),
    ("        args.start_epoch = checkpoint[\"epoch\"] + 1\n",
     "        data_loader.load_state_dict(checkpoint[\"data_loader\"])\n"
     "        args.start_epoch = checkpoint[\"data_loader\"][\"epoch\"]\n"),
    ("""                "args": args,
""", """                "args": vars(args),
                "data_loader": data_loader.state_dict(),
"""),
    ("    print(\"Start training\")\n", """    def save(epoch):
        checkpoint = {"model": model_without_ddp.state_dict(), "optimizer": optimizer.state_dict(),
                      "lr_scheduler": lr_scheduler.state_dict(), "data_loader": data_loader.state_dict(),
                      "epoch": epoch, "args": vars(args)}
        utils.save_on_master(checkpoint, os.path.join(args.output_dir, "checkpoint.pth"))

    print("Start training")
"""),
    ("epoch, args, model_ema, scaler)\n", "epoch, args, model_ema, scaler, save)\n"),
]
# In utils.py.
UTILS = [
    ("    torch.cuda.set_device(args.gpu)\n    args.dist_backend = \"nccl\"\n", "    args.dist_backend = \"gloo\"\n"),
    ("device=\"cuda\"", "device=\"cpu\""),
    ("        torch.save(*args, **kwargs)\n",
     "        torch.save(args[0], args[1] + \".part\")\n"
     "        os.replace(args[1] + \".part\", args[1])\n"),
]


def note(data_loader, names, images, labels):
    """Called by the edited script with each batch. Appends its samples to the file RANK-PID."""
    step = steps_of(data_loader.state_dict(), len(data_loader))
    sums = [zlib.crc32(image.numpy()) for image in images]
    lines = [json.dumps([step, *sample]) + "\n" for sample in zip(names, labels.tolist(), sums)]
    path = pathlib.Path(os.environ["PYTHON_RESUME_NOTES"], f"{os.environ.get('RANK', 0)}-{os.getpid()}")
    with open(path, "a") as file:
        file.write("".join(lines))


def steps_of(state, batches):
    """The number of steps before this position of a loader."""
    return state["epoch"] * batches + state["batch"]


def noted(folder):
    """Counts of (step, name, label, checksum), of all processes. A line that SIGKILL has cut off is left out."""
    lines = [line for path in folder.iterdir() for line in path.read_text().splitlines(keepends=True)]
    return collections.Counter(tuple(json.loads(line)) for line in lines if line.endswith("\n"))


def edited(scripts, work):
    """A copy of the script with the changes."""
    script = work / "edited" / LOOP.script
    shutil.rmtree(script.parent, ignore_errors=True)
    shutil.copytree((scripts / LOOP.script).parent, script.parent)
    edit(script, TRAIN, "bench/python_resume.py")
    edit(script.with_name("utils.py"), UTILS, "bench/python_resume.py")
    return script


@contextlib.contextmanager
def started(script, world, out, options, *arguments):
    """The process of torchrun, or that of the script itself (world: None)."""
    shutil.rmtree(out, ignore_errors=True)
    (out / "notes").mkdir(parents=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node",
                str(world)] if world else []
    given = [*(part.format(data=options.images, out=out) for part in LOOP.arguments), "--batch-size",
             str(options.batch // (world or 1)), "--workers", "0", "--epochs", str(EPOCHS), "--lr", "0.01",
             "--output-dir", str(out), *arguments]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with open(out / "log", "w") as log:
        process = subprocess.Popen([sys.executable, *launcher, str(script), *given], stdout=log, stderr=log, env={
            **os.environ, "PYTHONPATH": path, "PYTHON_RESUME_NOTES": str(out / "notes"), "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": ""})
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()  # torchrun ends what it has started
            process.wait()


def run_to_end(script, world, out, options, *arguments):
    """Returns what it notes."""
    with started(script, world, out, options, *arguments) as process:
        if code := process.wait(timeout=TIME_LIMIT_S):
            sys.exit(f"python_resume: error: the script ended with exit code {code}. See {out / 'log'}")
    return noted(out / "notes")


def kill_after(step, delay, process, out):
    """Kills torchrun and the processes that it has started, `delay` seconds after one of them has noted the step."""
    end = time.monotonic() + TIME_LIMIT_S
    while max(noted(out / "notes"), default=(0,))[0] < step and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(delay)
    if process.poll() is not None or time.monotonic() > end:
        sys.exit(f"python_resume: error: no step {step}, or the end before the kill. See {out / 'log'}")
    started_by_it = [int(path.name.rpartition("-")[2]) for path in (out / "notes").iterdir()]
    for one in started_by_it:
        with contextlib.suppress(ProcessLookupError):  # once one is killed, torchrun ends the others
            os.kill(one, signal.SIGKILL)
    process.kill()
    process.wait()
    while any(map(is_running, started_by_it)):
        time.sleep(0.01)


def is_running(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] not in "XZ"
    except (FileNotFoundError, ProcessLookupError):
        return False


def require_each_once(whole):
    """The number of steps in an epoch. Exits with an error unless each epoch has each sample once."""
    batches, names = max(whole)[0] // EPOCHS, {name for _, name, _, _ in whole}
    found = {((step - 1) // batches, name) for step, name, _, _ in whole}
    if not len(found) == sum(whole.values()) == EPOCHS * len(names):
        sys.exit("python_resume: error: one process alone does not get each sample once in an epoch")
    return batches


def compared(trial, world, killed, begin, kept, rest, whole):
    """A row: how many samples of one unkilled process are missing, and how many samples it does not have."""
    found = kept + rest
    missing, more = (sum(counts.values()) for counts in (whole - found, found - whole))
    return {"name": f"trial {trial}, resumed by {world}", "unit": "samples that differ", "median": missing + more,
            "min": missing + more, "max": missing + more, "n": 1, "trial": trial, "world": world, "killed_at": killed,
            "resumed_from": begin, "kept": sum(kept.values()), "rest": sum(rest.values()), "missing": missing,
            "more": more}


def rows_of(trial, script, whole, options):
    import torch

    chance = random.Random(f"{options.seed}-{trial}")
    batches = require_each_once(whole)
    earliest = max(SAVE_STEPS + 2, batches // 4)  # a checkpoint is complete by then
    step = chance.randrange(EPOCHS) * batches + chance.randint(earliest, max(earliest, batches * 3 // 4))
    out = options.work / f"trial-{trial}"
    with started(script, KILLED_WORLD, out, options) as process:
        kill_after(step, chance.uniform(0, MAX_DELAY_S), process, out)
    before = noted(out / "notes")
    begin = steps_of(torch.load(out / "checkpoint.pth", weights_only=True)["data_loader"], batches)
    kept = collections.Counter({one: count for one, count in before.items() if one[0] <= begin})
    for world in options.worlds:
        rest = run_to_end(script, world, out / f"by-{world}", options, "--resume", str(out / "checkpoint.pth"))
        row = compared(trial, world, max(before)[0], begin, kept, rest, whole)
        print("{name}: killed at step {killed_at}, resumed from {resumed_from}; {kept} + {rest} samples, {missing} "
              "missing, {more} extra".format(**row), flush=True)
        yield row


def table(rows):
    """Markdown."""
    lines = ["| trial | killed at step | resumed from step | processes that resume | samples before | after | "
             "missing | extra |",
             "|---|---|---|---|---|---|---|---|"]
    keys = ("trial", "killed_at", "resumed_from", "world", "kept", "rest", "missing", "more")
    return "\n".join([*lines, *("| " + " | ".join(str(row[key]) for key in keys) + " |" for row in rows)]) + "\n"


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: must be 1 or more")
    return number


def worlds(text):
    try:
        return [positive(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of numbers, such as 1,3") from None


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage="%(prog)s [options]")
    parser.add_argument("--trials", type=positive, default=3)
    parser.add_argument("--worlds", type=worlds, default=[1, 3])
    parser.add_argument("--images", type=pathlib.Path)
    parser.add_argument("--batch", type=positive, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=pathlib.Path, default=ROOT.parent / "build/python-resume")
    parser.add_argument("--scripts", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    for world in (KILLED_WORLD, *options.worlds):
        if options.batch % world:
            parser.error(f"--batch {options.batch} cannot be divided evenly among {world} processes")
    if options.images and not all((options.images / part).is_dir() for part in ("train", "val")):
        parser.error(f"--images {options.images}: needs folders train and val")
    options.work = options.work.resolve()
    return options


def main():
    options = parse_options()
    host = {"cpu": cpu_name(), "cores": cores(), "torch": importlib.metadata.version("torch")}
    scripts = (options.scripts or options.work / "scripts").resolve()
    if not options.images:
        make_images(options.work / "images")
    options.images = (options.images or options.work / "images").resolve()
    fetch_scripts(scripts, [LOOP])
    script = edited(scripts, options.work)
    whole, rows = run_to_end(script, None, options.work / "whole", options), []
    for trial in range(options.trials):
        for row in rows_of(trial, script, whole, options):
            rows.append(row)
            if options.json:
                options.json.write_text(json.dumps({"bench": "python_resume", "commit": commit_of_checkout(),
                                                    "host": host, "rows": rows}, indent=2) + "\n")
    print(table(rows))
    return 0 if not any(row["median"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
