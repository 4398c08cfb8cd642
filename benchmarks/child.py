"""A contestant's child process as run.py sees it: commands out, answers in, failures in a line."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import subprocess
from pathlib import Path
from typing import Any

from contestants import Contestant

SCRIPT = Path(__file__).resolve().parent / "worker.py"


class WorkerError(Exception):
    """A contestant answered with an error, died or did not answer in time."""


class Worker:
    """A contestant's child process."""

    def __init__(self, contestant: Contestant, folder: Path, timeout: float) -> None:
        self._contestant, self._folder, self._timeout = contestant, folder, timeout
        self._log = (folder / f"{contestant.name}.log").open("w+b")
        self._process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        who = self._contestant
        cache = self._cache
        cache.mkdir(exist_ok=True)
        return subprocess.Popen(
            [who.python, str(SCRIPT), who.kind, who.device, who.mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={
                **os.environ,
                **who.env,
                "XDG_CACHE_HOME": str(cache),
                "TORCH_TPU_CACHE_DIR": str(cache / "torch_tpu"),
                "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            },
            cwd=self._folder,  # not the repository: the peer's package has our import name
        )

    @property
    def _cache(self) -> Path:
        """Empty at first: a first call must be cold."""
        return self._folder / f"cache-{self._contestant.name}"

    def restart(self, keeps_cache: bool = True) -> None:
        """Replaces the process by a new one, with the same cache folder or an empty one."""
        self._end()
        if not keeps_cache:
            shutil.rmtree(self._cache, ignore_errors=True)
        self._process = self._spawn()

    def send(self, **command: Any) -> None:
        """Sends a command without waiting for its answer."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # receive() reports a dead worker
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """The answer to the last command."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(self._timeout):
                self._process.kill()  # what it still computes would slow the others
                raise WorkerError(f"no answer within {self._timeout:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"died with code {self._process.wait()}: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"].splitlines()[0])
        return answer

    def ask(self, **command: Any) -> dict[str, Any]:
        """Sends a command and waits for the answer."""
        self.send(**command)
        return self.receive()

    def close(self) -> None:
        """Ends the process."""
        self._end()
        self._log.close()

    def _end(self) -> None:
        """Ends the process; one that does not end by itself is killed."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing on stderr"
