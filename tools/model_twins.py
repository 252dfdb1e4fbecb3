"""saturate's models in Python: the same parameter names, shapes and mathematics.

Models that torchvision has are taken from there: saturate's have the same names. The others are here, those that take
other tensors than images in tensor_twins.py.
"""

import functools
import importlib.util
import math
import pathlib

import torch
from torch import nn

from tensor_twins import ResNet1d, UNet, UNet3d, gpt, scaled


def sides_of(size):
    """(height, width) of images; an integer is the side of a square."""
    return (size, size) if isinstance(size, int) else tuple(size)


class Mlp(nn.Module):
    def __init__(self, classes, size, width):
        super().__init__()
        values = math.prod(size) if isinstance(size, list) else 3 * math.prod(sides_of(size))
        self.fc1 = nn.Linear(values, scaled(128, width))
        self.fc2 = nn.Linear(scaled(128, width), classes)

    def forward(self, images):
        rows = images.flatten(1) if images.dim() > 1 else images.unsqueeze(1)
        return self.fc2(self.fc1(rows if rows.is_floating_point() else rows.to(self.fc1.weight.dtype)).relu())


class ConvNorm(nn.Module):
    """activation(BatchNorm(convolution)), with `pool` after the convolution; `norm`: arguments of BatchNorm."""

    def __init__(self, inputs, outputs, pool=False, activation=torch.relu, **norm):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs, **norm)
        self.pool = pool
        self.activation = activation

    def forward(self, x):
        y = self.conv(x)
        if self.pool:
            y = nn.functional.max_pool2d(y, 2)
        return self.activation(self.norm(y))


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


class Airbench(nn.Module):
    def __init__(self, classes, size, width):
        super().__init__()
        width1, width2 = scaled(64, width), scaled(256, width)
        self.register_buffer("stem_weight", torch.randn(24, 3, 2, 2) * 0.1)
        self.stem_bias = nn.Parameter(torch.zeros(24))
        for i, (inputs, outputs) in enumerate(((24, width1), (width1, width2), (width2, width2)), 1):
            for suffix, channels in ("a", inputs), ("b", outputs):
                layer = ConvNorm(channels, outputs, pool=suffix == "a", activation=nn.functional.gelu,
                                 eps=1e-12, momentum=0.4)
                layer.norm.weight.requires_grad_(False)
                self.add_module(f"group{i}{suffix}", layer)
        self.fc = nn.Linear(width2, classes, bias=False)

    def forward(self, images):
        x = nn.functional.gelu(nn.functional.conv2d(images, self.stem_weight, self.stem_bias))
        for group in (self.group1a, self.group1b, self.group2a, self.group2b, self.group3a, self.group3b):
            x = group(x)
        return self.fc(x.amax((2, 3))) / 9


class ToyCnn(nn.Sequential):
    def __init__(self, classes, size, width):
        channels = scaled(16, width)
        layers = [nn.Conv2d(3, channels, 1), nn.ReLU()]
        while size > 1:
            layers += [nn.Conv2d(channels, channels * 2, 2, stride=2), nn.ReLU()]
            channels, size = channels * 2, size // 2
        layers[-1] = nn.Flatten()
        super().__init__(*layers, nn.Linear(channels, classes))


def unet(classes, size, width):
    return UNet(3, [scaled(64, width) << level for level in range(5)], classes, ConvNorm, nn.Conv2d,
                nn.ConvTranspose2d, nn.functional.max_pool2d)


