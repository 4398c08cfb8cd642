"""docs/operators.md from the results."""

from __future__ import annotations

from typing import Any


def write_report(results: dict[str, dict[str, Any]]) -> None:
    raise NotImplementedError
