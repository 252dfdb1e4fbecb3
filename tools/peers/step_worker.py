"""One Python training loop, for step_peers.py: reads seconds from stdin, one line per measurement, trains
for so long, and prints images and seconds.

    step_worker.py MODEL OPTIMIZER VARIANT FEED IMAGES.idx LABELS.idx SIZE BATCH THREADS
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
    return torch.optim.Adam(parameters, lr=0.0, weight_decay=5e-4, fused=True)


def read_dataset(images, labels, size):
    """The whole set as normalised floats [N, 3, S, S], so that the loader converts nothing."""
    with open(images, "rb") as file:
        pixels = torch.frombuffer(bytearray(file.read()[16:]), dtype=torch.uint8)
    with open(labels, "rb") as file:
        targets = torch.frombuffer(bytearray(file.read()[8:]), dtype=torch.uint8)
    grey = (pixels.view(-1, 1, size, size).float() / 255 - 0.5) / 0.25
    return torch.utils.data.TensorDataset(grey.expand(-1, 3, -1, -1).contiguous(), targets.long())


def batches(dataset, batch, feed, memory_format):
    if feed == "premade":
        images, labels = dataset[:batch]
        yield from itertools.repeat((images.contiguous(memory_format=memory_format), labels))
    loader = torch.utils.data.DataLoader(dataset, batch, shuffle=True, drop_last=True)
    while True:
        for images, labels in loader:
            yield images.contiguous(memory_format=memory_format), labels


def main():
    name, optimizer_name, variant, feed, images, labels, size, batch, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    plain = variant in ("eager", "compile")
    memory_format = torch.contiguous_format if plain else torch.channels_last
    model = make_model(name, int(size)).to(memory_format=memory_format)
    optimizer = make_optimizer(optimizer_name, model.parameters())
    forward = torch.compile(model) if "compile" in variant else model
    source = batches(read_dataset(images, labels, int(size)), int(batch), feed, memory_format)

    def step():
        x, y = next(source)
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in variant):
            logits = forward(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
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
        print(steps * int(batch), time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    # Only answers go to the real stdout; output of libraries goes to stderr.
    answers = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(answers, "w")
    main()