class ToySeg(nn.Module):
    """Logits of each pixel, [N, classes, H, W]."""

    def __init__(self, classes, size, width):
        super().__init__()
        channels = scaled(16, width)
        down, up = [nn.Conv2d(3, channels, 1), nn.ReLU()], []
        for _ in range(3):
            down += [nn.Conv2d(channels, channels * 2, 2, stride=2), nn.ReLU()]
            channels *= 2
        self.encoder = nn.Sequential(*down)
        for _ in range(3):
            up += [nn.ConvTranspose2d(channels, channels // 2, 2, stride=2), nn.ReLU()]
            channels //= 2
        self.decoder = nn.Sequential(*up, nn.Conv2d(channels, classes, 1))

    def forward(self, images):
        return self.decoder(self.encoder(images))


def se_resnet18(classes, size, width):
    from torchvision.models.resnet import BasicBlock, ResNet

    class SqueezeExcite(nn.Module):
        def __init__(self, channels):
            super().__init__()
            hidden = max(1, channels // 16)
            self.fc = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(),
                                    nn.Linear(hidden, channels), nn.Sigmoid())

        def forward(self, x):
            return x * self.fc(x.mean((2, 3)))[:, :, None, None]

    class Block(BasicBlock):
        def __init__(self, inputs, channels, *args, **kwargs):
            super().__init__(inputs, channels, *args, **kwargs)
            self.se = SqueezeExcite(channels)

        def forward(self, x):
            y = self.bn1(self.conv1(x)).relu()
            y = self.se(self.bn2(self.conv2(y)))
            return (y + (x if self.downsample is None else self.downsample(x))).relu()

    return ResNet(Block, [2, 2, 2, 2], num_classes=classes)


def resnet18_cifar(classes, size, width):
    from torchvision.models.resnet import BasicBlock, ResNet

    class CifarResNet(ResNet):
        """torchvision's ResNet, made in the same order, so that the same seed draws the same weights."""

        def __init__(self):
            nn.Module.__init__(self)
            self._norm_layer, self.inplanes, self.dilation = nn.BatchNorm2d, 64, 1
            self.groups, self.base_width = 1, 64
            self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
            self.bn1, self.relu, self.maxpool = nn.BatchNorm2d(64), nn.ReLU(), nn.Identity()
            self.layer1 = self._make_layer(BasicBlock, 64, 2)
            self.layer2 = self._make_layer(BasicBlock, 128, 2, stride=2)
            self.layer3 = self._make_layer(BasicBlock, 256, 2, stride=2)
            self.layer4 = self._make_layer(BasicBlock, 512, 2, stride=2)
            self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(512, classes)
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    return CifarResNet()


def transformer(heads, classes, size, width):
    from torchvision.models import VisionTransformer

    heads = scaled(heads, width)
    return VisionTransformer(size, patch_size=16, num_layers=12, num_heads=heads,
                             hidden_dim=64 * heads, mlp_dim=256 * heads, num_classes=classes)


def mobilenet_v2(classes, size, width, dropout=0.2):
    from torchvision.models import MobileNetV2

    return MobileNetV2(num_classes=classes, width_mult=width, dropout=dropout)


TWINS = {"mlp": Mlp, "simple_cnn": SimpleCnn, "resnet9": ResNet9, "airbench": Airbench,
         "toy_cnn": ToyCnn, "unet": unet, "toy_seg": ToySeg, "gpt_tiny": gpt(2, 2, 32), "gpt_micro": gpt(4, 4, 32),
         "gpt_mini": gpt(6, 6, 64), "gpt2": gpt(12, 12, 64), "unet3d": UNet3d, "resnet18_1d": ResNet1d}
# Built from torchvision's parts.
BUILT = {"se_resnet18": se_resnet18, "resnet18_cifar": resnet18_cifar,
         "vit_tiny": functools.partial(transformer, 3), "vit_b_16": functools.partial(transformer, 12),
         "mobilenet_v2": mobilenet_v2}
ONE_WIDTH = ("se_resnet18", "resnet18_cifar")


def make_twin(name, classes, size, width, **options):
    """The model of that name; raises LookupError with the reason if there is none. `size`: the side of square images,
    (height, width), or of tensors the shape of a sample, a list. `options`: other keys of [model] that affect training,
    which is dropout."""
    if name in TWINS:
        return TWINS[name](classes, size, width)
    try:
        from torchvision import models
    except ImportError:
        raise LookupError(f"{name} comes from torchvision, which this Python lacks") from None
    if name not in BUILT and name not in models.list_models(module=models):
        raise LookupError(f"{name} has no model in Python")
    if width != 1 and (name in ONE_WIDTH or name not in BUILT):
        raise LookupError(f"torchvision's {name} has only one width, and model.width is {width}")
    if name == "mobilenet_v2":
        return mobilenet_v2(classes, size, width, **options)
    if name in BUILT:
        return BUILT[name](classes, size, width)
    return getattr(models, name)(weights=None, num_classes=classes)


def make_users_module(given, classes, size, width):
    """The module of FACTORY(classes, size, width) in FILE.py, `given` as FILE.py:FACTORY; raises LookupError with the
    reason if there is none."""
    path, _, factory = given.rpartition(":")
    if not pathlib.Path(path).is_file():
        raise LookupError(f"--module {given}: there is no file {path!r}")
    spec = importlib.util.spec_from_file_location("user_module", path)
    user = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(user)
    if not hasattr(user, factory):
        raise LookupError(f"--module {given}: {path} has no {factory}")
    return getattr(user, factory)(classes, size, width)


def loss_twin(recipe):
    """(outputs, labels) to a scalar, as Task::mean_loss() of src/task."""
    functional, train = nn.functional, recipe["train"]

    def of_classes(outputs, labels):
        return functional.cross_entropy(outputs, labels, label_smoothing=train["label_smoothing"])

    def of_places(outputs, labels):
        total = functional.cross_entropy(outputs, labels, reduction="sum", label_smoothing=train["label_smoothing"])
        return total / labels.ge(0).sum().clamp_min(1)

    def of_tokens(outputs, labels):
        return of_places(outputs.flatten(0, 1), labels.flatten())

    def of_values(function):
        return lambda outputs, labels: function(outputs.reshape(labels.shape), labels.to(outputs.dtype))

    values = {"mse": functional.mse_loss, "l1": functional.l1_loss, "huber": functional.huber_loss}
    return {"classify": of_classes, "segment": of_places, "language": of_tokens,
            "regress": of_values(values[train["loss"]]),
            "multilabel": of_values(functional.binary_cross_entropy_with_logits)}[train["task"]]
