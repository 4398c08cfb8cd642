"""A quiet end of the process.

After a backward, PyTorch's device thread still has to drop the graph's Python objects. If the
interpreter is already finalizing by then, CPython ends that thread by force and the process aborts.
So before finalization starts, those threads get the time to come to rest.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from torch_tpu import _C

_AUTOGRAD_THREADS = "pt_autograd_"
_PATIENCE_SECONDS = 1.0
_CALM_LOOKS = 3
_TALK_AFTER_SECONDS = 3.0


def install() -> None:
    atexit.register(_leave_threads_of_the_parent)
    atexit.register(_wait_for_autograd_threads)
    atexit.register(_stop_compiling)


def _stop_compiling() -> None:
    """A compiler must not be at work while the plugin is torn down. It cannot be interrupted, so
    what it is at is waited for; what is queued is dropped. In a forked child nothing compiles."""
    if _C._is_in_bad_fork():
        return
    talk = threading.Timer(_TALK_AFTER_SECONDS, _say_what_is_waited_for)
    talk.daemon = True
    talk.start()
    _C._fused_stop()
    talk.cancel()


def _leave_threads_of_the_parent() -> None:
    """PyTorch gives autograd's threads ten seconds to end. In a forked child there are none."""
    if _C._is_in_bad_fork():
        os.environ["TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT"] = "0"


def _say_what_is_waited_for() -> None:
    print("torch_tpu: waiting for a background compilation to end ...", file=sys.stderr)


def _wait_for_autograd_threads() -> None:
    """Returns once no thread of PyTorch's autograd engine runs (or wants the GIL)."""
    threads = [task for task in _tasks() if _read(task / "comm").startswith(_AUTOGRAD_THREADS)]
    deadline = time.monotonic() + _PATIENCE_SECONDS
    calm = 0
    while threads and calm < _CALM_LOOKS and time.monotonic() < deadline:
        time.sleep(0.001)  # without the GIL: a thread that waits for it gets it now
        calm = calm + 1 if all(map(_sleeps, threads)) else 0


def _tasks() -> Iterator[Path]:
    try:
        yield from Path("/proc/self/task").iterdir()
    except OSError:  # no such files on this system
        return


def _sleeps(task: Path) -> bool:
    # "<id> (<name>) <state> ...": the name may hold spaces, so look behind the last bracket.
    return not _read(task / "stat").rpartition(")")[2].strip().startswith("R")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the thread has ended
        return ""
