"""Python twins of saturate's models: the same parameter names, shapes and mathematics.

Models that torchvision has come from there, since saturate's have its names. The others are here.
"""

import math

import torch
from torch import nn


def scaled(channels, width):
    """As scaled() of src/model/factories.h."""
    return max(1, math.floor(channels * width + 0.5))


class Mlp(nn.Module):
    def __init__(self, classes, size, width):
        super().__init__()
        self.fc1 = nn.Linear(3 * size * size, scaled(128, width))
        self.fc2 = nn.Linear(scaled(128, width), classes)

    def forward(self, images):
        return self.fc2(self.fc1(images.flatten(1)).relu())


class ConvNorm(nn.Module):
    """relu(BatchNorm(convolution)), pooled in between where asked."""

    def __init__(self, inputs, outputs, pool=False):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.pool = pool

    def forward(self, x):
        y = self.conv(x)
        if self.pool:
            y = nn.functional.max_pool2d(y, 2)
        return self.norm(y).relu()


class SimpleCnn(nn.Module):
    def __init__(self, classes, size, width):
        super().__init__()
        self.conv1 = ConvNorm(3, scaled(32, width))
        self.conv2 = ConvNorm(scaled(32, width), scaled(64, width))
        self.conv3 = ConvNorm(scaled(64, width), scaled(128, width))
        self.fc = nn.Linear(scaled(128, width), classes)

    def forward(self, images):
        x = nn.functional.max_pool2d(self.conv1(images), 2)
        x = nn.functional.max_pool2d(self.conv2(x), 2)
        return self.fc(self.conv3(x).mean((2, 3)))


class ResNet9(nn.Module):
    def __init__(self, classes, size, width):
        super().__init__()
        width1, width2 = scaled(64, width), scaled(256, width)
        self.register_buffer("stem_weight", torch.randn(24, 3, 2, 2) * 0.1)
        self.stem_bias = nn.Parameter(torch.zeros(24))
        self.conv1 = ConvNorm(24, width1, pool=True)
        self.residual1 = ConvNorm(width1, width1)
        self.conv2 = ConvNorm(width1, width2, pool=True)
        self.residual2 = ConvNorm(width2, width2)
        self.conv3 = ConvNorm(width2, width2, pool=True)
        self.residual3a = ConvNorm(width2, width2)
        self.residual3b = ConvNorm(width2, width2)
        self.fc = nn.Linear(width2, classes, bias=False)

    def forward(self, images):
        x = nn.functional.conv2d(images, self.stem_weight, self.stem_bias).relu()
        x = self.conv1(x)
        x = x + self.residual1(x)
        x = self.conv2(x)
        x = x + self.residual2(x)
        x = self.conv3(x)
        x = x + self.residual3b(self.residual3a(x))
        return self.fc(x.amax((2, 3))) * 0.125


TWINS = {"mlp": Mlp, "simple_cnn": SimpleCnn, "resnet9": ResNet9}


def make_twin(name, classes, size, width):
    """The model of that name; raises LookupError, saying why, where there is none."""
    if name in TWINS:
        return TWINS[name](classes, size, width)
    try:
        from torchvision import models
    except ImportError:
        raise LookupError(f"{name} comes from torchvision, which this Python lacks") from None
    if name not in models.list_models(module=models):
        raise LookupError(f"there is no Python twin of {name}")
    if width != 1:
        raise LookupError(f"torchvision's {name} has no model.width of {width}")
    sized = {"image_size": size} if name.startswith("vit_") else {}
    return getattr(models, name)(weights=None, num_classes=classes, **sized)
