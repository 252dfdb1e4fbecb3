"""A GPU of tests that measure its time by events: a test moves it."""


class FakeGpu:
    """A stream: work that is enqueued takes time after all before it; the GPU has reached `done`."""

    def __init__(self):
        self.enqueued = 0.0  # milliseconds at which all work enqueued so far ends
        self.done = 0.0
        self.is_capturing = False
        self.recorded = 0

    def event(self, **_):
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, gpu):
        self.gpu, self.at = gpu, None

    def record(self, *_):
        assert not self.gpu.is_capturing
        self.at = self.gpu.enqueued
        self.gpu.recorded += 1

    def query(self):
        assert not self.gpu.is_capturing
        return self.at <= self.gpu.done

    def elapsed_time(self, later):
        assert self.query() and later.query()
        return later.at - self.at


class FakeTransfers:
    """Copies to a GPU that there is not: one that waits takes `seconds` of a clock. Batches of a DataLoader with
    pin_memory=True are pinned."""

    def __init__(self, monkeypatch, torch, clock, seconds):
        to, iterate = torch.Tensor.to, torch.utils.data.DataLoader.__iter__

        def copied(tensor, *arguments, non_blocking=False, **named):
            if arguments[:1] != ("cuda",):
                return to(tensor, *arguments, non_blocking=non_blocking, **named)
            clock.now += 0 if non_blocking and tensor.is_pinned() else seconds
            return to(tensor, "meta")

        def pinning(loader):
            for batch in iterate(loader):
                for tensor in batch:
                    tensor.is_fake_pinned = loader.pin_memory
                yield batch

        monkeypatch.setattr(torch.Tensor, "to", copied)
        monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: getattr(tensor, "is_fake_pinned", False))
        monkeypatch.setattr(torch.utils.data.DataLoader, "__iter__", pinning)
