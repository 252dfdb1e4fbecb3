"""Writes tests/goldens/model: torchvision's models and the other models in Python, and files of Python's
safetensors.

Run: python tests/oracles/model_goldens.py   (torch 2.11, torchvision 0.26, safetensors 0.8)
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

from formula import fill, symmetric

ROOT = pathlib.Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "tools"))
from model_twins import make_twin  # noqa: E402

OUT = ROOT / "tests" / "goldens" / "model"
CLASSES = 100
# Per model, the sizes of images, and whether gradients are compared: those of ResNet-50 and
# MobileNetV2 are mostly rounding after so many small BatchNorms.
MODELS = {
    "mlp": ((64,), True),
    "simple_cnn": ((64, 32), True),
    "resnet9": ((64, 32), True),
    "airbench": ((64, 32), True),
    "resnet18": ((64, 224), True),
    "resnet18_cifar": ((64, 32), True),
    "resnet34": ((64,), False),
    "resnet50": ((64, 224), False),
    "se_resnet18": ((64,), True),
    "mobilenet_v2": ((64, 224), False),
    "vit_tiny": ((64, 224), True),
    "vit_b_16": ((224,), False),
    "toy_cnn": ((16, 256), True),
}
# Models whose Python version initialises its weights differently.
OTHER_DRAWS = ("resnet9", "airbench")


def short(values):
    """Floats with nine digits, which identify each float32."""
    if isinstance(values, list):
        return [short(value) for value in values]
    return float(f"{values:.9g}")


def initial(make):
    """Per parameter, after manual_seed(0): the first value and the sum of the first 64."""
    torch.manual_seed(0)
    model = make()
    rows = {}
    for name, parameter in model.named_parameters():
        flat = parameter.detach().flatten()
        rows[name] = short([flat[0].item(), flat[:64].double().sum().item()])
    return rows


def filled(make):
    model = make()
    for key, tensor in model.state_dict().items():
        fill(key, tensor)
    return model


def logits(make, size):
    model = make().eval()
    images = 2 if size < 224 else 1
    with torch.no_grad():
        return short(model(symmetric("input", (images, 3, size, size), 2)).tolist())


def one_training_step(model, size):
    """Loss and, per parameter, the gradient's norm and its product with a formula-made probe. In double: float
    rounding changes these gradients by per cents, differently on each processor."""
    model.double().train()
    images = symmetric("input", (8, 3, size, size), 2).double()
    loss = torch.nn.functional.cross_entropy(model(images), torch.arange(8) * 7)
    loss.backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        gradient = parameter.grad.double()
        probe = symmetric("probe:" + name, parameter.shape, 1).double()
        gradients[name] = short([gradient.norm().item(), (gradient * probe).sum().item()])
    buffers = {name: short(buffer.double().norm().item()) for name, buffer in model.named_buffers()}
    return {"loss": short(loss.item()), "gradients": gradients, "buffers": buffers}


def model_golden(name, sizes, trained):
    def make(size=sizes[0]):
        return make_twin(name, CLASSES, size, 1)

    golden = {
        "state_dict": [[key, list(tensor.shape)] for key, tensor in make().state_dict().items()],
        "logits": {size: logits(lambda: filled(lambda: make(size)), size) for size in sizes},
    }
    if name not in OTHER_DRAWS:
        golden["initial"] = initial(make)
    if trained:
        golden["training"] = one_training_step(filled(make), sizes[0])
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
for model_name, (image_sizes, is_trained) in MODELS.items():
    model_golden(model_name, image_sizes, is_trained)
safetensors_golden()
