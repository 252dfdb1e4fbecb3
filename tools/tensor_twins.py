"""In Python, the models that take tensors (tokens, volumes, signals), and the U-Net of any dimensions. See
model_twins.py."""

import math

import torch
from torch import nn


def scaled(channels, width):
    """Like scaled() in src/model/factories.h."""
    return max(1, math.floor(channels * width + 0.5))


class Conv1D(nn.Module):
    """A linear layer whose weight is [in, out], as in OpenAI's and Hugging Face's GPT-2."""

    def __init__(self, inputs, outputs, deviation=0.02):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs).normal_(0, deviation))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.flatten(0, 1), self.weight).view(-1, x.size(1), self.bias.size(0))


class CausalAttention(nn.Module):
    def __init__(self, channels, heads, deviation):
        super().__init__()
        self.heads = heads
        self.c_attn = Conv1D(channels, 3 * channels)
        self.c_proj = Conv1D(channels, channels, deviation)

    def forward(self, x):
        parts = self.c_attn(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        return self.c_proj(attended.transpose(1, 2).flatten(2))


class GptLayer(nn.Module):
    def __init__(self, channels, heads, deviation):
        super().__init__()
        self.ln_1 = nn.LayerNorm(channels)
        self.attn = CausalAttention(channels, heads, deviation)
        self.ln_2 = nn.LayerNorm(channels)
        self.mlp = nn.Module()
        self.mlp.c_fc = Conv1D(channels, 4 * channels)
        self.mlp.c_proj = Conv1D(4 * channels, channels, deviation)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        hidden = nn.functional.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh")
        return x + self.mlp.c_proj(hidden)


class Gpt(nn.Module):
    """GPT-2: tokens [N, T] to logits [N, T, vocabulary]. `context`: the most tokens."""

    def __init__(self, vocabulary, context, width, layers, heads, head_channels):
        super().__init__()
        heads = scaled(heads, width)
        channels = heads * head_channels

        def table(rows):
            module = nn.Module()
            module.weight = nn.Parameter(torch.empty(rows, channels).normal_(0, 0.02))
            return module

        self.wte, self.wpe = table(vocabulary), table(context)
        deviation = 0.02 / math.sqrt(2 * layers)
        self.h = nn.ModuleList(GptLayer(channels, heads, deviation) for _ in range(layers))
        self.ln_f = nn.LayerNorm(channels)

    def forward(self, tokens):
        x = nn.functional.embedding(tokens, self.wte.weight) + self.wpe.weight[:tokens.size(1)]
        for layer in self.h:
            x = layer(x)
        return nn.functional.linear(self.ln_f(x), self.wte.weight)


def gpt(*sizes):
    """`size`: the number of tokens, or a list of it."""
    return lambda classes, size, width: Gpt(classes, size[0] if isinstance(size, list) else size, width, *sizes)


class Up(nn.Module):
    def __init__(self, channels, transposed, unit):
        super().__init__()
        self.up = transposed(2 * channels, channels, 2, stride=2)
        self.conv = nn.Sequential(unit(2 * channels, channels), unit(channels, channels))

    def forward(self, x, skipped):
        return self.conv(torch.cat([skipped, self.up(x)], 1))


class UNet(nn.Module):
    """Logits of each pixel or voxel, [N, classes, ...]. `channels`: of each level. `unit`: makes a convolution with its
    norm. `convolution`, `transposed`, `pool`: torch's, of 2 or 3 dimensions."""

    def __init__(self, inputs, channels, classes, unit, convolution, transposed, pool):
        super().__init__()
        self.pool = pool
        self.encoder = nn.ModuleList(nn.Sequential(unit(taken, made), unit(made, made))
                                     for taken, made in zip([inputs] + channels, channels))
        self.decoder = nn.ModuleList(Up(outputs, transposed, unit) for outputs in reversed(channels[:-1]))
        self.head = convolution(channels[0], classes, 1)

    def forward(self, x):
        features = [self.encoder[0](x)]
        for level in self.encoder[1:]:
            features.append(level(self.pool(features[-1], 2)))
        x = features.pop()
        for up in self.decoder:
            x = up(x, features.pop())
        return self.head(x)


class VolumeConvNorm(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv3d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm3d(outputs)

    def forward(self, x):
        return self.norm(self.conv(x)).relu()


class UNet3d(UNet):
    """`size`: the shape of a sample, [D, H, W] or [C, D, H, W]."""

    def __init__(self, classes, size, width):
        super().__init__(size[0] if len(size) == 4 else 1, [scaled(16, width) << level for level in range(4)], classes,
                         VolumeConvNorm, nn.Conv3d, nn.ConvTranspose3d, nn.functional.max_pool3d)

    def forward(self, volumes):
        return super().forward(volumes.unsqueeze(1) if volumes.dim() == 4 else volumes)


class SignalBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv1d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm1d(outputs)
        self.conv2 = nn.Conv1d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm1d(outputs)
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv1d(inputs, outputs, 1, stride, bias=False),
                                            nn.BatchNorm1d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + (self.downsample(x) if hasattr(self, "downsample") else x)).relu()


class ResNet1d(nn.Module):
    """torchvision's ResNet-18 along one dimension. `size`: the shape of a sample, [L] or [C, L]."""

    def __init__(self, classes, size, width):
        super().__init__()
        channels = scaled(64, width)
        self.conv1 = nn.Conv1d(size[0] if len(size) == 2 else 1, channels, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm1d(channels)
        for stage in range(4):
            outputs = scaled(64 << stage, width)
            layer = nn.Sequential(SignalBlock(channels, outputs, 2 if stage else 1), SignalBlock(outputs, outputs, 1))
            self.add_module(f"layer{stage + 1}", layer)
            channels = outputs
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv1d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, signals):
        x = self.bn1(self.conv1(signals.unsqueeze(1) if signals.dim() == 2 else signals)).relu()
        x = nn.functional.max_pool1d(x, 3, 2, 1)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
        return self.fc(x.mean(-1))
