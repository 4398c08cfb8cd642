"""What the tests of frameworks share: the cache of programs, a pool of two ranks, and no state of
accelerate's from the test before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributed.ranks import Ranks

ROOT = Path(__file__).resolve().parents[2]
os.environ.setdefault("TORCH_TPU_CACHE_DIR", str(ROOT / "build" / "test-cache"))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

RunScript = Callable[..., str]


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


@pytest.fixture
def run_script() -> RunScript:
    """Runs `python WORDS` from the root of the repository; returns what it prints."""

    def run(*words: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
