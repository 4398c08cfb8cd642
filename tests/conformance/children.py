"""Child processes that take one task at a time as a JSON line and answer with another.

A crash or a hang takes only the child down and is the answer to the task at hand.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
PATHS = (ROOT, ROOT / "tests", ROOT / "tests" / "python")

Task = dict[str, Any]


class Child:
    """The parent's side. Starts the command when it is first needed, and again after a crash."""

    def __init__(self, command: list[str], timeout: float, **env: str) -> None:
        self.command = command
        self.timeout = timeout
        self.env = env
        self.starts = 0
        self.errors: int | IO[bytes] = subprocess.DEVNULL
        self.process: subprocess.Popen[str] | None = None

    def _start(self) -> subprocess.Popen[str]:
        env = {**os.environ, "OMP_NUM_THREADS": "1", **self.env}
        env.setdefault("TORCH_TPU_CACHE_DIR", str(ROOT / "build" / "test-cache"))
        env["PYTHONPATH"] = ":".join([*map(str, PATHS), env.get("PYTHONPATH", "")])
        self.starts += 1
        return subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            bufsize=1,
            env=env,
        )

    def run(self, task: Task) -> Task:
        if self.process is None or self.process.poll() is not None:
            self.process = self._start()
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died; that shows below
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(self.timeout):
                self.stop()
                return {**task, "status": "hangs", "detail": f"no answer in {self.timeout:g} s"}
        line = process.stdout.readline()
        if line:
            answer: Task = json.loads(line)
            return answer
        code = process.wait()
        self.process = None
        return {**task, "status": "crashes", "detail": f"the process ended with code {code}"}

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def serve(answer: Callable[[Task], Task]) -> None:
    """The child's side. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        task = json.loads(line)
        answers.write(json.dumps({**task, **answer(task)}) + "\n")
        answers.flush()
