"""Checks that need 8 devices: functions named check_* in files PREFIX*.py of one package. They run
in a process of their own, since the number of devices is fixed when the client starts.

    python -m eight_devices PACKAGE PREFIX    # the process, answers tasks
"""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conformance.children import Child, serve


def _files(package: str, prefix: str) -> list[Path]:
    return sorted((Path(__file__).parent / package).glob(f"{prefix}*.py"))


def names_of(package: str, prefix: str) -> list[str]:
    """The checks, found without importing their files."""
    text = "".join(path.read_text() for path in _files(package, prefix))
    return re.findall(r"^def check_(\w+)", text, re.MULTILINE)


def started(package: str, prefix: str) -> Iterator[Child]:
    """The process, for a fixture."""
    command = [sys.executable, "-m", "eight_devices", package, prefix]
    child = Child(command, 280.0, TORCH_TPU_CPU_DEVICES="8")
    yield child
    child.stop()


def passes(child: Child, name: str) -> None:
    """Runs one check there; what it raised is the assertion's text."""
    answer = child.run({"check": name})
    assert not answer.get("failed", answer.get("detail")), answer


def main(package: str, prefix: str) -> None:
    """Answers until its input ends."""
    checks: dict[str, Callable[[], None]] = {}
    for path in _files(package, prefix):
        checks.update(vars(importlib.import_module(f"{package}.{path.stem}")))

    def answer(task: dict[str, Any]) -> dict[str, Any]:
        try:
            checks["check_" + task["check"]]()
        except BaseException:
            return {"failed": traceback.format_exc()}
        return {"failed": ""}

    serve(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
