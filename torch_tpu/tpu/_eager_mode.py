"""Eager modes under the names of Google's torch-tpu. The modes are those of `torch_tpu.mode`."""

from __future__ import annotations

import enum

from torch_tpu import _modes


class EagerMode(enum.Enum):
    """How eager ops run; see `torch_tpu.set_mode`.

    >>> import torch
    >>> torch.tpu.EagerMode.DEFER_AND_FUSE.mode
    'fused'
    """

    DEFER_AND_FUSE = "fused"
    DEFER_NEVER = "strict"
    DEFER_NEVER_AND_LAUNCH_BLOCKING = "debug"

    @property
    def mode(self) -> _modes.Mode:
        """The name that `torch_tpu.set_mode` takes."""
        return self.value


def _checked(mode: EagerMode) -> EagerMode:
    if not isinstance(mode, EagerMode):
        names = ", ".join(f"EagerMode.{each.name}" for each in EagerMode)
        raise TypeError(f"[set_eager_mode] expected one of {names}, got {mode!r}.")
    return mode


def set_eager_mode(mode: EagerMode) -> None:
    """`torch_tpu.set_mode` by one of these names.

    >>> import torch
    >>> torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE)
    """
    _modes.set_mode(_checked(mode).mode)


def get_eager_mode() -> EagerMode:
    """The mode eager ops run in.

    >>> import torch
    >>> isinstance(torch.tpu.get_eager_mode(), torch.tpu.EagerMode)
    True
    """
    return EagerMode(_modes.get_mode())


class eager_mode(_modes.mode):  # noqa: N801, a function to its users
    """Runs a block, or a function, in a mode; `torch_tpu.mode` by one of these names.

    >>> import torch
    >>> with torch.tpu.eager_mode(torch.tpu.EagerMode.DEFER_NEVER):
    ...     total = torch.ones(3, device="tpu").sum()
    """

    def __init__(self, mode: EagerMode) -> None:
        super().__init__(_checked(mode).mode)
