"""What the tests of torch.compile share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch._dynamo

close = torch.testing.assert_close
compiled = partial(torch.compile, backend="tpu", fullgraph=True)


@pytest.fixture(autouse=True)
def fresh_graphs() -> Iterator[None]:
    """Without graphs of other tests; a graph that does not become one program is an error."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*op by op.*")
        yield
    torch._dynamo.reset()
