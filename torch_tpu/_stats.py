"""Counters of the running process: programs compiled and run, and ops that fell back to the CPU."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch_tpu import _C


class FallbackUse(NamedTuple):
    """How often an op ran on the CPU, and how long that took, transfers included."""

    calls: int
    seconds: float


def stats() -> dict[str, Any]:
    """Counts of the program cache: ``hits`` and ``misses`` (their sum is the programs run),
    ``programs`` in memory, ``compiles``, ``evictions`` and ``compile_seconds``; and ``disk``, what
    came from and went to the folder of programs and packs: ``loads`` (programs that need not be
    compiled), ``load_seconds``, ``saved_seconds`` (what compiling them took once), ``stores``, ...

    >>> import torch_tpu
    >>> before = torch_tpu.stats()["compiles"]
    """
    return {**_C._program_stats(), "disk": _C._store_stats()}


def clear_programs() -> None:
    """Drops all compiled programs from memory. What is needed again comes from disk or is compiled.

    >>> import torch_tpu
    >>> torch_tpu.clear_programs()
    >>> torch_tpu.stats()["programs"]
    0
    """
    _C._clear_programs()


def coverage() -> dict[str, FallbackUse]:
    """The ops of this program that had no lowering and ran on the CPU, the costliest first.

    Empty is what one hopes for. ``TORCH_TPU_FALLBACK=error`` turns such an op into an error.

    >>> import torch_tpu
    >>> for op, use in torch_tpu.coverage().items():
    ...     print(op, use.calls, use.seconds)
    """
    uses = {op: FallbackUse(*use) for op, use in _C._fallback_counts().items()}
    return dict(sorted(uses.items(), key=lambda item: -item[1].seconds))
