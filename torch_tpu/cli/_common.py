"""What the subcommands share: errors, sizes, JSON, a progress bar."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any


class CommandError(Exception):
    """Something the user can put right; shown without a traceback. The exit code is 1, or 2 where
    what was given is at fault."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


def positive(text: str) -> float:
    """A number above 0, as an argument's type."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value


def whole(text: str) -> int:
    """A whole number above 0, as an argument's type."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1, got {text}")
    return value


def check_writable(*files: str | Path | None) -> None:
    """Before the work begins: that each of these files can be written at its end."""
    for file in files:
        if file is None:
            continue
        path = Path(file).absolute()
        if path.is_dir():
            raise CommandError(f"{file} is a folder: say which file in it", code=2)
        if not path.parent.is_dir():
            raise CommandError(f"{path.parent} is no folder", code=2)
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise CommandError(f"{file} cannot be written: no permission", code=2)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds `--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def show(args: argparse.Namespace, data: dict[str, Any], text: str) -> None:
    """Prints `data` as JSON where that is wanted, else `text`."""
    print(json.dumps(data, indent=2) if args.json else text)


def size_text(count: float) -> str:
    """1536 as "1.5 KiB".

    >>> size_text(1536), size_text(12)
    ('1.5 KiB', '12 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


class Progress:
    """A bar on stderr; on anything but a terminal a line now and then."""

    def __init__(self, total: int) -> None:
        self._total = max(1, total)
        self._start = self._shown = time.monotonic()
        self._bar = sys.stderr.isatty()

    def update(self, done: int, what: str) -> None:
        """`done` of the total, and what comes next."""
        now = time.monotonic()
        last = done >= self._total
        if not last and now - self._shown < (0.1 if self._bar else 10):
            return
        self._shown = now
        seconds = now - self._start
        left = seconds / max(1, done) * (self._total - done)
        text = f"{done}/{self._total}  {seconds:.0f} s, {left:.0f} s left  {what}"
        if not self._bar:
            print(text, file=sys.stderr, flush=True)
            return
        width = 24
        filled = width * done // self._total
        line = f"[{'#' * filled}{'.' * (width - filled)}] {text}"
        columns = shutil.get_terminal_size().columns - 1
        end = "\n" if last else ""
        print(f"\r{line[:columns]:<{columns}}", end=end, file=sys.stderr, flush=True)
