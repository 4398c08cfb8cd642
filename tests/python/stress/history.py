"""What each thread did in the present round, line by line, in the order it began."""

from __future__ import annotations

import threading
import time
from typing import TextIO


class History:
    """Lines of a round. They are Python that can be run, but for those that begin with `#`.

    With a file, each line is written as it happens: a crash of the process leaves it behind.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._lines: list[tuple[str, str]] = []
        self._beats: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()
        self.count = 0

    def start(self, headline: str) -> None:
        """A new round. Forgets the last one."""
        with self._lock:
            self._lines.clear()
            self._beats.clear()
        self.say("main", f"# {headline}")

    def say(self, who: str, text: str) -> None:
        """`who` begins something."""
        with self._lock:
            self._lines.append((who, text))
            self._beats[who] = (time.monotonic(), text)
            self.count += 1
            if self._file is not None:
                self._file.write(f"{who:>6}  {text}\n")
                self._file.flush()

    def rest(self, who: str) -> None:
        """`who` has nothing to do any more, so nobody waits for it."""
        with self._lock:
            self._beats.pop(who, None)

    def slowest(self) -> tuple[str, float, str] | None:
        """Who has been at one thing for longest: name, seconds, what."""
        with self._lock:
            beats = [(then, who, text) for who, (then, text) in self._beats.items()]
        if not beats:
            return None
        then, who, text = min(beats)
        return who, time.monotonic() - then, text

    def text(self) -> str:
        with self._lock:
            return "\n".join(f"{who:>6}  {text}" for who, text in self._lines)
