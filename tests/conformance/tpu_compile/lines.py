"""Files of JSON lines that survive a kill in the middle of a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line."""
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def append_line(path: Path, value: dict[str, Any]) -> None:
    """Starts a new line if the last one was cut short."""
    with path.open("ab+") as file:
        cut = False
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            cut = file.read(1) != b"\n"
        file.write((b"\n" if cut else b"") + json.dumps(value).encode() + b"\n")
