#!/usr/bin/env python3
"""Measures a training step on a GPU, on a held batch: of a torchvision model at SIDE pixels, or of nanoGPT's GPT-2 on
sequences of SIDE tokens.

    gpu_step.py MODEL|gpt2 SIDE BATCH fp32|tf32|bf16|fp16 [eager|compile]

Prints images/s or tokens/s of each of ten measurements as a JSON list.
"""

import contextlib
import json
import sys
import time

import torch
from step_worker import GPT_SIZES, NanoGpt

VOCABULARY = 50304  # GPT-2's 50,257, which nanoGPT pads to a multiple of 64


def image_task(name, side, batch):
    """The model, a batch, its labels, the optimizer, and how many images the batch has."""
    import torchvision
    model = torchvision.models.get_model(name, num_classes=10).cuda().to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, side, side, device="cuda").to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, fused=True)
    return model, images, torch.randint(10, (batch,), device="cuda"), optimizer, batch


def token_task(name, context, batch):
    model = NanoGpt(VOCABULARY, context, *GPT_SIZES[name]).cuda()
    tokens, targets = torch.randint(VOCABULARY, (2, batch, context), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return model, tokens, targets.flatten(), optimizer, batch * context


def main():
    name, side, batch, precision = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    make_task = token_task if name in GPT_SIZES else image_task
    model, inputs, targets, optimizer, counted = make_task(name, side, batch)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    forward = torch.compile(model) if sys.argv[5:] == ["compile"] else model

    def step():
        autocast = (torch.autocast("cuda", kinds[precision]) if precision in kinds
                    else contextlib.nullcontext())
        with autocast:
            loss = torch.nn.functional.cross_entropy(forward(inputs).flatten(0, -2), targets)
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
        rates.append(5 * counted / (time.perf_counter() - begin))
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
