"""torch_tpu.spmd on 8 devices: checks.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conformance.children import Child
from eight_devices import names_of, passes, started

CHECKS = ("spmd", "checks")


@pytest.fixture(scope="module")
def devices() -> Iterator[Child]:
    yield from started(*CHECKS)


@pytest.mark.parametrize("name", names_of(*CHECKS))
def test_on_eight_devices(devices: Child, name: str) -> None:
    passes(devices, name)
