"""The parent's side of one share of a file: starts children until each test has an outcome.

A child that is over the time or the memory of a test, or dies, is replaced; the test that it was in
gets the outcome `hung`, `memory` or `crashed`, and the next child goes on after it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .files import hears_of_device, variables_of

ROOT = Path(__file__).resolve().parents[2]
Result = dict[str, Any]


@dataclass
class Limits:
    """Of one test; collecting a file may take ten times as long."""

    seconds: float = 90.0
    gigabytes: float = 8.0


@dataclass
class Share:
    """One of `shares` parts of a file; `order` goes to the child as it is."""

    checkout: Path
    name: str
    device: str
    order: dict[str, Any]
    limits: Limits
    done: dict[str, Result] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    fault: str = ""

    def run(self, steps: Path, say: Callable[[Result], None]) -> None:
        """Until the child says that it is finished. `say` gets each new result."""
        steps.parent.mkdir(parents=True, exist_ok=True)
        while True:
            steps.unlink(missing_ok=True)
            steps.touch()
            before = len(self.done)
            finished, full = self._child(steps, say)
            if finished or self.fault:
                return
            if len(self.done) == before and not full:
                self.fault = self._last_words(steps) or "the process ended before its first test"
                return

    def _child(self, steps: Path, say: Callable[[Result], None]) -> tuple[bool, bool]:
        # In a file: thousands of names are too long for a variable.
        order = steps.with_name(f"{steps.name}.order")
        order.write_text(json.dumps({**self.order, "steps": str(steps), "done": list(self.done)}))
        path: list[Path | str] = [ROOT / "tests", os.environ.get("PYTHONPATH", "")]
        if self.device != "cpu" and hears_of_device(self.name):
            path.insert(0, ROOT / "tests" / "pytorch_tests" / "at_start")
            # PyTorch runs a file as a script: what lies beside it can be imported.
            path.append((self.checkout / "test" / self.name).parent)
        env = {
            **os.environ,
            "PYTORCH_TESTING_DEVICE_ONLY_FOR": self.device,
            "TORCH_TPU_PYTORCH_TESTS": str(order),
            "PYTHONPATH": ":".join(str(folder) for folder in path if folder),
            # A test whose ranks wait for each other says where, before it is ended here.
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(max(10, int(0.8 * self.limits.seconds))),
            "TORCH_TPU_COMPILE_NOTICE": "0",
            "OMP_NUM_THREADS": "1",
            **variables_of(self.name),
            **self.variables,
        }
        env.setdefault("TORCH_TPU_CACHE_DIR", str(ROOT / "build" / "pytorch-tests" / "cache"))
        words = steps.with_name(f"{steps.name}.out")
        command = [sys.executable, "-m", "pytest", f"{self.name}.py", "-q", "--no-header"]
        command += ["-p", "pytorch_tests.plugin", "-p", "no:cacheprovider", "-p", "no:randomly"]
        # PyTorch's own conftest is written for an older pytest.
        command += ["-p", "no:timeout", "-p", "no:xdist", "-p", "no:logging", "--noconftest"]
        with words.open("w") as out:
            child = subprocess.Popen(
                command,
                cwd=self.checkout / "test",
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return self._watch(child, steps, words, say)
            finally:
                _end(child)

    def _watch(
        self,
        child: subprocess.Popen[bytes],
        steps: Path,
        words: Path,
        say: Callable[[Result], None],
    ) -> tuple[bool, bool]:
        current, since = "", time.monotonic()
        finished = full = False
        with steps.open() as file:
            partial = ""
            while True:
                gone = child.poll() is not None  # asked first, so that its last lines are read
                while line := file.readline():
                    partial += line
                    if not partial.endswith("\n"):
                        break
                    step, partial = json.loads(partial), ""
                    if "begin" in step:
                        current, since = step["begin"], time.monotonic()
                    elif "test" in step:
                        current, since = "", time.monotonic()
                        self._take(step, say)
                    elif "uncollected" in step:
                        self.fault = step["uncollected"]
                    finished = finished or "finished" in step
                    full = full or "full" in step
                if finished or gone:
                    break
                spent = time.monotonic() - since
                limit = self.limits.seconds if current else 10 * self.limits.seconds
                if spent > limit:
                    what = {"outcome": "hung", "detail": f"no end after {spent:.0f} s"}
                    self._lost(current, what, spent, say)
                    return False, False
                size = _resident(child.pid)
                if size > self.limits.gigabytes * 2**30:
                    text = f"grew to {size / 2**30:.1f} GiB"
                    self._lost(current, {"outcome": "memory", "detail": text}, spent, say)
                    return False, False
                time.sleep(0.05)
        if not finished and current:
            said = f"exit status {child.returncode}\n{words.read_text(errors='replace')[-3000:]}"
            spent = time.monotonic() - since
            self._lost(current, {"outcome": "crashed", "detail": said}, spent, say)
        return finished, full

    def _lost(self, test: str, what: Result, spent: float, say: Callable[[Result], None]) -> None:
        if test:
            self._take({"test": test, "seconds": round(spent, 3), **what}, say)
        else:
            self.fault = f"{what['detail']} outside of any test"

    def _take(self, result: Result, say: Callable[[Result], None]) -> None:
        self.done[result["test"]] = result
        say(result)

    def _last_words(self, steps: Path) -> str:
        return steps.with_name(f"{steps.name}.out").read_text(errors="replace")[-3000:]


def _end(child: subprocess.Popen[bytes]) -> None:
    """The whole session: a test may have children of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0
