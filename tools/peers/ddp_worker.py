"""One rank of Python's DistributedDataParallel (a plain loop if the world size is 1) on noise in memory, for
ddp_peer.py: prints this rank's images per second.

    RANK=.. WORLD_SIZE=.. MASTER_ADDR=.. MASTER_PORT=.. ddp_worker.py MODEL SIZE BATCH STEPS CORE
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from step_worker import make_model, make_optimizer

CLASSES, WARM_UP = 10, 3


def main():
    name, size, batch, steps, core = sys.argv[1], *map(int, sys.argv[2:6])
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    world = int(os.environ["WORLD_SIZE"])
    model = make_model(name, size).to(memory_format=torch.channels_last)
    if world > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = make_optimizer("sgd", model.parameters())
    images = torch.randn(batch, 3, size, size).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch) % CLASSES
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            begin = time.monotonic()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(steps * batch / (time.monotonic() - begin))
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
