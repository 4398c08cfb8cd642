"""Collectives over XLA, with ranks that are threads: in a process with 8 devices (xla_checks.py)."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.children import Child

CHECKS = (Path(__file__).parent / "xla_checks.py").read_text()


@pytest.fixture(scope="module")
def devices() -> Iterator[Child]:
    child = Child([sys.executable, "-m", "distributed.xla_checks"], 280.0, TORCH_TPU_CPU_DEVICES="8")
    yield child
    child.stop()


@pytest.mark.parametrize("name", re.findall(r"^def check_(\w+)", CHECKS, re.MULTILINE))
def test_on_threads(devices: Child, name: str) -> None:
    answer = devices.run({"check": name})
    assert not answer.get("failed", answer.get("detail")), answer
