"""Writes tests/goldens/step/{schedules,plateau}.json from torch.optim.lr_scheduler (torch 2.11).

A run has 20 epochs of 50 steps, at a base rate of 1. Of a schedule's 1,000 rates the golden holds
those where it bends most, the ends and some between, and two sums over all.
"""

import json
import math
import pathlib

import torch
from torch.optim import lr_scheduler as S

from formula import uniform

OUT = pathlib.Path(__file__).parent.parent / "goldens" / "step"
TOTAL, EPOCH, SAMPLES = 1000, 50, 64


def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))], lr=1.0)


def rates(make, steps):
    sgd = optimizer()
    scheduler = make(sgd)
    found = []
    for _ in range(steps):
        found.append(sgd.param_groups[0]["lr"])
        sgd.step()
        scheduler.step()
    return found


def warmed(then, steps):
    """A ramp of `steps` steps, then the schedule."""

    def make(sgd):
        ramp = S.LinearLR(sgd, 1 / steps, 1.0, total_iters=steps - 1)
        return S.SequentialLR(sgd, [ramp, then(sgd)], [steps])

    return make


def row(values, **options):
    bend = [0.0] + [
        abs(values[i - 1] - 2 * values[i] + values[i + 1]) for i in range(1, TOTAL - 1)
    ] + [0.0]
    steps = {0, 1, 2, TOTAL - 3, TOTAL - 2, TOTAL - 1} | set(range(17, TOTAL, 41))
    for step in sorted(range(TOTAL), key=lambda i: -bend[i]):
        if len(steps) >= SAMPLES:
            break
        steps.add(step)
    return {
        "options": options,
        "rates": {str(step): values[step] for step in sorted(steps)},
        "sum": math.fsum(values),
        "weighted": math.fsum(value * step for step, value in enumerate(values)),
    }


def per_step(name, make, warmup_epochs=0, **options):
    warmup = warmup_epochs * EPOCH
    values = rates(warmed(make, warmup) if warmup else make, TOTAL)
    return row(values, name=name, warmup_epochs=warmup_epochs, **options)


def per_epoch(name, make, **options):
    """One epoch of warm-up, by the step; then one rate for each epoch."""
    ramp = [(step + 1) / EPOCH for step in range(EPOCH)]
    values = ramp + [v for v in rates(make, TOTAL // EPOCH - 1) for _ in range(EPOCH)]
    return row(values, name=name, warmup_epochs=1, per="epoch", **options)


def cycled_per_epoch(**options):
    """OneCycleLR over the epochs, step() called after each."""
    epochs = TOTAL // EPOCH
    cycle = dict(pct_start=options["rise"], div_factor=1 / options["initial_lr"],
                 final_div_factor=options["initial_lr"] / options["final_lr"])
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))], lr=1.0,
                          momentum=0.9)
    scheduler = S.OneCycleLR(sgd, 1.0, epochs, **cycle)
    found, momenta = [], []
    for _ in range(epochs):
        found.append(sgd.param_groups[0]["lr"])
        momenta.append(sgd.param_groups[0]["momentum"])
        sgd.step()
        scheduler.step()
    return {"momenta": momenta} | row([v for v in found for _ in range(EPOCH)], name="onecycle",
                                      per="epoch", **options)


