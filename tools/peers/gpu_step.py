#!/usr/bin/env python3
"""Measures an eager training step of a torchvision model on a GPU, on a held batch.

    gpu_step.py MODEL SIDE BATCH fp32|tf32|bf16|fp16

Prints images/s of each of ten measurements as a JSON list.
"""

import contextlib
import json
import sys
import time

import torch
import torchvision


def main():
    name, side, batch, precision = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    model = torchvision.models.get_model(name, num_classes=10).cuda()
    model = model.to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, side, side, device="cuda")
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, fused=True)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}

    def step():
        autocast = (torch.autocast("cuda", kinds[precision]) if precision in kinds
                    else contextlib.nullcontext())
        with autocast:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(10):
        step()
    rates = []
    for _ in range(10):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        rates.append(5 * batch / (time.perf_counter() - begin))
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
