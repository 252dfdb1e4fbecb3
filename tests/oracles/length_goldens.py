"""Writes tests/goldens/model/lengths.json: resnet18_1d in Python on samples of varying length.

There is neither padding nor a mask: each sample is computed at its length, and a BatchNorm takes its statistics over
the places of all samples in one row.

Run: python tests/oracles/length_goldens.py   (torch 2.15)
"""

import json
import pathlib
import sys

import torch

from formula import fill, symmetric

ROOT = pathlib.Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "tools"))
from model_twins import make_twin  # noqa: E402

CHANNELS, CLASSES, WIDTH, LONGEST, LENGTHS = 2, 3, 0.25, 40, [9, 40, 1, 33, 16]


def normed(norm, samples):  # each [1, C, its length]
    row = norm(torch.cat(samples, 2))
    return list(row.split([sample.shape[2] for sample in samples], 2))


def block(module, samples):
    y = normed(module.bn1, [module.conv1(x) for x in samples])
    y = normed(module.bn2, [module.conv2(x.relu()) for x in y])
    if hasattr(module, "downsample"):
        conv, norm = module.downsample
        samples = normed(norm, [conv(x) for x in samples])
    return [(a + b).relu() for a, b in zip(y, samples)]


def forward(model, samples):
    samples = normed(model.bn1, [model.conv1(x) for x in samples])
    samples = [torch.nn.functional.max_pool1d(x.relu(), 3, 2, 1) for x in samples]
    for layer in (model.layer1, model.layer2, model.layer3, model.layer4):
        for each in layer:
            samples = block(each, samples)
    return torch.cat([model.fc(x.mean(-1)) for x in samples])


model = make_twin("resnet18_1d", CLASSES, (CHANNELS, LONGEST), WIDTH)
for key, tensor in model.state_dict().items():
    fill(key, tensor)
model.double()
inputs = symmetric("input", (len(LENGTHS), CHANNELS, LONGEST), 2).double()
samples = [inputs[i:i + 1, :, :length] for i, length in enumerate(LENGTHS)]
golden = {"lengths": LENGTHS, "logits": forward(model.eval(), samples).tolist()}
outputs = forward(model.train(), samples)
loss = torch.nn.functional.cross_entropy(outputs, torch.arange(len(LENGTHS)) % CLASSES)
loss.backward()
golden["loss"] = loss.item()
golden["gradients"] = {key: tensor.grad.norm().item() for key, tensor in model.named_parameters()}
golden["buffers"] = {key: tensor.double().norm().item() for key, tensor in model.named_buffers()}
(ROOT / "tests/goldens/model/lengths.json").write_text(json.dumps(golden) + "\n")
