"""Writes tests/goldens/reduce: DistributedSampler's orders, and a model trained by Python's DDP on Gloo: plain, with
micro-batches and with PowerSGD.

Run: python tests/oracles/distributed_goldens.py (torch 2.11, safetensors).
"""

import json
import math
import os
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from formula import symmetric

OUT = pathlib.Path(__file__).parent.parent / "goldens" / "reduce"
WORLD, BATCH = 2, 8


def sampler_golden():
    cases = []
    for size in (1, 3, 8, 17, 50):
        for world in range(1, 9):
            for drop_last in (False, True):
                ranks = [
                    list(DistributedSampler(range(size), world, rank, shuffle=False, drop_last=drop_last))
                    for rank in range(world)
                ]
                cases.append({"size": size, "world": world, "drop_last": drop_last, "ranks": ranks})
    (OUT / "sampler.json").write_text(json.dumps(cases) + "\n")


class Net(torch.nn.Module):
    """Two layers, and an unused one."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 16)
        self.second = torch.nn.Linear(16, 3)
        self.unused = torch.nn.Linear(4, 4)
        for name, parameter in self.named_parameters():
            parameter.data = symmetric(name, parameter.shape, 0.5)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def power_sgd(model, matrix_rank):
    """From the first step on, which the constructor refuses because buckets are rebuilt after it; with
    find_unused_parameters they are not. A separate group, so that its all-reduces do not interleave with the
    reducer's. Each matrix starts with random numbers of a separate generator, seeded by the parameter's index."""
    state = PowerSGDState(dist.new_group(), matrix_approximation_rank=matrix_rank, start_powerSGD_iter=2)
    state.start_powerSGD_iter = 0
    places = {math.prod(p.shape[1:]): i for i, p in enumerate(model.parameters()) if p.dim() > 1}
    randn = torch.randn

    def seeded(_, rows, columns, **options):
        return randn(rows, columns, generator=torch.Generator().manual_seed(places[rows]))

    torch.randn = seeded
    model.register_comm_hook(state, powerSGD_hook)


def train(rank, steps, accumulate, matrix_rank, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29613")
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    model = DistributedDataParallel(Net(), find_unused_parameters=True, gradient_as_bucket_view=True)
    if matrix_rank:
        power_sgd(model, matrix_rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        images = symmetric(f"images.{step}", (BATCH, 6), 2)[rank::WORLD]
        labels = torch.arange(BATCH)[rank::WORLD] % 3
        for part in range(accumulate):
            own = slice(part * len(images) // accumulate, (part + 1) * len(images) // accumulate)
            loss = torch.nn.functional.cross_entropy(model(images[own]), labels[own]) / accumulate
            if part + 1 < accumulate:
                with model.no_sync():
                    loss.backward()
            else:
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        queue.put({name: tensor.detach().numpy() for name, tensor in model.module.named_parameters()})
    dist.barrier()
    dist.destroy_process_group()


def ddp_golden(name, steps=20, accumulate=1, matrix_rank=0):
    context = mp.get_context("spawn")
    queue = context.Queue()
    arguments = [(rank, steps, accumulate, matrix_rank, queue) for rank in range(WORLD)]
    processes = [context.Process(target=train, args=own) for own in arguments]
    for process in processes:
        process.start()
    found = queue.get()
    for process in processes:
        process.join()
    save_file({key: torch.from_numpy(value).contiguous() for key, value in found.items()}, OUT / name)


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    sampler_golden()
    ddp_golden("ddp.safetensors")
    ddp_golden("ddp_no_sync.safetensors", accumulate=2)
    # The second layer's gradient is small compared with the compression error, and rounding doubles with each step.
    ddp_golden("powersgd_1.safetensors", steps=5, matrix_rank=1)
    ddp_golden("powersgd_2.safetensors", matrix_rank=2)
