"""Which line of the user's code is running, or raised: neither torch's nor ours."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import torch

_OTHERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")


@dataclass(frozen=True)
class Line:
    """Of the user's code."""

    file: str = ""
    number: int = 0
    function: str = ""

    @property
    def source(self) -> str:
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        return f"{self.file}:{self.number}" if self.file else "?"

    def told(self) -> str:
        """As " at model.py:3 in forward: return x @ y", or nothing."""
        return f" at {self} in {self.function}: {self.source}" if self.file else ""


def _is_users(code: CodeType) -> bool:
    return not code.co_filename.startswith(_OTHERS)


def user_line() -> Line:
    """The innermost frame that is running."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if _is_users(frame.f_code):
            return Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return Line()


def line_of(error: BaseException) -> Line:
    """The innermost one that the error came by."""
    found = Line()
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if _is_users(code):
            found = Line(code.co_filename, trace.tb_lineno, code.co_name)
        trace = trace.tb_next
    return found
