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
