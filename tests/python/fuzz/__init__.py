"""Random programs that must give the same on the device as on the CPU.

`program.py`: programs as text. `rules.py`: the lines they are made of. `maker.py`: makes one from a
seed. `check.py`: settings, comparison, making a failing program small. `python -m fuzz`: long runs.
"""

from __future__ import annotations

from .check import (
    SIZES,
    Failure,
    Setting,
    check,
    check_sizes,
    reduced,
    report,
    sized,
    stable_program,
)
from .program import Line, Loop, Node, listing

__all__ = [
    "SIZES",
    "Failure",
    "Line",
    "Loop",
    "Node",
    "Setting",
    "check",
    "check_sizes",
    "listing",
    "reduced",
    "report",
    "sized",
    "stable_program",
]
