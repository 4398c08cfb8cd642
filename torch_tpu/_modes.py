"""Choosing how eager ops run: debug, strict or fused."""

from __future__ import annotations

from typing import Any, Literal, get_args

from torch_tpu import _C
from torch_tpu._blocks import Block, Settings

Mode = Literal["debug", "strict", "fused"]


def _put(now: dict[str, Any]) -> None:
    _C._set_debug_nans(now["nans"])
    _C._set_mode(now["mode"])


# Together, as `torch_tpu.debug.check_nans` changes both.
SETTINGS = Settings(lambda: {"mode": _C._get_mode(), "nans": _C._get_debug_nans()}, _put)


def set_mode(name: Mode) -> None:
    """Sets how eager ops run from here on.

    - ``"debug"``: each op on its own, waiting for it; an error names the op and the caller's line.
    - ``"strict"``: each op on its own, asynchronously.
    - ``"fused"``: ops are gathered into larger programs, asynchronously. The default.

    The mode belongs to the process: threads, autograd's own included, all see it. Ops already
    gathered are launched first. The initial mode is ``TORCH_TPU_MODE``.

    >>> import torch_tpu
    >>> torch_tpu.set_mode("strict")
    >>> torch_tpu.get_mode()
    'strict'
    """
    _C._set_mode(_check(name))


def get_mode() -> Mode:
    """The mode eager ops run in: ``"debug"``, ``"strict"`` or ``"fused"``.

    >>> import torch_tpu
    >>> torch_tpu.get_mode() in ("debug", "strict", "fused")
    True
    """
    return _C._get_mode()


class mode(Block):  # noqa: N801, a function to its users, as torch.no_grad
    """Runs a block, or a function, in a mode and sets the previous one back.

    As the mode belongs to the process, other threads run in it meanwhile.

    >>> import torch, torch_tpu
    >>> with torch_tpu.mode("debug"):
    ...     total = torch.ones(3, device="tpu").sum()
    >>> @torch_tpu.mode("strict")
    ... def double(x):
    ...     return x * 2
    """

    settings = SETTINGS

    def __init__(self, name: Mode) -> None:
        super().__init__({"mode": _check(name)})

    def __enter__(self) -> mode:
        self._enter()
        return self


def _check(name: Mode) -> Mode:
    if name not in get_args(Mode):
        raise ValueError(f"[set_mode] expected 'debug', 'strict' or 'fused', got {name!r}.")
    return name
