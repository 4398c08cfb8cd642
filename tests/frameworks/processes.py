"""Scripts in processes of their own, one or several ranks of torchrun, for tests of frameworks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "frameworks"
os.environ.setdefault("TORCH_TPU_CACHE_DIR", str(ROOT / "build" / "test-cache"))
os.environ.setdefault("OMP_NUM_THREADS", "1")


def run(*words: str | Path, timeout: float = 280, logs: bool = False, **env: str) -> str:
    """`python WORDS`; what it prints, with `logs` also to stderr. A run that takes too long is
    ended with its children."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": path, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if logs else subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"no end within {timeout} s:\n{out}\n{err}") from None
    assert process.returncode == 0, out + (err or "")
    return out


def torchrun(
    ranks: int,
    *words: str | Path,
    options: tuple[str, ...] = (),
    timeout: float = 280,
    logs: bool = False,
    **env: str,
) -> str:
    """`torchrun --nproc-per-node RANKS OPTIONS WORDS`; what all ranks print."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    return run(*launcher, *options, *words, timeout=timeout, logs=logs, **env)
