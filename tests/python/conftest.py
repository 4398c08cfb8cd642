"""Fixtures shared by the Python tests."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Not the user's cache of programs. Shared by all workers and kept, so a second run of the tests
# compiles little; a changed library has its own programs.
os.environ.setdefault(
    "TORCH_TPU_CACHE_DIR", str(Path(__file__).resolve().parents[2] / "build" / "test-cache")
)
# Tests look at graphs as they are traced, or change how: none of them comes from an earlier test.
os.environ.setdefault("TORCHINDUCTOR_AUTOGRAD_CACHE", "0")

RunPython = Callable[..., str]


@pytest.fixture
def fused_mode() -> Iterator[None]:
    """Fused Eager with its defaults, which a test may change."""
    import torch_tpu

    limits = torch_tpu.fused.limits()
    with torch_tpu.mode("fused"), torch_tpu.fused.compile_when("second"):
        yield
    torch_tpu.fused.wait()
    torch_tpu.fused.set_limits(*limits)


@pytest.fixture
def fresh_counts() -> Iterator[None]:
    """Strict Eager, without the programs, counts, misses and calls of the tests before."""
    import torch_tpu

    with torch_tpu.mode("strict"):
        torch_tpu.clear_programs()
        torch_tpu.reset_stats()
        torch_tpu._C._forget_calls()
        yield


@pytest.fixture
def steady_memory() -> Iterator[None]:
    """Memory changes by what the test does alone: no garbage of the tests before is freed in it."""
    import torch

    gc.collect()
    gc.disable()
    torch.accelerator.synchronize()
    yield
    gc.enable()


@pytest.fixture
def run_python() -> RunPython:
    """Runs code in a fresh interpreter: `run_python(code, TORCH_TPU_CPU_DEVICES="4")`.

    For what a process can do only once: starting the client, its number of devices, forking.
    """

    def run(code: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
