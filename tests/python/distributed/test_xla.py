"""Collectives over XLA, by ranks that are threads of a process with 8 devices: xla_checks.py."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.children import Child

FOLDER = Path(__file__).parent
CHECKS = "".join(path.read_text() for path in sorted(FOLDER.glob("xla_checks*.py")))


@pytest.fixture(scope="module")
def devices() -> Iterator[Child]:
    command = [sys.executable, "-m", "distributed.xla_checks"]
    child = Child(command, 280.0, TORCH_TPU_CPU_DEVICES="8")
    yield child
    child.stop()


@pytest.mark.parametrize("name", re.findall(r"^def check_(\w+)", CHECKS, re.MULTILINE))
def test_on_threads(devices: Child, name: str) -> None:
    answer = devices.run({"check": name})
    assert not answer.get("failed", answer.get("detail")), answer
