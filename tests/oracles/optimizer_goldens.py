"""Writes tests/goldens/step: torch.optim with fused=True, torch.optim.RMSprop and Muon, timm's Lars and Lamb.

Run: for c in avx2 default; do ATEN_CPU_CAPABILITY=$c python tests/oracles/optimizer_goldens.py; done
(torch 2.11, timm 1.0.31 without its dependencies). The fused kernels round
differently with vectors and without, so there is one golden for each; AVX-512 machines run the AVX2
kernels. The others are computed in double precision, so that one golden suffices for all machines.
"""

import importlib.util
import pathlib
import sys
import types

import torch
from safetensors.torch import save_file

from formula import symmetric

# Two files of timm are enough; the whole package needs many unused dependencies.
for package in ("timm", "timm.optim"):
    spec = importlib.util.find_spec("timm")
    folder = pathlib.Path(spec.origin).parent.joinpath(*package.split(".")[1:])
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = [str(folder)]
    sys.modules[package].__spec__ = spec
from timm.optim.lamb import Lamb  # noqa: E402
from timm.optim.lars import Lars  # noqa: E402

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
    # Python's fused SGD cannot start one parameter of a group later than the others.
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


def double_golden(file, make):
    """`make` returns optimizers for {name: parameter}; the steps are those of optimizer_golden()."""
    parameters = {
        name: torch.nn.Parameter(symmetric(name, shape, 1).double()) for name, shape in SHAPES.items()
    }
    optimizers = make(parameters)
    for step in range(STEPS):
        for name, parameter in parameters.items():
            gradient = symmetric(f"{name}.grad.{step}", parameter.shape, 0.5).double()
            parameter.grad = gradient if has_gradient(name, step) else None
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (1 + step % 7)
            optimizer.step()
    save_file({name: p.detach() for name, p in parameters.items()}, OUT / f"{file}.safetensors")


def decay_groups(parameters, weight_decay):
    return [
        {"params": [parameters[n] for n in ("conv", "fc", "late")], "weight_decay": weight_decay},
        {"params": [parameters[n] for n in ("bn", "bias")], "weight_decay": 0},
    ]


class SparseLamb(Lamb):
    """timm counts steps per group, torch and this program per parameter."""

    def step(self):
        if self.param_groups[0]["params"][0].grad is not None:
            super().step()


def lamb(parameters):
    options = dict(betas=(0.9, 0.95), eps=1e-8, max_grad_norm=None)
    return [SparseLamb([p], weight_decay=0 if p.dim() < 2 else 1e-2, **options)
            for p in parameters.values()]


class FlatParameter(torch.optim.Optimizer):
    """torch.optim.Muon accepts only matrices: a filter is a row of one."""

    def __init__(self, parameter, **options):
        self.original = parameter
        self.matrix = torch.nn.Parameter(parameter.detach().view(len(parameter), -1))
        self.muon = torch.optim.Muon([self.matrix], **options)
        super().__init__([parameter], {})

    def step(self):
        gradient = self.original.grad
        self.matrix.grad = None if gradient is None else gradient.view(len(gradient), -1)
        for group in self.muon.param_groups:
            group["lr"] = self.param_groups[0]["lr"]
        self.muon.step()


def muon(parameters):
    options = dict(weight_decay=1e-2, momentum=0.9, nesterov=True, adjust_lr_fn="match_rms_adamw")
    rest = [parameters["bn"], parameters["bias"]]
    return [FlatParameter(parameters[n], **options) for n in ("conv", "fc", "late")] + [
        torch.optim.AdamW(rest, weight_decay=0, betas=(0.9, 0.95))
    ]


OUT.mkdir(parents=True, exist_ok=True)
MOMENTUM = {"momentum_buffer": "momentum"}
optimizer_golden("sgd_nesterov", torch.optim.SGD, 5e-4, MOMENTUM, momentum=0.9, nesterov=True)
optimizer_golden("sgd_momentum", torch.optim.SGD, 5e-4, MOMENTUM, momentum=0.9)
optimizer_golden("sgd_plain", torch.optim.SGD, 5e-4, {}, momentum=0)
optimizer_golden("adamw", torch.optim.AdamW, 1e-2,
                 {"step": "step", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"},
                 betas=(0.9, 0.95))
optimizer_golden("adam", torch.optim.Adam, 1e-2,
                 {"step": "step", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"},
                 betas=(0.9, 0.95))
double_golden("lars", lambda p: [Lars(decay_groups(p, 1e-2), momentum=0.9, nesterov=True,
                                      trust_coeff=0.02)])
double_golden("lamb", lamb)
double_golden("rmsprop", lambda p: [torch.optim.RMSprop(decay_groups(p, 1e-2), alpha=0.95, momentum=0.9)])
torch.Tensor.bfloat16 = torch.Tensor.double  # Muon's iteration: the program uses bf16 only on a GPU
double_golden("muon", muon)
