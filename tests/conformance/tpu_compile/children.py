"""Child processes whose last words are kept."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from ..children import ROOT, Child, Task


class LoggedChild(Child):
    """What it said before it died is the detail of a crash."""

    def __init__(self, command: list[str], timeout: float, **env: str) -> None:
        super().__init__(command, timeout, **env)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, lives as long as the child
        self.errors = self._log

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


def python_child(module: str, timeout: float, *args: str, **env: str) -> LoggedChild:
    return LoggedChild([sys.executable, "-m", module, *args], timeout, **env)


def folder_of(name: str) -> Path:
    return ROOT / "build" / "tpu-compile" / name
