"""torch_tpu.spmd on 8 devices, in a process of its own (checks.py): the number of devices is fixed
when the client starts."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.children import Child

FOLDER = Path(__file__).parent
CHECKS = "".join(path.read_text() for path in sorted(FOLDER.glob("checks*.py")))


@pytest.fixture(scope="module")
def devices() -> Iterator[Child]:
    child = Child([sys.executable, "-m", "spmd.checks"], 280.0, TORCH_TPU_CPU_DEVICES="8")
    yield child
    child.stop()


@pytest.mark.parametrize("name", re.findall(r"^def check_(\w+)", CHECKS, re.MULTILINE))
def test_on_eight_devices(devices: Child, name: str) -> None:
    answer = devices.run({"check": name})
    assert not answer.get("failed", answer.get("detail")), answer
