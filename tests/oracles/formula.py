"""Tensors filled by a formula that tests/formula.h computes too, so that goldens need no weights."""

import math
import zlib

import numpy as np
import torch


def uniform(name, count):
    """float64 in [0, 1), multiples of 2^-24: murmur3's finaliser over crc32(name) and the index."""
    h = (zlib.crc32(name.encode()) + np.arange(count, dtype=np.uint64) * 2654435761) & 0xFFFFFFFF
    h ^= h >> 16
    h = (h * 0x85EBCA6B) & 0xFFFFFFFF
    h ^= h >> 13
    h = (h * 0xC2B2AE35) & 0xFFFFFFFF
    h ^= h >> 16
    return (h >> 8).astype(np.float64) / 2**24


def symmetric(name, shape, scale):
    """float32 in [-scale, scale)."""
    values = (2 * uniform(name, math.prod(shape)) - 1) * scale
    return torch.from_numpy(values.astype(np.float32)).reshape(shape)


def fill(name, tensor):
    """A value for a model's parameter or buffer that keeps activations in range."""
    if tensor.dim() > 1:
        value = symmetric(name, tensor.shape, math.sqrt(6 / math.prod(tensor.shape[1:])))
    elif name.endswith("num_batches_tracked"):
        value = torch.tensor(3)
    elif name.endswith("running_var") or name.endswith("weight"):
        value = torch.from_numpy((0.5 + uniform(name, tensor.numel())).astype(np.float32))
    else:
        value = symmetric(name, tensor.shape, 0.25)
    with torch.no_grad():
        tensor.copy_(value)
