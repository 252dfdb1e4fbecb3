"""Writes tests/goldens/model/volumes.json: unet3d and resnet18_1d in Python.

Run: python tests/oracles/volume_model_goldens.py   (torch 2.11)
"""

import json
import pathlib
import sys

import torch

from formula import fill, symmetric

ROOT = pathlib.Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "tools"))
from model_twins import make_twin  # noqa: E402

CLASSES, WIDTH, COUNT = 3, 0.25, 2
# By model, the shapes of a sample: the first is trained.
SHAPES = {"unet3d": [(2, 8, 16, 24), (8, 8, 8)], "resnet18_1d": [(2, 100), (64,)]}


def short(values):
    if isinstance(values, list):
        return [short(value) for value in values]
    return float(f"{values:.9g}")


def case(name, shape):
    torch.manual_seed(0)
    initial = {key: short([tensor.flatten()[0].item(), tensor.flatten()[:64].double().sum().item()])
               for key, tensor in make_twin(name, CLASSES, shape, WIDTH).named_parameters()}
    model = make_twin(name, CLASSES, shape, WIDTH)
    for key, tensor in model.state_dict().items():
        fill(key, tensor)
    inputs = symmetric("input", (COUNT, *shape), 2)
    with torch.no_grad():
        logits = model.eval()(inputs)
    golden = {"shape": shape, "initial": initial, "logits_shape": list(logits.shape),
              "logits": short(logits.flatten()[:2000].tolist()),
              "state_dict": [[key, list(tensor.shape)] for key, tensor in model.state_dict().items()]}
    model.double().train()
    outputs = model(inputs.double())
    labels = torch.arange(outputs[:, 0].numel()).reshape(outputs[:, 0].shape) % CLASSES
    if labels.dim() > 1:
        labels[:, 1] = -100
    loss = torch.nn.functional.cross_entropy(outputs, labels)
    loss.backward()
    golden["loss"] = short(loss.item())
    golden["gradients"] = {key: short(tensor.grad.norm().item()) for key, tensor in model.named_parameters()}
    golden["buffers"] = {key: short(tensor.double().norm().item()) for key, tensor in model.named_buffers()}
    return golden


golden = {name: [case(name, shape) for shape in shapes] for name, shapes in SHAPES.items()}
(ROOT / "tests/goldens/model/volumes.json").write_text(json.dumps(golden) + "\n")
