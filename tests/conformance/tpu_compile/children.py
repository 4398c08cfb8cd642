"""The children of this runner."""

from __future__ import annotations

import sys
from pathlib import Path

from ..children import ROOT, Child


def python_child(module: str, timeout: float, *args: str, **env: str) -> Child:
    return Child([sys.executable, "-m", module, *args], timeout, **env)


def folder_of(name: str) -> Path:
    return ROOT / "build" / "tpu-compile" / name
