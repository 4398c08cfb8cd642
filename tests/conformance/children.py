"""Child processes of the runners: those of torch_tpu.aot, which find the tests and their cache."""

from __future__ import annotations

import os
from pathlib import Path

from torch_tpu.aot import process
from torch_tpu.aot.process import Task, serve

__all__ = ["PATHS", "ROOT", "Child", "Task", "serve"]

ROOT = Path(__file__).resolve().parents[2]
PATHS = (ROOT, ROOT / "tests", ROOT / "tests" / "python")


class Child(process.Child):
    """The parent's side; further variables by name."""

    def __init__(self, command: list[str], timeout: float, **more: str) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1", **more}
        env.setdefault("TORCH_TPU_CACHE_DIR", str(ROOT / "build" / "test-cache"))
        env["PYTHONPATH"] = ":".join([*map(str, PATHS), env.get("PYTHONPATH", "")])
        super().__init__(command, timeout, env)
