"""`torch_tpu.explain()`: what the process compiled and ran, and why.

`collect` asks the native module, `text` and `html` write what it found. Nothing here runs an op.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import IO

from torch_tpu import _C
from torch_tpu._explain.collect import Explanation, collect

__all__ = ["Explanation", "explain"]


def explain(
    file: str | os.PathLike[str] | IO[str] | None = None,
    html: str | os.PathLike[str] | None = None,
    programs: int = 20,
) -> Explanation:
    """What the process compiled and ran, and why: programs, cuts, misses with the first difference
    from the nearest call before, ops that ran on the CPU, reads, and hints.

    The result prints as a report. ``file`` (a path or an open file) gets the same text, ``html``
    one page with a timeline that needs nothing else. ``programs`` is how many of them the text
    lists. Counts begin with the process, or with the last :func:`torch_tpu.reset_stats`.

    >>> import torch, torch_tpu
    >>> x = torch.ones(3, device="tpu") + 1
    >>> report = torch_tpu.explain()
    >>> print(report)  # doctest: +ELLIPSIS
    TorchTPU, ... mode...
    """
    report = collect(programs)
    if html is not None:
        report.to_html(html)
    if isinstance(file, str | os.PathLike):
        Path(file).write_text(str(report) + "\n", encoding="utf-8")
    elif file is not None:
        print(report, file=file)
    return report


def install() -> None:
    """Obeys TORCH_TPU_EXPLAIN: a report at the end of the process. A bad value of the variables
    that compilations read is an error here, and not in the middle of a step."""
    _C._env_compile_notice()
    _C._env_log_compiles()
    target = _C._env_explain()
    if not target:
        return
    _C._journal_record("op_launch", True)
    atexit.register(_write_at_exit, target, os.getpid())


def _write_at_exit(target: str, process: int) -> None:
    if os.getpid() != process:  # a forked child
        return
    report = collect()
    if target == "1":
        print(report, file=sys.stderr)
    else:
        report.write(target)
