"""Threads for tests: they start together, none may hang, and a failure in any is the test's."""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

Work = Callable[[], object]


def in_threads(works: Sequence[Work], seconds: float = 60.0) -> None:
    """Runs each in a thread of its own. Raises the first error, or AssertionError if one hangs."""
    barrier = threading.Barrier(len(works))
    errors: list[BaseException] = []

    def start(work: Work) -> None:
        try:
            barrier.wait()
            work()
        except BaseException as error:
            errors.append(error)

    # Daemons: the process can end although one of them hangs.
    threads = [threading.Thread(target=start, args=(work,), daemon=True) for work in works]
    with watched(seconds + 30.0), often_switched():
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads) and not errors:
            faulthandler.dump_traceback(all_threads=True)
            raise AssertionError(f"a thread hangs: not done after {seconds:.0f} s")
    if errors:
        raise errors[0]


@contextmanager
def watched(seconds: float) -> Iterator[None]:
    """Ends the process, after the stacks of all threads, if even Python hangs: a thread that waits
    while it holds the GIL leaves no other way."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def often_switched() -> Iterator[None]:
    """Python changes threads 500 times as often as it does by default."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
