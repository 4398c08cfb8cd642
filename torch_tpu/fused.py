"""Fused Eager: when programs are compiled, and what it has cut.

Nothing here needs to be called: the defaults are meant to be right. See docs/fused.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

from torch_tpu import _C

CompileWhen = Literal["first", "second", "never"]


class Limits(NamedTuple):
    """The planner's parameters: ops per program, and bytes its ops may produce."""

    min_nodes: int
    max_nodes: int
    max_bytes: int


@contextlib.contextmanager
def _restore_compile_when(previous: CompileWhen) -> Iterator[None]:
    try:
        yield
    finally:
        _C._set_fused_compile(previous)


def compile_when(when: CompileWhen) -> contextlib.AbstractContextManager[None]:
    """Sets when a program is compiled: ``"first"`` time it is met (the caller waits), the
    ``"second"`` time in the background (the default), or ``"never"`` (its ops run one by one).

    Results are the same up to rounding. Used with ``with``, it sets the previous choice back.

    >>> import torch_tpu
    >>> with torch_tpu.fused.compile_when("never"):
    ...     pass
    """
    if when not in get_args(CompileWhen):
        raise ValueError(f"[compile_when] expected 'first', 'second' or 'never', got {when!r}.")
    previous: CompileWhen = _C._get_fused_compile()
    _C._set_fused_compile(when)
    return _restore_compile_when(previous)


def flush() -> None:
    """Launches the ops gathered so far, without waiting for them.

    >>> import torch_tpu
    >>> torch_tpu.fused.flush()
    """
    _C._fused_flush()


def wait() -> None:
    """Waits until no program is being compiled in the background. For benchmarks and tests.

    >>> import torch_tpu
    >>> torch_tpu.fused.wait()
    """
    _C._fused_wait()


def programs() -> list[dict[str, Any]]:
    """The programs cut so far, in the order they were first met: ``name``, ``fingerprint`` (the
    same in every process), ``ops``, ``state`` (seen, compiling, ready or failed), ``sights``,
    ``runs`` as one program, ``inputs``, ``outputs``, ``donated``, ``compile_seconds``, ``news``
    (the first difference to the program most like it), ``failure``. Of a program that serves many
    sizes also ``bound``, ``sizes`` (the smallest and the largest), ``members`` (how often each size
    was met) and ``padding`` (the work done over the work asked for), else None. Programs that
    differ in sizes only have the same ``family``; ``size`` is that of a piece which such a program
    serves. ``static_because`` says why a piece whose sizes change is served by none, ``where`` is
    the Python line of the first op.

    >>> import torch_tpu
    >>> names = [program["name"] for program in torch_tpu.fused.programs()]
    """
    return _C._fused_programs()


def limits() -> Limits:
    """The planner's parameters in use.

    >>> import torch_tpu
    >>> torch_tpu.fused.limits().max_nodes
    1024
    """
    return Limits(*_C._get_fused_limits())


def set_limits(
    min_nodes: int | None = None, max_nodes: int | None = None, max_bytes: int | None = None
) -> None:
    """Changes parameters of the planner; what is not given stays as it is.

    >>> import torch_tpu
    >>> torch_tpu.fused.set_limits(max_nodes=1024)
    """
    old = limits()
    _C._set_fused_limits(
        old.min_nodes if min_nodes is None else min_nodes,
        old.max_nodes if max_nodes is None else max_nodes,
        old.max_bytes if max_bytes is None else max_bytes,
    )
