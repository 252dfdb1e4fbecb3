#!/usr/bin/env python3
"""The augmentation of volumes in MONAI, torchio and saturate, interleaved.

    tools/peers/volume_peers.py [--saturate build/saturate] [--size 64] [--threads 2] [--volumes 64]
        [--only monai,torchio,scipy] [--repeats 5] [--seconds 2] [--json FILE]

Each has float32 volumes in memory, and makes batches of 8 on --threads threads or processes: flips of each axis,
rotations by up to 20 degrees about each axis, scales of 0.9 to 1.1, shifts by up to a tenth, trilinear, zeros outside;
then values times 0.8 to 1.2 and noise of 0.05. Prints the JSON of `saturate bench`, with a row for every peer that
works, and on stderr why others do not. Install the peers into a separate environment, for example

    python3 -m venv build/peers
    build/peers/bin/pip install torch monai torchio scipy
    build/peers/bin/python tools/peers/volume_peers.py
"""

import argparse
import math
import pathlib
import sys
import tempfile

from peer_report import bench_loader, measure, with_spread, write

BATCH, ANGLE, SCALE, SHIFT, FACTOR, NOISE = 8, 20, 0.1, 0.1, 0.2, 0.05


def torch_loader(volumes, transform, threads):
    """DataLoader with `threads` worker processes."""
    import torch

    class Dataset(torch.utils.data.Dataset):
        def __len__(self):
            return len(volumes)

        def __getitem__(self, index):
            return transform(volumes[index])

    loader = torch.utils.data.DataLoader(Dataset(), BATCH, shuffle=True, num_workers=threads, persistent_workers=True,
                                         worker_init_fn=lambda _: torch.set_num_threads(1))
    return lambda: sum(len(batch) for batch in loader)


def monai(volumes, threads):
    """MONAI's transforms, on tensors [1, D, H, W]."""
    import torch
    from monai import transforms

    angle, shift = math.radians(ANGLE), SHIFT * volumes.shape[1]
    chain = transforms.Compose(
        [transforms.RandFlip(prob=0.5, spatial_axis=axis) for axis in range(3)] + [
            transforms.RandAffine(prob=1, rotate_range=[angle] * 3, scale_range=[SCALE] * 3,
                                  translate_range=[shift] * 3, mode="bilinear", padding_mode="zeros"),
            transforms.RandScaleIntensity(factors=FACTOR, prob=1),
            transforms.RandGaussianNoise(prob=1, std=NOISE, sample_std=False)])
    return torch_loader(volumes, lambda volume: torch.as_tensor(chain(volume[None])), threads)


def torchio(volumes, threads):
    """torchio's transforms, on tensors [1, D, H, W]."""
    import random
    import torch
    import torchio as tio

    shift = SHIFT * volumes.shape[1]
    chain = tio.Compose([tio.RandomFlip(axes=(0, 1, 2), flip_probability=0.5),
                         tio.RandomAffine(scales=SCALE, degrees=ANGLE, translation=shift, default_pad_value=0),
                         tio.Lambda(lambda values: values * random.uniform(1 - FACTOR, 1 + FACTOR)),
                         tio.RandomNoise(std=(NOISE, NOISE))])
    return torch_loader(volumes, lambda volume: chain(torch.from_numpy(volume[None])), threads)


def scipy(volumes, threads):
    """scipy.ndimage.affine_transform and numpy."""
    import numpy
    from scipy import ndimage

    random = numpy.random.default_rng(0)

    def transform(volume):
        matrix = numpy.diag(random.choice([-1.0, 1.0], 3)) / random.uniform(1 - SCALE, 1 + SCALE)
        for a, b in ((1, 2), (2, 0), (0, 1)):
            angle = math.radians(random.uniform(-ANGLE, ANGLE))
            turn = numpy.eye(3)
            turn[a, a] = turn[b, b] = math.cos(angle)
            turn[a, b], turn[b, a] = math.sin(angle), -math.sin(angle)
            matrix = matrix @ turn
        centre = (numpy.array(volume.shape) - 1) / 2
        shift = random.uniform(-SHIFT, SHIFT, 3) * volume.shape
        warped = ndimage.affine_transform(volume, matrix, centre - matrix @ (centre + shift), order=1,
                                          mode="grid-constant")
        noise = random.standard_normal(volume.shape, dtype=numpy.float32) * numpy.float32(NOISE)
        return warped * numpy.float32(random.uniform(1 - FACTOR, 1 + FACTOR)) + noise

    return torch_loader(volumes, transform, threads)


PEERS = {peer.__name__: peer for peer in (monai, torchio, scipy)}


class Saturate:
    """`saturate bench loader` on the volumes as a file; each run is a separate process with a warm-up."""

    def __init__(self, command, file, threads):
        self.command, self.threads, self.values = command, threads, []
        self.recipe = pathlib.Path(file).with_suffix(".toml")
        self.recipe.write_text(
            f'[data]\nsource = "npy:{file},volume=x"\ncache = "ram"\n[train]\nbatch = {BATCH}\n'
            f'[augment]\nflip = 0.5\nrotate = {ANGLE}\nzoom = {SCALE}\ntranslate = {SHIFT}\n'
            f'brightness = {FACTOR}\ngaussian_noise = {NOISE}\n', encoding="utf-8")

    def measure(self, seconds):
        result = bench_loader(self.command, self.recipe, self.threads, seconds)
        self.values.append(result["rows"][0]["median"])
        return result


def build(names, volumes, threads):
    """(row, epoch) of every peer that works, after one epoch of warm-up."""
    built = []
    for name in names:
        try:
            epoch = PEERS[name](volumes, threads)
            if epoch() != len(volumes):
                raise RuntimeError("volumes are missing from its epoch")
        except Exception as error:  # a missing or broken peer is not measured
            print(f"{name}: skipped: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        row = {"name": f"{name} threads={threads}", "unit": "volumes/s", "peer": name, "threads": threads}
        built.append((row, epoch))
    return built


def main():
    import numpy

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saturate", default="build/saturate")
    parser.add_argument("--size", type=int, default=64, help="side of a volume, voxels")
    parser.add_argument("--volumes", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default=",".join(PEERS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    shape = (arguments.volumes,) + (arguments.size,) * 3
    volumes = numpy.random.default_rng(1).standard_normal(shape, dtype=numpy.float32)
    built = build([name for name in arguments.only.split(",") if name], volumes, arguments.threads)
    values = [[] for _ in built]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "x.npy"
        numpy.save(file, volumes)
        ours = Saturate(arguments.saturate, file, arguments.threads)
        for _ in range(arguments.repeats):  # interleaved, so that a slow moment affects all of them
            for (_, epoch), found in zip(built, values):
                found.append(measure(epoch, arguments.seconds))
            commit = ours.measure(arguments.seconds)["commit"]
    rows = [with_spread(row, found) for (row, _), found in zip(built, values)]
    row = {"name": f"saturate threads={arguments.threads}", "unit": "volumes/s", "threads": arguments.threads}
    write("volume_peers", rows + [with_spread(row, ours.values)], arguments.json, commit)


if __name__ == "__main__":
    main()
