"""What the tests of frameworks share: a pool of two ranks, and no state of accelerate's from
the test before."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import frameworks.processes  # noqa: F401, it sets the folder of programs and the threads
import pytest
from distributed.ranks import Ranks

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


@pytest.fixture(scope="session")
def two() -> Iterator[Ranks]:
    """Two processes of one group, as torchrun would start them."""
    pool = Ranks(2)
    yield pool
    pool.close()


@pytest.fixture(autouse=True)
def fresh_accelerate() -> Iterator[None]:
    """accelerate decides once in a process on which device it runs."""
    yield
    if "accelerate.state" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        os.environ.pop("ACCELERATE_USE_FSDP", None)
