"""Short runs of `python -m stress` (in tests/python), which runs as long as it is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def stress(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stress", *args],
        cwd=HERE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE.parents[1]), str(HERE)))},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.parametrize(
    ("mode", "seed"), [("strict", 1), ("fused", 2), ("debug", 3), ("mixed", 4), ("mixed", 5)]
)
def test_ten_seconds(mode: str, seed: int) -> None:
    done = stress("--minutes", "0.17", "--mode", mode, "--seed", str(seed))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all right\n")


def test_a_seed_is_a_round() -> None:
    """One thread does the same each time."""
    found = []
    for log in ("/dev/stderr", "/dev/stderr"):
        done = stress(
            "--rounds", "2", "--threads", "1", "--seed", "8", "--mode", "strict", "--log", log
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found.append([line for line in done.stderr.splitlines() if line.startswith("    w0")])
    assert len(found[0]) > 20
    assert found[0] == found[1]
