"""Short runs of `python -m stress` (in tests/python), which runs as long as it is told."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from stress.history import History
from stress.worker import Worker, WrongError

HERE = Path(__file__).resolve().parent


def environment() -> dict[str, str]:
    paths = (str(HERE.parents[1]), str(HERE), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def stress(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stress", *args],
        cwd=HERE,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "seed"), [("strict", 1), ("fused", 2), ("debug", 3), ("mixed", 4), ("mixed", 5)]
)
def test_ten_seconds(mode: str, seed: int) -> None:
    done = stress("--minutes", "0.17", "--mode", mode, "--seed", str(seed))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all right\n")


def test_a_seed_is_a_round() -> None:
    """One thread does the same each time."""
    found: list[list[str]] = []
    args = ("--rounds", "2", "--threads", "1", "--seed", "8", "--mode", "fused")
    # No errors: whether the op itself raises or the read of its result depends on the moment.
    acts = ("--only", "pure,in_place,view,read,read_kept,count,forget")
    for _ in range(2):
        done = stress(*args, *acts, "--log", "/dev/stderr")
        assert done.returncode == 0, done.stdout + done.stderr
        found.append([line for line in done.stderr.splitlines() if line.startswith("    w0")])
    assert len(found[0]) > 20
    assert found[0] == found[1]


def test_a_wrong_value_is_noticed() -> None:
    worker = Worker("w0", random.Random(0), History(), 1, threading.Event())
    worker.cpu["t1"] = worker.device["t1"] = torch.arange(6).view(2, 3)
    worker.check("t1")
    worker.same("t1.sum().item()")
    worker.device["t1"] = worker.cpu["t1"].clone()
    worker.device["t1"][1, 2] = 9
    with pytest.raises(WrongError, match=r"t1 differs in 1 of 6 .* \[1, 2\]: 9, on the CPU 5"):
        worker.check("t1")
    with pytest.raises(WrongError, match="is 19, on the CPU 15"):
        worker.same("t1.sum().item()")


@pytest.mark.parametrize("holds_gil", [False, True])
def test_a_hang_is_noticed(holds_gil: bool) -> None:
    """With status 3, or faulthandler's where no Python can run."""
    code = f"""if True:
        import ctypes, time
        from stress import watch
        from stress.history import History

        watch.GIL_SECONDS = 1.0
        history = History()
        history.start("a round")
        history.rest("main")
        history.say("w1", "the line that hangs")
        with watch.Watchdog(history, 3.0, print):
            time.sleep(1.5)
            (ctypes.PyDLL if {holds_gil} else ctypes.CDLL)(None).sleep(30)
    """
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == (1 if holds_gil else 3), done.stdout + done.stderr
    assert "in <module>" in done.stderr  # the stacks
    assert holds_gil or "the line that hangs" in done.stdout
