"""Writes tests/goldens/weights: files of weights and programs as Python's torch makes them.

Run: python tests/oracles/weights_goldens.py   (torch 2.11)
"""

import collections
import pathlib
import sys

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
    """Every type, and every way in which a tensor can lie in its memory; the values are 0, 1, 2, ..."""
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


OUT.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
torch.save(all_kinds(), OUT / "all_kinds.pt")
torch.save(all_kinds(), OUT / "legacy.pt", _use_new_zipfile_serialization=False)
torch.save(all_kinds(), OUT / "protocol4.pt", pickle_protocol=4)
state = small_model().state_dict()
torch.save(state, OUT / "simple_cnn.pt")
torch.save({"epoch": 3, "lr": 0.1, "best": torch.tensor(0.5), "none": None, "name": "x",
            "history": [1, 2.5, (True, -4)], "large": 1 << 80,
            "state_dict": {"module." + key: value for key, value in state.items()}},
           OUT / "training.pt")
torch.save({"fc.weight": torch.zeros(2), "trap": Harmful()}, OUT / "harmful.pt")
torch.save({"fc.weight": torch.zeros(2), "trap": Harmful()}, OUT / "harmful_legacy.pt",
           _use_new_zipfile_serialization=False)
torch.save(small_model(), OUT / "whole_module.pt")
torch.save([torch.zeros(2)], OUT / "list.pt")
scripts()