def schedules():
    rest, epochs = TOTAL - EPOCH, TOTAL // EPOCH - 1
    return [
        per_step("constant", lambda o: S.ConstantLR(o, 1.0, 1), 1),
        per_step("step", lambda o: S.StepLR(o, 300, 0.1), every_epochs=6, gamma=0.1),
        per_step("step", lambda o: S.StepLR(o, 325, 0.5), 1, every_epochs=6.5, gamma=0.5),
        per_step("multistep", lambda o: S.MultiStepLR(o, [250, 575, 800], 0.2),
                 milestones=[5, 11.5, 16], gamma=0.2),
        per_step("multistep", lambda o: S.MultiStepLR(o, [250, 575, 800], 0.2), 1,
                 milestones=[5, 11.5, 16], gamma=0.2),
        per_step("exponential", lambda o: S.ExponentialLR(o, 0.1 ** (1 / 200)), 1,
                 every_epochs=4, gamma=0.1),
        per_step("cosine", lambda o: S.CosineAnnealingLR(o, TOTAL, 0.05), final_lr=0.05),
        per_step("cosine", lambda o: S.CosineAnnealingLR(o, rest, 0.05), 1, final_lr=0.05),
        per_step("cosine_restarts", lambda o: S.CosineAnnealingWarmRestarts(o, 150, 1, 0.01),
                 every_epochs=3, final_lr=0.01),
        per_step("cosine_restarts", lambda o: S.CosineAnnealingWarmRestarts(o, 125, 2, 0.01), 1,
                 every_epochs=2.5, restart_mult=2, final_lr=0.01),
        per_step("onecycle", lambda o: S.OneCycleLR(o, 1.0, TOTAL, cycle_momentum=False),
                 rise=0.3, initial_lr=0.04, final_lr=4e-6),
        per_step("onecycle", lambda o: S.OneCycleLR(o, 1.0, TOTAL, pct_start=0.137, div_factor=8,
                                                    final_div_factor=2, cycle_momentum=False),
                 rise=0.137, initial_lr=0.125, final_lr=0.0625),
        per_step("linear", lambda o: S.LinearLR(o, 1.0, 0.1, rest), 1, final_lr=0.1),
        per_step("linear", lambda o: S.PolynomialLR(o, TOTAL, 1.0)),
        per_step("polynomial", lambda o: S.PolynomialLR(o, rest, 2.5), 1, power=2.5),
        per_epoch("cosine", lambda o: S.CosineAnnealingLR(o, epochs, 0.05), final_lr=0.05),
        per_epoch("exponential", lambda o: S.ExponentialLR(o, 0.8), every_epochs=1, gamma=0.8),
        cycled_per_epoch(rise=0.3, initial_lr=0.04, final_lr=4e-6),
        cycled_per_epoch(rise=0.137, initial_lr=0.125, final_lr=0.0625),
    ]


def plateau(metric, **options):
    """Noisy metrics that improve, stall and worsen; null is NaN."""
    noise = uniform("plateau." + metric, 80)
    trend = [max(0.25, 1 - 0.05 * i) + (0.01 * (i - 50) if i > 50 else 0) for i in range(80)]
    losses = [float(t + 0.08 * n) for t, n in zip(trend, noise)]
    metrics = [1.5 - loss if metric == "accuracy" else loss for loss in losses]
    metrics[30] = math.nan
    sgd = optimizer()
    patience, cooldown = options["patience"]
    scheduler = S.ReduceLROnPlateau(
        sgd, "max" if metric == "accuracy" else "min", factor=options["gamma"],
        patience=patience, threshold=options["threshold"],
        cooldown=cooldown, min_lr=options["final_lr"], eps=0)
    factors = []
    for value in metrics:
        scheduler.step(value)
        factors.append(sgd.param_groups[0]["lr"])
    return {"options": {"name": "plateau", "metric": metric, **options},
            "metrics": [None if math.isnan(m) else m for m in metrics], "factors": factors}


def plateaus():
    return [
        plateau("loss", gamma=0.5, patience=[3, 0], threshold=1e-4, final_lr=0.0),
        plateau("loss", gamma=0.3, patience=[0, 4], threshold=0.02, final_lr=0.01),
        plateau("accuracy", gamma=0.7, patience=[2, 2], threshold=0.01, final_lr=0.0),
    ]


(OUT / "schedules.json").write_text(json.dumps(schedules()) + "\n")
(OUT / "plateau.json").write_text(json.dumps(plateaus()) + "\n")
