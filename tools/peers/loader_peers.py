#!/usr/bin/env python3
"""Other loaders and saturate's on the same photographs, interleaved.

    tools/peers/loader_peers.py FOLDER [--saturate build/saturate] [--threads 1,2]
        [--only NAME,...] [--source URI,...] [--repeats 5] [--json FILE]

Each crops at random and resizes to 224 pixels, flips and normalises to fp32. --source adds files that
`saturate data pack` made of the same photographs. Prints the JSON of `saturate bench`, with a row
for every peer that works, and on stderr why others do not. Install the peers into a separate
environment, for example

    python3 -m venv build/peers
    build/peers/bin/pip install torch torchvision torchcodec pillow nvidia-dali-cuda130 spdl ffcv webdataset litdata

TorchCodec decodes images from version 0.16 on (tried: 0.17.0), without FFmpeg. SPDL needs FFmpeg's
libraries (Debian: libavdevice59, libavfilter8). FFCV is built from source, which needs OpenCV and
libjpeg-turbo (Debian: libopencv-dev, libturbojpeg0-dev); it reads a file in its own format with
re-encoded photographs (quality 90), which is written at first use.
"""

import argparse
import importlib.metadata
import os
import pathlib
import shutil
import sys
import tempfile
import zlib

import store_formats
import store_worker
from peer_report import bench_loader, measure, with_spread, write
from store_worker import BATCH, MEAN, SIZE, STD


class Files:
    """Paths and labels, in the order of torchvision's ImageFolder."""

    def __init__(self, root):
        self.root = root
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.items = [(str(path), label) for label, name in enumerate(classes)
                      for path in sorted((pathlib.Path(root) / name).rglob("*"))
                      if path.suffix.lower() in (".jpg", ".jpeg", ".png")]

    def checksum(self):
        return zlib.crc32(repr((os.path.realpath(self.root), self.items)).encode())


def torch_loader(decode, files, threads):
    """DataLoader with `threads` worker processes."""
    import torch
    import torchvision.transforms.v2 as v2

    transform = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip(),
                            v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])

    class Dataset(torch.utils.data.Dataset):
        def __len__(self):
            return len(files.items)

        def __getitem__(self, index):
            path, label = files.items[index]
            return transform(decode(path)), label

    loader = store_worker.torch_loader(Dataset(), threads, shuffle=True, persistent_workers=True, prefetch_factor=4)
    return lambda: sum(len(labels) for _, labels in loader)


def torchvision_io(files, threads):
    import torchvision.io as io
    return torch_loader(lambda path: io.decode_image(path, mode=io.ImageReadMode.RGB), files,
                        threads)


def torchcodec(files, threads):
    """The decoder that is to replace torchvision's, whose pixels are the same."""
    from torchcodec.decoders import decode_image
    return torch_loader(lambda path: decode_image(path, mode="RGB"), files, threads)


def pillow(files, threads):
    from PIL import Image
    import torchvision.transforms.v2.functional as functional
    return torch_loader(lambda path: functional.pil_to_tensor(Image.open(path).convert("RGB")),
                        files, threads)


def dali(files, threads):
    """The CPU backend, with fused decoding of a random crop."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=threads, device_id=None, prefetch_queue_depth=4)
    def pipeline():
        data, labels = fn.readers.file(files=[path for path, _ in files.items],
                                       labels=[label for _, label in files.items],
                                       random_shuffle=True, name="reader")
        images = fn.decoders.image_random_crop(data, device="cpu", output_type=types.RGB,
                                               random_area=[0.08, 1.0],
                                               random_aspect_ratio=[3 / 4, 4 / 3])
        images = fn.resize(images, resize_x=SIZE, resize_y=SIZE,
                           interp_type=types.INTERP_TRIANGULAR)
        images = fn.crop_mirror_normalize(images, dtype=types.FLOAT, output_layout="HWC",
                                          mean=[255 * m for m in MEAN], std=[255 * s for s in STD],
                                          mirror=fn.random.coin_flip())
        return images, labels

    pipe = pipeline()
    pipe.build()
    batches = len(files.items) // BATCH

    def epoch():
        for _ in range(batches):
            pipe.run()
        return batches * BATCH
    return epoch


def spdl(files, threads):
    """Threads of one process; FFmpeg's filters decode, crop and resize."""
    import random

    import numpy
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    mean, std = numpy.float32(MEAN) * 255, numpy.float32(STD) * 255

    def load(path):
        side = random.uniform(0.08, 1) ** 0.5
        crop = f"crop=iw*{side}:ih*{side}:(iw-ow)*{random.random()}:(ih-oh)*{random.random()}"
        flip = ",hflip" if random.random() < 0.5 else ""
        frames = spdl.io.decode_packets(
            spdl.io.demux_image(path),
            filter_desc=f"{crop},scale={SIZE}:{SIZE}:flags=bilinear{flip},format=rgb24")
        pixels = spdl.io.to_numpy(spdl.io.convert_frames(frames))
        return (pixels.astype(numpy.float32) - mean) / std

    def epoch():
        builder = PipelineBuilder().add_source([path for path, _ in files.items])
        builder = builder.pipe(load, concurrency=threads).aggregate(BATCH).pipe(numpy.stack)
        pipeline = builder.add_sink(4).build(num_threads=threads)
        with pipeline.auto_stop():
            return sum(len(batch) for batch in pipeline)
    return epoch


