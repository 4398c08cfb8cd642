"""Child processes that take one task at a time as a JSON line and answer with another.

A crash or a hang takes only the child down and is the answer to the task at hand. The child ends
with its parent, however that ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

Task = dict[str, Any]
Tick = Callable[[float], None]  # is called with the seconds since the task began


class Child:
    """The parent's side. Starts the command when it is first needed, and again after a crash."""

    def __init__(
        self, command: list[str], timeout: float, env: Mapping[str, str] | None = None
    ) -> None:
        self.command = command
        self.timeout = timeout
        self.env = dict(os.environ if env is None else env)
        self.starts = 0
        self.process: subprocess.Popen[str] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, lives as long as the child

    def _start(self) -> subprocess.Popen[str]:
        self.starts += 1
        return subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
            env=self.env,
        )

    def run(self, task: Task, tick: Tick | None = None) -> Task:
        """The answer: the task with a `status`, which is "hangs" or "crashes" when none came."""
        self._log.seek(0)
        self._log.truncate()
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
        if not self._wait(process, tick):
            self.stop()
            return {**task, "status": "hangs", "detail": f"no answer in {self.timeout:g} s"}
        line = process.stdout.readline()
        if line:
            answer: Task = json.loads(line)
            return answer
        code = process.wait()
        self.stop()
        return {**task, "status": "crashes", "code": code, "detail": self._last_words(code)}

    def _wait(self, process: subprocess.Popen[str], tick: Tick | None) -> bool:
        started = time.monotonic()
        with selectors.DefaultSelector() as selector:
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                seconds = time.monotonic() - started
                left = self.timeout - seconds
                if left <= 0:
                    return False
                if tick is not None:
                    tick(seconds)
                if selector.select(left if tick is None else min(left, 0.25)):
                    return True

    def _last_words(self, code: int) -> str:
        self._log.seek(0)
        said = self._log.read().decode(errors="replace")
        return f"the process ended with code {code}" + (
            f": {last_words(said)}" if said.strip() else ""
        )

    def stop(self) -> None:
        """Ends the process and waits until it is gone."""
        process, self.process = self.process, None
        if process is None:
            return
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except BrokenPipeError:  # what was not sent has nobody to read it
                pass

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()


def last_words(text: str) -> str:
    """The line of a crash that says why: the first fatal one, or else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if line.startswith("F") and "] " in line:  # the log format of XLA: F1115 file:line] text
            return line.split("] ", 1)[1][:400]
        if "Check failed" in line:
            return line[line.index("Check failed") :][:400]
    return lines[-1][:400]


def serve(answer: Callable[[Task], Task]) -> None:
    """The child's side. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        task = json.loads(line)
        answers.write(json.dumps({**task, **answer(task)}) + "\n")
        answers.flush()


def end_with_parent() -> None:
    """Of the calling process: Linux kills it when its parent is gone."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() == 1:  # it was gone already
        os._exit(1)
