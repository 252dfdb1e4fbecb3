"""Fixtures of several test files."""

import os
import pathlib
import shutil
import signal

import pytest

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a script
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def alarm():
    """A function of seconds, after which KeyboardInterrupt is raised in this thread, as by Ctrl-C."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def saturate_command():
    found = os.environ.get("SATURATE_COMMAND") or pathlib.Path(__file__).resolve().parents[2] / "build/saturate"
    return str(found) if shutil.which(str(found)) else pytest.skip("there is no command: set SATURATE_COMMAND")


@pytest.fixture
def graphs():
    """The graphs that torch.compile has made, and the backend that notes them."""
    torch = pytest.importorskip("torch")
    if not torch._dynamo.is_dynamo_supported():
        pytest.skip("torch has no compiler here")
    found = []

    def backend(graph, _):
        found.append(graph)
        return graph.forward

    torch._dynamo.reset()
    yield found, backend
    torch._dynamo.reset()
