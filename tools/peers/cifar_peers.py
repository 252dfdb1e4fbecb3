#!/usr/bin/env python3
"""Loading CIFAR-10 from memory: PyTorch in two ways and saturate, interleaved.

    tools/peers/cifar_peers.py cifar10-train.tar [--saturate build/saturate] [--threads 1,2]
        [--repeats 5] [--json FILE]

Each pads by 4 pixels (reflected), crops 32 x 32 at random, flips, normalises and returns batches of 512
as fp32. The peers start with all images decoded in memory. DataLoader applies torchvision's transforms to
one sample at a time, in --threads processes. whole_batch works on tensors, in --threads threads, with
images that are padded and normalised before the measurement: for each of the 81 shifts it copies the
images that drew it. Prints the JSON of `saturate bench`. Needs torch, torchvision and Pillow.
"""

import argparse
import io
import pathlib
import tarfile

import numpy
import torch
import torchvision.transforms.v2 as v2
from PIL import Image

from peer_report import bench_loader, cores, measure, overrides, with_spread, write

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
SIZE, PADDING, BATCH = 32, 4, 512


def read(path):
    """Images [N, 3, 32, 32] uint8 and labels [N] of an archive of class folders."""
    images, names = [], []
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile():
                data = archive.extractfile(member).read()
                images.append(numpy.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
                names.append(pathlib.Path(member.name).parent.name)
    classes = sorted(set(names))
    labels = torch.tensor([classes.index(name) for name in names])
    return torch.from_numpy(numpy.stack(images)).permute(0, 3, 1, 2).contiguous(), labels


def data_loader(images, labels, threads):
    transform = v2.Compose([v2.RandomCrop(SIZE, PADDING, padding_mode="reflect"),
                            v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True),
                            v2.Normalize(MEAN, STD)])

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return len(images)

        def __getitem__(self, index):
            return transform(images[index]), labels[index]

    loader = torch.utils.data.DataLoader(Samples(), BATCH, shuffle=True, num_workers=threads,
                                         persistent_workers=True, prefetch_factor=4)
    return lambda: sum(len(batch) for batch, _ in loader)


def whole_batch(images, labels, threads):
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    padded = torch.nn.functional.pad((images / 255 - mean) / std, (PADDING,) * 4, "reflect")

    def batch_of(chosen):
        batch = padded[chosen]
        flipped = torch.rand(len(chosen)) < 0.5
        batch[flipped] = batch[flipped].flip(3)
        shifts = torch.randint(2 * PADDING + 1, (2, len(chosen)))
        out = torch.empty(len(chosen), 3, SIZE, SIZE)
        for y in range(2 * PADDING + 1):
            for x in range(2 * PADDING + 1):
                drew = (shifts[0] == y) & (shifts[1] == x)
                out[drew] = batch[drew, :, y:y + SIZE, x:x + SIZE]
        return out, labels[chosen]

    def epoch():
        torch.set_num_threads(threads)
        return sum(len(batch_of(chosen)[0]) for chosen in torch.randperm(len(images)).split(BATCH))
    return epoch


PEERS = {"DataLoader": data_loader, "whole_batch": whole_batch}


def ours(command, source, images, threads, seconds):
    settings = ["augment.size=32", f"augment.crop=pad_reflect:{PADDING}",
                "data.cache=ram:decoded", f"train.batch={BATCH}"]
    return bench_loader(command, source, threads, seconds, "--cached", str(images), *overrides(settings))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive")
    parser.add_argument("--saturate", default="build/saturate")
    parser.add_argument("--threads", default=str(cores()))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    images, labels = read(arguments.archive)
    threads = [int(count) for count in arguments.threads.split(",")]
    found = {}
    epochs = []
    for name, peer in PEERS.items():
        for count in threads:
            epochs.append((f"{name} fp32 threads={count}", name, count, peer(images, labels, count)))
            epochs[-1][3]()  # warms up
    commit = None
    for _ in range(arguments.repeats):  # interleaved, so that a slow moment affects all of them
        for name, peer, count, epoch in epochs:
            row = {"name": name, "unit": "images/s", "peer": peer, "type": "fp32", "threads": count}
            found.setdefault(name, (row, []))[1].append(measure(epoch, arguments.seconds))
        for count in threads:
            result = ours(arguments.saturate, f"tar:{arguments.archive}", len(images), count, arguments.seconds)
            commit = result["commit"]
            for each in result["rows"]:
                kept = {key: each[key] for key in ("decode", "type", "threads")}
                row = {"name": f"saturate {each['name']}", "unit": "images/s", **kept}
                found.setdefault(row["name"], (row, []))[1].append(each["median"])
    write("cifar_peers", [with_spread(row, values) for row, values in found.values()],
          arguments.json, commit)


if __name__ == "__main__":
    main()
