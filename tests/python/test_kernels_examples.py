"""examples/custom_kernel.py does what it says. Needs JAX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

ROOT = Path(__file__).resolve().parents[2]


def test_custom_kernel():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "custom_kernel.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "largest difference from PyTorch" in done.stdout
    assert "loss: " in done.stdout
