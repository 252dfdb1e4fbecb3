"""Writes tests/goldens/weights: weight files and programs made by Python's torch.

Run: python tests/oracles/weights_goldens.py   (torch 2.11, numpy)
"""

import argparse
import collections
import datetime
import pathlib
import sys

import numpy as np
import torch
from torch import nn

from formula import fill, symmetric

ROOT = pathlib.Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "tools"))
from model_twins import make_twin  # noqa: E402

OUT = ROOT / "tests" / "goldens" / "weights"
TYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u8": torch.uint8, "bool": torch.bool,
}


def all_kinds():
    """Every type, and every layout of a tensor in its storage; the values are 0, 1, 2, ..."""
    tensors = collections.OrderedDict()
    for name, dtype in TYPES.items():
        tensors[name] = torch.arange(6).to(dtype).reshape(2, 3)
    tensors["scalar"] = torch.tensor(7.0)
    tensors["empty"] = torch.zeros(2, 0, 3)
    whole = torch.arange(24.0).reshape(2, 3, 4)
    tensors["whole"] = whole
    tensors["transposed"] = whole.permute(2, 0, 1)
    tensors["part"] = whole[1, 1:, ::2]
    tensors["parameter"] = nn.Parameter(torch.arange(4.0))
    tensors["naïve \"名\""] = torch.arange(3.0)
    return tensors


class Harmful:
    def __reduce__(self):
        import os

        return os.system, ("touch saturate-was-here",)


class Scripted(nn.Module):
    """Dropout and BatchNorm, so that training differs from evaluation."""

    def __init__(self, classes):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.25)
        self.fc = nn.Linear(4, classes)

    def forward(self, images):
        x = self.norm(self.conv(images)).relu().mean((2, 3))
        if self.training:
            x = self.drop(x)
        return self.fc(x)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 10)

    def forward(self, images):
        logits = self.fc(images.mean((2, 3)))
        return logits, logits


def small_model():
    model = make_twin("simple_cnn", 10, 16, 0.0625)
    for key, tensor in model.state_dict().items():
        fill(key, tensor)
    return model


def scripts():
    model = Scripted(10)
    for key, tensor in model.state_dict().items():
        fill(key, tensor)
    images = symmetric("input", (2, 3, 16, 16), 2)
    torch.jit.script(model).save(OUT / "scripted.pt")
    torch.jit.trace(model.eval(), images).save(OUT / "traced.pt")
    with torch.no_grad():
        torch.save({"logits": model(images)}, OUT / "scripted_logits.pt")
    torch.jit.freeze(torch.jit.script(model.eval())).save(OUT / "frozen.pt")
    torch.jit.script(Scripted(7)).save(OUT / "seven_classes.pt")
    torch.jit.script(TwoHeads()).save(OUT / "two_heads.pt")


def compiled(state):
    """Named by torch.compile: the whole model, and a part of it."""
    return {"_orig_mod." + key.replace("conv2.", "conv2._orig_mod."): value for key, value in state.items()}


def beside(state):
    """The file of a training script: torchvision's keys, and plain values of many kinds."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    counts = collections.defaultdict(int)
    counts["a"] += 1
    plain = {
        "Counter": collections.Counter("aab"), "defaultdict": counts, "Size": torch.Size([1, 2]),
        "device": torch.device("cuda", 1), "dtype": torch.bfloat16, "set": {1, 2}, "frozenset": frozenset({3}),
        "bytes": b"1234", "bytearray": bytearray(b"12"), "complex": 1 + 2j, "range": range(3),
        "float": np.float32(0.5), "int": np.int64(3), "array": np.arange(3.0), "numpy dtype": np.dtype("f4"),
        "path": pathlib.PurePosixPath("a/b"), "time": datetime.datetime(2026, 1, 1), "deque": collections.deque([1]),
        "large": 1 << 80, "minus": -(1 << 70), "flag": False, "many": list(range(300)), "layout": torch.strided,
    }
    average = {"module." + key: value + 1 for key, value in state.items()}
    return {"model": compiled(state), "model_ema": {"n_averaged": torch.tensor(4), **average},
            "optimizer": optimizer.state_dict(), "lr_scheduler": schedule.state_dict(), "epoch": 7,
            "args": argparse.Namespace(lr=0.1, data=["a", None]), "plain": plain, "best": torch.tensor(0.5)}


def two_encoders(state):
    """The file of MoCo."""
    tensors = {"module.encoder_q." + key: value for key, value in state.items()}
    tensors.update({"module.encoder_k." + key: value + 1 for key, value in state.items()})
    return {"arch": "cnn", "state_dict": {**tensors, "module.queue": torch.zeros(4, 2)}}


def with_attributes():
    tensor, parameter = torch.arange(4.0), nn.Parameter(torch.arange(3.0))
    tensor.tag = parameter.tag = "mine"
    return {"tensor": tensor, "parameter": parameter}


OUT.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
torch.save(all_kinds(), OUT / "all_kinds.pt")
torch.save(all_kinds(), OUT / "legacy.pt", _use_new_zipfile_serialization=False)
for protocol in (1, 4, 5):
    torch.save(all_kinds(), OUT / f"protocol{protocol}.pt", pickle_protocol=protocol)
    torch.save(all_kinds(), OUT / f"legacy{protocol}.pt", pickle_protocol=protocol,
               _use_new_zipfile_serialization=False)
state = small_model().state_dict()
torch.save(state, OUT / "simple_cnn.pt")
torch.save({"epoch": 3, "lr": 0.1, "best": torch.tensor(0.5), "none": None, "name": "x",
            "history": [1, 2.5, (True, -4)], "large": 1 << 80,
            "state_dict": {"module." + key: value for key, value in state.items()}},
           OUT / "training.pt")
for protocol in (1, 2, 5):
    torch.save(beside(state), OUT / f"beside{protocol}.pt", pickle_protocol=protocol)
torch.save(beside(state), OUT / "beside_legacy.pt", pickle_protocol=4, _use_new_zipfile_serialization=False)
torch.save({"ema": {"state_dict": state}, "step": 3}, OUT / "only_ema.pt")
torch.save({"generator": state}, OUT / "generator.pt")
torch.save(two_encoders(state), OUT / "two_encoders.pt")
torch.save(with_attributes(), OUT / "attributes.pt")
torch.save({"fc.weight": torch.zeros(2), "trap": Harmful()}, OUT / "harmful.pt")
torch.save({"fc.weight": torch.zeros(2), "trap": Harmful()}, OUT / "harmful_legacy.pt",
           _use_new_zipfile_serialization=False)
torch.save(small_model(), OUT / "whole_module.pt")
torch.save([torch.zeros(2)], OUT / "list.pt")
scripts()
