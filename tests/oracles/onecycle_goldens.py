"""Writes tests/goldens/step/onecycle.{json,*.safetensors}: OneCycleLR with its momentum cycle.

100 steps of SGD, Adam and AdamW (torch 2.11) in double precision, driven by OneCycleLR: the momentum of
each step, and the parameters after the last one.
"""

import json
import pathlib

import torch
from safetensors.torch import save_file

from formula import symmetric

OUT = pathlib.Path(__file__).parent.parent / "goldens" / "step"
STEPS, LR = 100, 0.05
SHAPES = {"conv": (8, 3, 3, 3), "fc": (5, 37), "bn": (19,)}


def golden(name, kind, key, cycle, **options):
    parameters = {
        p: torch.nn.Parameter(symmetric(p, shape, 1).double()) for p, shape in SHAPES.items()
    }
    groups = [
        {"params": [parameters["conv"], parameters["fc"]], "weight_decay": 1e-2},
        {"params": [parameters["bn"]], "weight_decay": 0},
    ]
    optimizer = kind(groups, lr=LR, fused=True, **options)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, STEPS, **cycle)
    momenta = []
    for step in range(STEPS):
        for p, parameter in parameters.items():
            parameter.grad = symmetric(f"{p}.grad.{step}", parameter.shape, 0.5).double()
        value = optimizer.param_groups[0][key]
        momenta.append(value[0] if key == "betas" else value)
        optimizer.step()
        scheduler.step()
    save_file({p: tensor.detach() for p, tensor in parameters.items()},
              OUT / f"onecycle.{name}.safetensors")
    return {"optimizer": name, "cycle": cycle, "momenta": momenta}


rows = [
    golden("sgd", torch.optim.SGD, "momentum", {}, momentum=0.9, nesterov=True),
    golden("adam", torch.optim.Adam, "betas",
           {"pct_start": 0.4, "base_momentum": 0.7, "max_momentum": 0.9}, betas=(0.9, 0.95)),
    golden("adamw", torch.optim.AdamW, "betas", {"div_factor": 10.0}, betas=(0.9, 0.95)),
]
(OUT / "onecycle.json").write_text(json.dumps(rows) + "\n")
