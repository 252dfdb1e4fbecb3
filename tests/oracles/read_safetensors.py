"""Reads a file that saturate wrote with Python's safetensors, and compares it with another.

Run: python tests/oracles/read_safetensors.py OURS.safetensors [EXPECTED.safetensors]
"""

import sys

import torch
from safetensors import safe_open


def read(path):
    with safe_open(path, "pt") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}


metadata, tensors = read(sys.argv[1])
for name, tensor in tensors.items():
    print(name, tensor.dtype, list(tensor.shape))
print(f"{len(tensors)} tensors, metadata {metadata}")
if len(sys.argv) > 2:
    expected_metadata, expected = read(sys.argv[2])
    assert metadata == expected_metadata, (metadata, expected_metadata)
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert tensors[name].dtype == tensor.dtype and torch.equal(tensors[name], tensor), name
    print("equal")
