"""One Python training loop, for step_peers.py: reads seconds from stdin, one line per measurement, trains
for so long, and prints images (rows, of a language model tokens) and seconds.

    step_worker.py MODEL OPTIMIZER VARIANT FEED IMAGES.idx LABELS.idx SIZE BATCH THREADS
    step_worker.py table OPTIMIZER VARIANT FEED X.npy Y.npy INPUTS BATCH THREADS
    step_worker.py gpt_tiny|gpt_mini|gpt2 OPTIMIZER VARIANT FEED TOKENS.bin VOCABULARY CONTEXT BATCH THREADS
"""

import itertools
import os
import sys
import time

import torch
from torch import nn

CLASSES = 10


class SimpleCnn(nn.Module):
    """saturate's simple_cnn."""

    def __init__(self):
        super().__init__()

        def unit(inputs, outputs):
            return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                                 nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))
        self.conv1, self.conv2, self.conv3 = unit(3, 32), unit(32, 64), unit(64, 128)
        self.fc = nn.Linear(128, CLASSES)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.conv1(x), 2)
        x = nn.functional.max_pool2d(self.conv2(x), 2)
        return self.fc(self.conv3(x).mean((2, 3)))


GPT_SIZES = {"gpt_tiny": (2, 2, 64), "gpt_mini": (6, 6, 384), "gpt2": (12, 12, 768)}  # layers, heads, channels


class Block(nn.Module):
    """nanoGPT's (https://github.com/karpathy/nanoGPT, model.py), with biases and without dropout, as GPT-2."""

    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.c_attn, self.attn_proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.c_fc, self.mlp_proj = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.gelu = nn.GELU(approximate="tanh")

    def forward(self, x):
        n, t, c = x.size()
        q, k, v = (part.view(n, t, self.heads, c // self.heads).transpose(1, 2)
                   for part in self.c_attn(self.ln_1(x)).split(c, dim=2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).contiguous().view(n, t, c))
        return x + self.mlp_proj(self.gelu(self.c_fc(self.ln_2(x))))


class NanoGpt(nn.Module):
    def __init__(self, vocabulary, context, layers, heads, channels):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, channels), nn.Embedding(context, channels)
        self.h = nn.ModuleList(Block(channels, heads) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(channels), nn.Linear(channels, vocabulary, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def make_model(name, size):
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * size * size, 128), nn.ReLU(inplace=True),
                             nn.Linear(128, CLASSES))
    if name == "simple_cnn":
        return SimpleCnn()
    import torchvision
    model = torchvision.models.resnet18(num_classes=CLASSES)
    if name == "resnet18_cifar":
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return model


def make_optimizer(name, parameters):
    """An optimizer with a learning rate of 0, as in `saturate bench step`: weights and times stay the same."""
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.0, momentum=0.9, nesterov=True, weight_decay=5e-4,
                               fused=True)
    kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
    return kind(parameters, lr=0.0, weight_decay=5e-4, fused=True)


def read_dataset(images, labels, size):
    """The whole set as normalised floats [N, 3, S, S], so that the loader converts nothing."""
    with open(images, "rb") as file:
        pixels = torch.frombuffer(bytearray(file.read()[16:]), dtype=torch.uint8)
    with open(labels, "rb") as file:
        targets = torch.frombuffer(bytearray(file.read()[8:]), dtype=torch.uint8)
    grey = (pixels.view(-1, 1, size, size).float() / 255 - 0.5) / 0.25
    return torch.utils.data.TensorDataset(grey.expand(-1, 3, -1, -1).contiguous(), targets.long())


def batches(dataset, batch, feed, memory_format, workers=0):
    if feed == "premade":
        images, labels = dataset[:batch]
        yield from itertools.repeat((images.contiguous(memory_format=memory_format), labels))
    loader = torch.utils.data.DataLoader(dataset, batch, shuffle=True, drop_last=True, num_workers=workers,
                                         persistent_workers=workers > 0)
    while True:
        for images, labels in loader:
            yield images.contiguous(memory_format=memory_format), labels


def token_batches(path, context, batch, feed):
    """nanoGPT's get_batch(): pieces from random places of a memory-mapped file."""
    import numpy as np

    def get_batch():
        data = np.memmap(path, dtype=np.uint16, mode="r")
        places = torch.randint(len(data) - context, (batch,))
        x = torch.stack([torch.from_numpy(data[i:i + context].astype(np.int64)) for i in places])
        y = torch.stack([torch.from_numpy(data[i + 1:i + 1 + context].astype(np.int64)) for i in places])
        return x, y

    if feed == "premade":
        yield from itertools.repeat(get_batch())
    while True:
        yield get_batch()


def make_task(name, feed, data, batch, memory_format):
    """The model, its batches, and how many images, rows or tokens a batch has."""
    if name == "table":
        import numpy as np
        rows = torch.utils.data.TensorDataset(*(torch.from_numpy(np.load(path)) for path in data[:2]))
        model = nn.Sequential(nn.Linear(int(data[2]), 128), nn.ReLU(inplace=True), nn.Linear(128, 1), nn.Flatten(0))
        return model, batches(rows, batch, feed, memory_format, torch.get_num_threads() - 1), batch
    if name in GPT_SIZES:
        path, vocabulary, context = data[0], int(data[1]), int(data[2])
        return (NanoGpt(vocabulary, context, *GPT_SIZES[name]), token_batches(path, context, batch, feed),
                batch * context)
    images, labels, size = data[0], data[1], int(data[2])
    model = make_model(name, size).to(memory_format=memory_format)
    return model, batches(read_dataset(images, labels, size), batch, feed, memory_format), batch


def main():
    name, optimizer_name, variant, feed, *data, batch, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    plain = variant in ("eager", "compile")
    memory_format = torch.contiguous_format if plain else torch.channels_last
    model, source, counted = make_task(name, feed, data, int(batch), memory_format)
    optimizer = make_optimizer(optimizer_name, model.parameters())
    forward = torch.compile(model) if "compile" in variant else model

    def step():
        x, y = next(source)
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in variant):
            logits = forward(x)
        if name == "table":
            loss = nn.functional.mse_loss(logits.float(), y)
        else:
            loss = nn.functional.cross_entropy(logits.flatten(0, -2).float(), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(3):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        step()
        start, steps = time.perf_counter(), 0
        while steps == 0 or time.perf_counter() - start < float(line):
            step()
            steps += 1
        print(steps * counted, time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    # Only answers go to the real stdout; output of libraries goes to stderr.
    answers = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(answers, "w")
    main()
