"""Counters of the running process: programs compiled and run, and ops that fell back to the CPU."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch_tpu import _C


class FallbackUse(NamedTuple):
    """How often an op ran on the CPU, and how long that took, transfers included."""

    calls: int
    seconds: float


def stats() -> dict[str, Any]:
    """Counts since the process began, or since :func:`reset_stats`. Seconds are those of the host.

    ======================================  ==============================================
    >>> import torch_tpu
    >>> before = torch_tpu.stats()["compiles"]
    """
    journal = _C._journal_counts()
    kinds = journal["kinds"]
    fallbacks = _C._fallback_counts().values()
    return {
        **_C._program_stats(),
        "compiles": kinds["compile"]["count"],
        "compile_seconds": kinds["compile"]["seconds"],
        "background_compiles": journal["background_compiles"],
        "compile_failures": kinds["compile_failed"]["count"],
        "disk_hits": kinds["load_from_disk"]["count"],
        "launches": kinds["launch"]["count"] + kinds["op_launch"]["count"],
        "fused_launches": kinds["launch"]["count"],
        "replays": kinds["replay"]["count"],
        "cuts": journal["cuts"],
        "host_reads": kinds["host_read"]["count"],
        "host_read_seconds": kinds["host_read"]["seconds"],
        "host_read_bytes": kinds["host_read"]["bytes"],
        "uploads": kinds["upload"]["count"],
        "upload_seconds": kinds["upload"]["seconds"],
        "upload_bytes": kinds["upload"]["bytes"],
        "fallback_calls": sum(calls for calls, _ in fallbacks),
        "fallback_seconds": sum(seconds for _, seconds in fallbacks),
        "fused": _C._fused_counts(),
        "disk": _C._store_stats(),
    }


def reset_stats() -> None:
    """Sets the counts to zero and forgets what :func:`torch_tpu.explain` knows. Programs stay.

    >>> import torch_tpu
    >>> torch_tpu.reset_stats()
    >>> torch_tpu.stats()["launches"]
    0
    """
    _C._reset_program_stats()
    _C._reset_fused_counts()
    _C._reset_fallback_counts()
    _C._journal_reset()


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
