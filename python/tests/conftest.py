"""Fixtures of several test files."""

import pytest


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
