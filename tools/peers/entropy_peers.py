#!/usr/bin/env python3
"""Entropy decoding of baseline JPEGs on one core: saturate and libjpeg-turbo, and the whole decoding of peers.

    tools/peers/entropy_peers.py --data FOLDER [--bench build/tests/saturate_entropy_bench] [--saturate build/saturate]
        [--files 400] [--repeats 5] [--seconds 1] [--json FILE]

Each round measures all of them in random order, on --files JPEGs of FOLDER. saturate and the libjpeg-turbo that it is
built with decode only the entropy-coded coefficients. zune-jpeg and another libjpeg-turbo (both in kornia-rs) and
torchcodec offer only whole decoding, to RGB. Prints the JSON of `saturate bench`, with a row for every peer that is
installed. Install them into a separate environment, for example

    python3 -m venv build/peers
    build/peers/bin/pip install torch torchcodec kornia-rs
    build/peers/bin/python tools/peers/entropy_peers.py --data photos
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

from peer_report import ROOT, commit_of, measure, with_spread, write


def decode_by_zune():
    from kornia_rs import io

    return io.decode_image_jpeg


def decode_by_turbo():
    from kornia_rs import io

    return lambda file: io.decode_image_jpegturbo(file, "rgb")


def decode_by_torchcodec():
    import torch
    from torchcodec.decoders import decode_jpeg

    torch.set_num_threads(1)
    return decode_jpeg


PEERS = {"zune-jpeg, whole decoding": ("kornia_rs", decode_by_zune),
         "libjpeg-turbo of kornia-rs, whole decoding": ("kornia_rs", decode_by_turbo),
         "torchcodec, whole decoding": ("torchcodec", decode_by_torchcodec)}


def passes(decode, files):
    """Seconds of a pass."""
    def one_pass():
        for file in files:
            decode(file)
        return 1

    return lambda seconds: 1 / measure(one_pass, seconds)


def rows_of(times, size):
    rows = []
    for name, seconds in times.items():
        for unit, amount in (("Mpixel/s", size["pixels"]), ("MB/s", size["coded_bytes"])):
            rows.append(with_spread({"name": name, "unit": unit}, [amount / 1e6 / each for each in seconds]))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--bench", type=pathlib.Path, default=ROOT / "build/tests/saturate_entropy_bench")
    parser.add_argument("--saturate", type=pathlib.Path, default=ROOT / "build/saturate")
    parser.add_argument("--files", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--json")
    options = parser.parse_args()
    paths = sorted(path for path in options.data.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    paths = random.Random(0).sample(paths, min(options.files, len(paths)))
    if not paths:
        sys.exit(f"entropy_peers: error: there is no JPEG below {options.data}. Give a folder of photographs")
    with tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(paths):
            os.symlink(path.resolve(), os.path.join(folder, f"{number}.jpg"))

        def bench(seconds):
            said = subprocess.run([options.bench, folder, str(seconds)], check=True, capture_output=True, text=True)
            return json.loads(said.stdout)

        size = bench(0)
        if size["files"] != len(paths):
            print(f"entropy_peers: {len(paths) - size['files']} files are not baseline JPEGs", file=sys.stderr)
        files, peers = [path.read_bytes() for path in paths], {}
        for name, (package, decoder) in PEERS.items():
            if importlib.util.find_spec(package):
                peers[name] = passes(decoder(), files)
            else:
                print(f"entropy_peers: {name} is left out: pip install {package}", file=sys.stderr)
        times = {}
        for number in range(options.repeats):
            for name in random.Random(number).sample([None, *peers], len(peers) + 1):
                found = {name: peers[name](options.seconds)} if name else bench(options.seconds)["seconds"]
                for each, seconds in found.items():
                    times.setdefault(each, []).append(seconds)
    versions = {package: importlib.metadata.version(package) for package in ("kornia-rs", "torchcodec")
                if importlib.util.find_spec(package.replace("-", "_"))}
    write("entropy", rows_of(times, size), options.json, commit_of(options.saturate), versions=versions,
          files=size["files"], note=f"Load {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