def ffcv_file(files, threads, name, settings):
    """A file in FFCV's format with all photographs, written at first use."""
    from PIL import Image
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    class Photographs:
        def __len__(self):
            return len(files.items)

        def __getitem__(self, index):
            path, label = files.items[index]
            return Image.open(path).convert("RGB"), label

    beton = pathlib.Path(tempfile.gettempdir()) / f"{name}-{files.checksum():08x}.beton"
    if not beton.exists():
        fields = {"image": RGBImageField(**settings), "label": IntField()}
        partial = beton.with_suffix(".partial")  # so that an interrupted write leaves no incomplete .beton
        DatasetWriter(str(partial), fields, num_workers=threads).from_indexed_dataset(Photographs())
        partial.rename(beton)
    return str(beton)


def ffcv_epoch(beton, threads, floats):
    import numpy
    import ffcv.transforms as transforms
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption

    image = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), transforms.RandomHorizontalFlip()]
    if floats:
        image.append(transforms.NormalizeImage(255 * numpy.float64(MEAN), 255 * numpy.float64(STD),
                                               numpy.float32))
    loader = Loader(beton, batch_size=BATCH, num_workers=threads, order=OrderOption.RANDOM,
                    drop_last=False, os_cache=True, pipelines={"image": image, "label": None})
    return lambda: sum(len(batch[0]) for batch in loader)


def ffcv(files, threads):
    """JPEG of quality 90, chroma at half resolution."""
    beton = ffcv_file(files, threads, "ffcv", {"write_mode": "jpg", "jpeg_quality": 90})
    return ffcv_epoch(beton, threads, floats=True)


def ffcv_half_raw(files, threads):
    """Images of at most 500 pixels a side, half of them raw, half JPEG of quality 90."""
    settings = {"write_mode": "proportion", "max_resolution": 500, "compress_probability": 0.5,
                "jpeg_quality": 90}
    return ffcv_epoch(ffcv_file(files, threads, "ffcv-half-raw", settings), threads, floats=True)


def ffcv_raw_uint8(files, threads):
    """Raw pixels; batches stay uint8."""
    beton = ffcv_file(files, threads, "ffcv-raw", {"write_mode": "raw"})
    return ffcv_epoch(beton, threads, floats=False)


def in_shards(files, form, threads):
    """A folder of shards of another loader's format with all photographs, which are JPEGs, written at first use."""
    shards = max(8, threads)  # each worker needs one
    out = pathlib.Path(tempfile.gettempdir()) / f"{form}-{shards}-{files.checksum():08x}"
    if not out.exists():
        partial = out.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        items = [(pathlib.Path(path), label) for path, label in files.items]
        getattr(store_formats, f"write_{form}")(items, partial, shards, None)
        partial.rename(out)
    return out


def webdataset(files, threads):
    """Tars, decoded by torchvision."""
    import webdataset as wds

    shards = sorted(map(str, in_shards(files, "tar", threads).glob("*.tar")))
    dataset = wds.WebDataset(shards, shardshuffle=len(shards)).shuffle(256).to_tuple("jpg", "cls")
    loader = store_worker.torch_loader(dataset.map_tuple(store_worker.augmentation(), int), threads,
                                       persistent_workers=True, prefetch_factor=4)
    return lambda: sum(len(labels) for _, labels in loader)


