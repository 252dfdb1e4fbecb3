#!/usr/bin/env python3
"""Writes numpy's files for tests/data_arrays_test.cpp, and a checksum of each sample's bytes as numpy sees them.

    tests/oracles/array_goldens.py     # needs numpy (2.4.6 made the goldens)
"""

import pathlib

import numpy as np

OUT = pathlib.Path(__file__).resolve().parents[1] / "goldens/formats"
TYPES = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64".split()


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 % 2**64
    return h


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


main()
