#!/usr/bin/env python3
"""Writes numpy's files for tests/data_arrays_test.cpp, and a checksum of each sample's bytes as numpy sees them; and
tensors.npz with the shard of its samples, only from docs/shard_format.md; and sequences, padded in batches.

    tests/oracles/array_goldens.py     # needs numpy (2.4.6 made the goldens)
"""

import gzip
import pathlib
import struct
import zlib

import numpy as np

OUT = pathlib.Path(__file__).resolve().parents[1] / "goldens/formats"
TYPES = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64".split()


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 % 2**64
    return h


def write_shard(arrays, targets, volumes, classes):
    def seal(block):
        block = block.ljust(60, b"\0")
        return block + struct.pack("<I", zlib.crc32(block))

    def sized(text):
        return struct.pack("<I", len(text)) + text.encode()

    out = bytearray(seal(b"SATSHARD" + struct.pack("<I", 3)).ljust(4096, b"\0"))
    records, names = b"", ""
    for i in range(len(arrays["y"])):
        data = b"".join(array[i].tobytes() for array in arrays.values())
        out += b"\0" * (-len(out) % 64)
        names += str(i)
        records += struct.pack("<QIIIHHIIQ", len(out), len(data), zlib.crc32(data), arrays["y"][i], 4, 0, 0, 0,
                               len(names))
        out += data
    out += b"\0" * (-len(out) % 4096)
    fields = b""
    for name, array in arrays.items():
        flags = (name in targets) + 2 * (name in volumes)
        values = len(classes) if name in targets else 0
        shape = array.shape[1:]
        fields += sized(name) + sized(array.dtype.name)
        fields += struct.pack(f"<IQI{len(shape)}Q", flags, values, len(shape), *shape) + sized("")
    index = records + b"".join(map(sized, classes)) + fields + sized("") + names.encode()
    trailer = struct.pack("<QQQQIII", len(out) + len(index) + 64, len(out), len(index), len(arrays["y"]), len(classes),
                          zlib.crc32(index), len(arrays))
    return bytes(out) + index + seal(b"SATINDEX" + trailer)


def write_tensors():
    random = np.random.default_rng(3)
    arrays = {"x": random.normal(size=(6, 2, 3)).astype("float32"), "flag": np.arange(6) % 2 == 1,
              "v": random.integers(0, 256, (6, 3, 4, 5), "uint8"), "y": np.array([2, 0, 1, 1, 0, 2], "int32")}
    np.savez(OUT / "tensors.npz", **arrays)
    shard = write_shard(arrays, {"y"}, {"v"}, ["0", "1", "2"])
    (OUT / "tensors.shard.gz").write_bytes(gzip.compress(shard, mtime=0))


def write_sequences():
    """Samples of 1 to 13 places, and a checksum of each batch of 4, in order: x, tags and mask, padded to 8 or 16."""
    random = np.random.default_rng(9)
    lengths = np.array([3, 7, 8, 1, 9, 2, 4, 5, 13, 13, 6, 8, 2, 8], "uint16")
    x = random.normal(size=(14, 13, 3)).astype("float32")  # the padding in the file is not zero
    tags = random.integers(0, 9, (14, 13), "int64")
    np.savez(OUT / "sequences.npz", x=x, tags=tags, n=lengths, y=(np.arange(14) % 3).astype("int8"))
    lines = []
    for first in range(0, 14, 4):
        part = slice(first, min(first + 4, 14))
        longest = -(-int(lengths[part].max()) // 8) * 8
        mask = np.arange(longest) < lengths[part, None]
        padded_x, padded_tags = np.zeros((len(mask), longest, 3), x.dtype), np.zeros(mask.shape, tags.dtype)
        padded_x[mask], padded_tags[mask] = x[part, :longest][mask[:, :13]], tags[part, :longest][mask[:, :13]]
        lines.append(f"{longest}\t{fnv(padded_x.tobytes() + padded_tags.tobytes() + mask.tobytes()):016x}\n")
    (OUT / "sequences.tsv").write_text("".join(lines))


def main():
    random = np.random.default_rng(22)
    arrays = {}
    for i, name in enumerate(TYPES):
        values = random.integers(-9, 100, (4, *[(), (3,), (2, 3), (2, 1, 2)][i % 4]))
        arrays[name] = (values > 40) if name == "bool" else values.astype(name)
    stored = {name: np.asarray(array.astype(array.dtype.newbyteorder("<>"[i % 2])), order="CF"[i // 2 % 2])
              for i, (name, array) in enumerate(arrays.items())}
    np.savez(OUT / "arrays.npz", **stored)
    np.savez_compressed(OUT / "arrays-compressed.npz", **stored)
    np.save(OUT / "fortran-big-endian.npy", np.asfortranarray(arrays["float32"].astype(">f4")))
    lines = [f"{i}\t{fnv(b''.join(array[i].tobytes() for array in arrays.values())):016x}\n" for i in range(4)]
    (OUT / "arrays.tsv").write_text("".join(lines))
    write_tensors()
    write_sequences()


main()
