"""Writes tests/goldens/run: torch's AveragedModel, and Lightning's EarlyStopping on scripted metrics.

Run: python tests/oracles/run_goldens.py (torch 2.11, safetensors, lightning 2.6).
"""

import json
import math
import pathlib
import random

import torch
from lightning.pytorch.callbacks import EarlyStopping
from safetensors.torch import save_file
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from formula import symmetric

OUT = pathlib.Path(__file__).parent.parent / "goldens" / "run"
SHAPES = {"conv": (4, 3, 3, 3), "fc": (5, 37), "bias": (1,)}
UPDATES = 50


def ema_golden(decay):
    model = torch.nn.ParameterDict({name: torch.zeros(shape) for name, shape in SHAPES.items()})
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    for update in range(UPDATES):
        for name, parameter in model.items():
            parameter.data = symmetric(f"{name}.{update}", parameter.shape, 1)
        average.update_parameters(model)
    tensors = {name: parameter.detach().clone() for name, parameter in average.module.items()}
    save_file(tensors, OUT / "ema.safetensors")


def stopping_case(mode, patience, min_delta, values):
    rule = EarlyStopping("metric", min_delta=min_delta, patience=patience, mode=mode, verbose=False)
    stop_at = None
    for i, value in enumerate(values):
        if rule._evaluate_stopping_criteria(torch.tensor(value, dtype=torch.float64))[0]:
            stop_at = i
            break
    best = rule.best_score.item()
    return {
        "mode": mode,
        "patience": patience,
        "min_delta": min_delta,
        "values": [value if math.isfinite(value) else str(value) for value in values],
        "stop_at": stop_at,
        "best": best if math.isfinite(best) else None,
    }


def stopping_goldens():
    cases = []
    draw = random.Random(1)
    for mode in ("min", "max"):
        for patience in (1, 3, 5):
            for min_delta in (0.0, 0.125):
                # Multiples of 1/16, so that ties and changes of exactly min_delta occur.
                values = [draw.randrange(32) / 16 for _ in range(40)]
                cases.append(stopping_case(mode, patience, min_delta, values))
                trend = 1 if mode == "max" else -1
                values = [trend * i / 8 + draw.randrange(-3, 4) / 16 for i in range(40)]
                cases.append(stopping_case(mode, patience, min_delta, values))
        for bad in (math.nan, math.inf, -math.inf):
            cases.append(stopping_case(mode, 4, 0.0, [0.5, 0.25, bad, 0.75, 0.125]))
            cases.append(stopping_case(mode, 4, 0.0, [bad, 0.5]))
    return cases


OUT.mkdir(exist_ok=True)
ema_golden(0.9)
cases = stopping_goldens()
(OUT / "early_stopping.json").write_text(json.dumps(cases) + "\n")
print(sum(case["stop_at"] is None for case in cases), "of", len(cases), "never stop")
