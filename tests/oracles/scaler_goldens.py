"""Writes tests/goldens/step/scaler.json: torch.amp.GradScaler on scripted overflows (torch 2.11).

Unscale, clip, step, update, with fused optimizers and AdamW among them. The first step does not overflow:
if it were skipped, torch would leave fused SGD's momenta uninitialised.
"""

import json
import math
import pathlib

import torch

from formula import symmetric

OUT = pathlib.Path(__file__).parent.parent / "goldens" / "step"
STEPS = 40
OVERFLOWS = {3: math.inf, 9: math.nan, 10: -math.inf, 21: math.inf, 22: math.nan, 38: math.inf}
SHAPES = {"fc": (5, 7), "bias": (5,)}


def golden(name, make):
    parameters = {n: torch.nn.Parameter(symmetric(n, shape, 1)) for n, shape in SHAPES.items()}
    optimizer = make(parameters.values())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)
    trace = []
    for step in range(STEPS):
        scale = scaler.scale(torch.ones(())).item()
        for n, parameter in parameters.items():
            parameter.grad = symmetric(f"{n}.grad.{step}", parameter.shape, 0.5) * scale
        if step in OVERFLOWS:
            parameters["fc"].grad[2, 3] = OVERFLOWS[step]
        before = parameters["bias"].detach().clone()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), 0.75)
        scaler.step(optimizer)
        scaler.update()
        trace.append({
            "scale": scaler.get_scale(),
            "growth_tracker": scaler.state_dict()["_growth_tracker"],
            "skipped": bool(torch.equal(before, parameters["bias"].detach())),
            "norm": norm.item() if math.isfinite(norm.item()) else None,
        })
    return {"name": name, "trace": trace,
            "parameters": {n: p.flatten().tolist() for n, p in parameters.items()}}


rows = [
    golden("sgd", lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, fused=True)),
    golden("adam", lambda p: torch.optim.Adam(p, lr=0.05, fused=True)),
    golden("adamw", lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0, fused=True)),
]
(OUT / "scaler.json").write_text(json.dumps(rows) + "\n")
