"""Runs a program of torch.export, and fails unless it computes the expected logits.

Run: python tests/oracles/run_pt2.py MODEL.pt2 EXPECTED.safetensors NAME
NAME is the model's; the tensors are "images1", "logits1", "images3", "logits3".
"""

import pathlib
import sys

import torch

sys.path.append(str(pathlib.Path(__file__).parent.parent.parent / "tools"))
from export_pt2 import read_safetensors  # noqa: E402

extra = {"saturate.json": ""}
module = torch.export.load(sys.argv[1], extra_files=extra).module()
assert f'"{sys.argv[3]}"' in extra["saturate.json"], extra
tensors, _ = read_safetensors(torch, sys.argv[2])
for count in "1", "3":
    expected = tensors["logits" + count]
    with torch.no_grad():
        logits = module(tensors["images" + count])
    assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max(), count
