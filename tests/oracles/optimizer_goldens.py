"""Writes tests/goldens/step: torch.optim with fused=True, and torch.optim.lr_scheduler.

Run: for c in avx2 default; do ATEN_CPU_CAPABILITY=$c python tests/oracles/optimizer_goldens.py; done
(torch 2.11). The fused kernels round differently with vectors and without, so there is one golden for
each; AVX-512 machines run the AVX2 kernels.
"""

import json
import pathlib

import torch
from safetensors.torch import save_file
from torch.optim import lr_scheduler

from formula import symmetric

OUT = pathlib.Path(__file__).parent.parent / "goldens" / "step"
STEPS = 100
CAPABILITY = "default" if torch.backends.cpu.get_cpu_capability() == "DEFAULT" else "avx2"
SHAPES = {"conv": (8, 3, 3, 3), "fc": (5, 37), "late": (7, 3), "bn": (19,), "bias": (1,)}


def has_gradient(name, step):
    return {"late": step >= 10, "bn": step % 3 != 1}.get(name, True)


def optimizer_golden(file, kind, weight_decay, state_names, **options):
    parameters = {
        name: torch.nn.Parameter(symmetric(name, shape, 1)) for name, shape in SHAPES.items()
    }
    # Python's fused SGD cannot begin one parameter of a group later than the others.
    groups = [
        {"params": [parameters["conv"], parameters["fc"]], "weight_decay": weight_decay},
        {"params": [parameters["late"]], "weight_decay": weight_decay},
        {"params": [parameters["bn"]], "weight_decay": 0},
        {"params": [parameters["bias"]], "weight_decay": 0},
    ]
    optimizer = kind(groups, lr=1, fused=True, **options)
    for step in range(STEPS):
        for name, parameter in parameters.items():
            gradient = symmetric(f"{name}.grad.{step}", parameter.shape, 0.5)
            parameter.grad = gradient if has_gradient(name, step) else None
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (1 + step % 7)
        optimizer.step()
    tensors = {name: parameter.detach() for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        for theirs, ours in state_names.items():
            tensors[f"{name}.{ours}"] = optimizer.state[parameter][theirs]
    save_file(tensors, OUT / f"{file}.{CAPABILITY}.safetensors")


def factors(make, steps):
    """The learning rates of `steps` steps at a base rate of 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def schedule_goldens():
    total, warmup = 1000, 50

    def warmed(then):
        def make(optimizer):
            ramp = lr_scheduler.LinearLR(optimizer, 1 / warmup, 1.0, total_iters=warmup - 1)
            return lr_scheduler.SequentialLR(optimizer, [ramp, then(optimizer)], [warmup])
        return make

    rows = []

    def add(name, final_lr, ramp, make):
        rows.append({"name": name, "final_lr": final_lr, "warmup": ramp, "total": total,
                     "factors": factors(make, total)})

    rest = total - warmup
    add("cosine", 0.05, warmup,
        warmed(lambda o: lr_scheduler.CosineAnnealingLR(o, rest, eta_min=0.05)))
    add("cosine", 0.05, 0, lambda o: lr_scheduler.CosineAnnealingLR(o, total, eta_min=0.05))
    add("linear", 0.1, warmup, warmed(lambda o: lr_scheduler.LinearLR(o, 1.0, 0.1, rest)))
    add("linear", 0.0, 0, lambda o: lr_scheduler.PolynomialLR(o, total, power=1.0))
    add("constant", 0.0, warmup, warmed(lambda o: lr_scheduler.ConstantLR(o, 1.0, 1)))
    (OUT / "schedules.json").write_text(json.dumps(rows) + "\n")


OUT.mkdir(parents=True, exist_ok=True)
MOMENTUM = {"momentum_buffer": "momentum"}
optimizer_golden("sgd_nesterov", torch.optim.SGD, 5e-4, MOMENTUM, momentum=0.9, nesterov=True)
optimizer_golden("sgd_momentum", torch.optim.SGD, 5e-4, MOMENTUM, momentum=0.9)
optimizer_golden("sgd_plain", torch.optim.SGD, 5e-4, {}, momentum=0)
optimizer_golden("adamw", torch.optim.AdamW, 1e-2,
                 {"step": "step", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"},
                 betas=(0.9, 0.95))
schedule_goldens()