def litdata(files, threads):
    """Its own chunks, decoded by torchvision."""
    import litdata

    augmented = store_worker.augmentation()

    class Photographs(litdata.StreamingDataset):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            return augmented(sample["jpg"]), sample["label"]

    dataset = Photographs(str(in_shards(files, "litdata", threads)), shuffle=True)
    loader = litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=threads, persistent_workers=True,
                                         prefetch_factor=4, worker_init_fn=store_worker.one_thread)
    return lambda: sum(len(labels) for _, labels in loader)


def saturate_python(files, threads):
    """saturate's Python package (`pip install ./python`)."""
    import saturate

    loader = saturate.Loader(f"folder:{files.root}", batch=BATCH, size=SIZE, crop="random_resized",
                             threads=threads, decode="fast", to="torch")
    return lambda: sum(len(labels) for _, labels in loader)


def saturate_own(files, threads):
    """The same, on a dataset in Python whose items are (bytes of a file, several labels)."""
    import saturate

    class Dataset:
        def __len__(self):
            return len(files.items)

        def __getitem__(self, index):
            path, label = files.items[index]
            return pathlib.Path(path).read_bytes(), [label, index]

    loader = saturate.Loader(Dataset(), target="labels", batch=BATCH, size=SIZE, crop="random_resized",
                             threads=threads, decode="fast", to="torch")
    return lambda: sum(len(labels) for _, labels in loader)


PEERS = {peer.__name__: peer for peer in (torchvision_io, torchcodec, pillow, dali, spdl, webdataset, litdata, ffcv,
                                          ffcv_half_raw, ffcv_raw_uint8, saturate_python, saturate_own)}
PACKAGES = ("torch", "pillow", "nvidia-dali", "spdl", "webdataset", "litdata", "ffcv")  # how their names begin


class Saturate:
    """`saturate bench loader` on one source; each run is a separate process with a warm-up."""

    def __init__(self, command, source, threads):
        self.command, self.source, self.threads, self.rows = command, source, threads, {}

    def measure(self, seconds):
        result = bench_loader(self.command, self.source, self.threads, seconds, "--set", f"train.batch={BATCH}")
        for row in result["rows"]:
            scheme, path = self.source.split(":", 1)
            source = f"{scheme}:{pathlib.Path(path).name}"  # without the folder, which differs between machines
            name = f"saturate {source} {row['name']}"
            kept = {key: row[key] for key in ("decode", "type", "threads")}
            fresh = {"name": name, "unit": "images/s", "source": source, **kept}
            self.rows.setdefault(name, (fresh, []))[1].append(row["median"])
        return result


def build(names, files, threads):
    """(row, epoch) of every peer that works, after one epoch of warm-up."""
    built = []
    for name in names:
        for count in threads:
            try:
                epoch = PEERS[name](files, count)
                if epoch() < len(files.items) // BATCH * BATCH:
                    raise RuntimeError("images are missing from its epoch")
            except Exception as error:  # a missing or broken peer is not measured
                print(f"{name} threads={count}: skipped: {type(error).__name__}: {error}",
                      file=sys.stderr)
                continue
            kind = "uint8" if name.endswith("uint8") else "fp32"
            row = {"name": f"{name} {kind} threads={count}", "unit": "images/s", "peer": name,
                   "type": kind, "threads": count}
            built.append((row, epoch))
    return built


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--saturate", default="build/saturate")
    parser.add_argument("--source", default="", help="more of saturate's sources, such as shard:FILE")
    parser.add_argument("--threads", default=str(len(os.sched_getaffinity(0))))
    parser.add_argument("--only", default=",".join(PEERS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    threads = [int(count) for count in arguments.threads.split(",")]
    built = build(arguments.only.split(","), Files(arguments.folder), threads)
    sources = [f"folder:{arguments.folder}"] + [name for name in arguments.source.split(",") if name]
    ours = [Saturate(arguments.saturate, source, count) for source in sources for count in threads]
    values = [[] for _ in built]
    commit = None
    for _ in range(arguments.repeats):  # interleaved, so that a slow moment affects all of them
        for (_, epoch), found in zip(built, values):
            found.append(measure(epoch, arguments.seconds))
        for each in ours:
            commit = each.measure(arguments.seconds)["commit"]
    rows = [with_spread(row, found) for (row, _), found in zip(built, values)]
    rows += [with_spread(row, found) for each in ours for row, found in each.rows.values()]
    versions = {name.lower(): each.version for each in importlib.metadata.distributions()
                if (name := each.name) and name.lower().startswith(PACKAGES) and name.lower() != "torchmetrics"}
    write("loader_peers", rows, arguments.json, commit, versions=versions)


if __name__ == "__main__":
    main()
