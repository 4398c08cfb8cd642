"""Child processes that answer JSON lines; a crash or a hang is the answer to the task at hand."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..run import ROOT, Task, Worker

PATHS = (ROOT, ROOT / "tests", ROOT / "tests" / "python")


class Child(Worker):
    """Runs one command; what it said before it died is the detail of a crash."""

    def __init__(self, command: list[str], timeout: float, **env: str) -> None:
        super().__init__(timeout)
        self.command = command
        self.env = env
        self.starts = 0
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, lives as long as the child

    def start(self) -> subprocess.Popen[str]:
        env = {**os.environ, "OMP_NUM_THREADS": "1", **self.env}
        env["PYTHONPATH"] = ":".join([*map(str, PATHS), env.get("PYTHONPATH", "")])
        self.starts += 1
        return subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
            env=env,
        )

    def run(self, task: Task) -> Task:
        self._log.seek(0)
        self._log.truncate()
        result = super().run(task)
        if result.get("status") == "crashes":
            self._log.seek(0)
            said = self._log.read().decode(errors="replace")
            result["detail"] += f": {last_words(said)}" if said.strip() else ""
        return result


def last_words(text: str) -> str:
    """The line of a crash that says why: the first fatal one, or else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if line.startswith("F") and "] " in line:  # the log format of XLA: F1115 file:line] text
            return line.split("] ", 1)[1][:400]
        if "Check failed" in line:
            return line[line.index("Check failed") :][:400]
    return lines[-1][:400]


def python_child(module: str, timeout: float, *args: str, **env: str) -> Child:
    return Child([sys.executable, "-m", module, *args], timeout, **env)


def serve(answer: Any) -> None:
    """The child's side: one JSON line in, one out. What libraries print goes to stderr."""
    import json

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        task = json.loads(line)
        answers.write(json.dumps({**task, **answer(task)}) + "\n")
        answers.flush()


def folder_of(name: str) -> Path:
    return ROOT / "build" / "tpu-compile" / name
