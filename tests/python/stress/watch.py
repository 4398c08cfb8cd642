"""Watches a run: a thread that hangs, and memory that grows from round to round."""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
import threading
from collections.abc import Callable

import torch

import torch_tpu

from .history import History

HUNG = 3  # exit status
GIL_SECONDS = 30.0  # without the GIL, after which a run hangs as well


def rss_bytes() -> int:
    """Memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def programs_made() -> int:
    """Programs compiled or loaded so far."""
    stats = torch_tpu.stats()
    return stats["compiles"] + stats["disk"]["loads"]


class Watchdog:
    """Ends the process with status 3 when a thread has been at one line for too long, after the
    stacks of all threads and the history.

    A thread that waits while it holds the GIL stops this one too; then faulthandler, which needs no
    GIL, prints the stacks and ends the process with its own status, 1.
    """

    def __init__(self, history: History, seconds: float, report: Callable[[str], None]) -> None:
        self._history = history
        self._seconds = seconds
        self._report = report
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while not self._end.wait(1.0):
            faulthandler.dump_traceback_later(self._seconds + GIL_SECONDS, exit=True)
            slowest = self._history.slowest()
            if slowest is not None and slowest[1] > self._seconds:
                who, seconds, text = slowest
                faulthandler.dump_traceback(all_threads=True)
                self._report(f"hangs: {who} has been at this for {seconds:.0f} s: {text}")
                sys.stdout.flush()
                os._exit(HUNG)


class Growth:
    """Memory at quiet points, when no tensor of a round is left.

    Bytes on the devices must come back to what they were. The process itself may grow with the
    programs it has compiled, as these are kept, and by what an allocator keeps; not with rounds.
    """

    DEVICE_SLACK = 1 << 20  # packs of scalars that are kept, constants of programs
    HOST_SLACK = 128 << 20
    PER_PROGRAM = 1 << 20  # 0.3 to 0.7 MiB were measured
    ROUNDS_TO_WARM_UP = 5

    def __init__(self) -> None:
        self._rounds = 0
        self._device: int | None = None
        self._rss = 0
        self._programs = 0

    def problem(self) -> str | None:
        """After a round: what has grown, if anything has."""
        gc.collect()
        torch_tpu.fused.wait()
        for index in range(torch.tpu.device_count()):
            torch.tpu.synchronize(index)
        held = sum(torch.tpu.memory_allocated(n) for n in range(torch.tpu.device_count()))
        rss, programs = rss_bytes(), programs_made()
        self._rounds += 1
        if self._device is None:
            self._device = held
        if held > self._device + self.DEVICE_SLACK:
            return f"devices hold {held} bytes after the round, {self._device} after the first"
        if self._rounds <= self.ROUNDS_TO_WARM_UP:
            self._rss, self._programs = rss, programs
            return None
        allowed = self._rss + self.HOST_SLACK + self.PER_PROGRAM * (programs - self._programs)
        if rss > allowed:
            return (
                f"the process has {rss >> 20} MiB; after {self.ROUNDS_TO_WARM_UP} rounds it had "
                f"{self._rss >> 20} MiB, and {programs - self._programs} programs came since"
            )
        return None
