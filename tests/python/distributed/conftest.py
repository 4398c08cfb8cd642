"""Pools of ranks, shared by all tests of the folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from distributed.ranks import Ranks

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def two() -> Iterator[Ranks]:
    pool = Ranks(2)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def four() -> Iterator[Ranks]:
    pool = Ranks(4)
    yield pool
    pool.close()
