"""Writes tests/goldens/model: torchvision's ResNets, and files by Python's safetensors.

Run: python tests/oracles/model_goldens.py   (torch 2.11, torchvision 0.26, safetensors 0.8)
"""

import json
import pathlib

import torch
import torchvision
from safetensors.torch import save_file

from formula import fill, symmetric

OUT = pathlib.Path(__file__).parent.parent / "goldens" / "model"
CLASSES = 100


def initial(make):
    """Per parameter, after manual_seed(0): the first value and the sum of the first 64."""
    torch.manual_seed(0)
    model = make(num_classes=CLASSES)
    rows = {}
    for name, parameter in model.named_parameters():
        flat = parameter.detach().flatten()
        rows[name] = [flat[0].item(), flat[:64].double().sum().item()]
    return rows


def logits(model):
    model.eval()
    rows = {}
    with torch.no_grad():
        for images, size in ((2, 64), (1, 224)):
            rows[str(size)] = model(symmetric("input", (images, 3, size, size), 2)).tolist()
    return rows


def one_training_step(model):
    """Loss and, per parameter, the gradient's norm and its product with a formula-made probe."""
    model.train()
    images = symmetric("input", (8, 3, 64, 64), 2)
    loss = torch.nn.functional.cross_entropy(model(images), torch.arange(8) * 7)
    loss.backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad.double()
        probe = symmetric("probe:" + name, parameter.shape, 1).double()
        gradients[name] = [gradient.norm().item(), (gradient * probe).sum().item()]
    buffers = {name: buffer.double().norm().item() for name, buffer in model.named_buffers()}
    return {"loss": loss.item(), "gradients": gradients, "buffers": buffers}


def resnet_golden(name):
    make = getattr(torchvision.models, name)
    model = make(num_classes=CLASSES)
    state = model.state_dict()
    for key, tensor in state.items():
        fill(key, tensor)
    golden = {
        "state_dict": [[key, list(tensor.shape)] for key, tensor in state.items()],
        "initial": initial(make),
        "logits": logits(model),
    }
    if name == "resnet18":  # ResNet-50's are mostly rounding after this many small BatchNorms
        golden["training"] = one_training_step(model)
    (OUT / f"{name}.json").write_text(json.dumps(golden, indent=None) + "\n")


def safetensors_golden():
    """Every type, odd sizes, no dimensions, no elements; the values are 0, 1, 2, ..."""
    types = {
        "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
        "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
        "u8": torch.uint8, "bool": torch.bool,
    }
    tensors = {}
    for name, dtype in types.items():
        tensors[name] = torch.arange(15).to(dtype).reshape(3, 5)
        tensors[name + ".scalar"] = torch.tensor(1).to(dtype)
        tensors[name + ".empty"] = torch.zeros((2, 0, 3), dtype=dtype)
    tensors["naïve \"名\""] = torch.arange(3, dtype=torch.float32)
    save_file(tensors, OUT / "all_types.safetensors", metadata={"format": "pt"})
    save_file({}, OUT / "no_tensors.safetensors")


OUT.mkdir(parents=True, exist_ok=True)
for model_name in ("resnet18", "resnet50"):
    resnet_golden(model_name)
safetensors_golden()
