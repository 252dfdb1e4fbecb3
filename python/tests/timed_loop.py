"""A training loop whose parts take known times, by a clock that they move."""

import torch

import saturate
from saturate.diagnosing import conclude, drive
from saturate.observing import Observation
from saturate.session import Session


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1e-6  # reading it takes time, so that nothing is free
        return self.now


class Data(torch.utils.data.Dataset):
    def __init__(self, clock, seconds, size=64):
        self.clock, self.seconds, self.size = clock, seconds, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.clock.now += self.seconds
        return torch.full((3, 8, 8), float(index)), index % 5


class Untimed(Observation):
    optimizer_s = None  # the clock moves outside the optimizers


class Loop:
    """A loop whose parts take known times: loading a sample, computing, and `extra(loop)` in each step."""

    def __init__(self, load=0.0001, compute=0.1, extra=None, **named):
        self.clock, self.compute, self.extra = Clock(), compute, extra
        self.model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Dropout(),
                                         torch.nn.Flatten(), torch.nn.Linear(144, 5))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.loader = torch.utils.data.DataLoader(Data(self.clock, load), batch_size=8, shuffle=True, **named)

    def step(self, batch):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.clock.now += self.compute
        if self.extra:
            self.extra(self)

    def diagnose(self, seconds=200, only=None, skip=(), has_gpu=False, seen=Untimed):
        session = Session(torch, self.loader, seen(torch), seconds=seconds, only=only, skip=skip,
                          clock=self.clock)
        session.has_gpu = has_gpu
        drive(session, self.step)
        return conclude(session)


def synth_loop():
    """A saturate.Loader of images that are made, and a step that learns them."""
    loader = saturate.Loader("synth:size=24,count=60", batch=16, size=8, to="torch")
    model = torch.nn.Linear(192, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        torch.nn.functional.cross_entropy(model(batch[0].flatten(1)), batch[1]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return loader, step


def names(causes):
    return [cause.name for cause in causes]
