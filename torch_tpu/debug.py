"""Finding where a value went wrong."""

from __future__ import annotations

from types import TracebackType

from torch_tpu import _C
from torch_tpu._blocks import Switch
from torch_tpu._modes import SETTINGS

__all__ = ["check_nans", "is_checking_nans", "record_launches"]


class check_nans(Switch):  # noqa: N801, a function to its users, as torch.set_grad_enabled
    """Raises at the op that first produces a NaN or an infinity.

    Acts at once; in a ``with`` statement it is undone at the end. It belongs to the process, and
    turns debug mode on, as only there every op is waited for and looked at; turning it off leaves
    the mode as it is. The environment's way is ``TORCH_TPU_MODE=debug TORCH_TPU_DEBUG_NANS=1``.

    >>> import torch, torch_tpu
    >>> with torch_tpu.debug.check_nans():
    ...     y = torch.ones(2, device="tpu").log()
    """

    settings = SETTINGS

    def __init__(self, enabled: bool = True) -> None:
        super().__init__({"nans": True, "mode": "debug"} if enabled else {"nans": False})


def is_checking_nans() -> bool:
    """Whether debug mode checks for NaN and infinity.

    >>> import torch_tpu
    >>> torch_tpu.debug.is_checking_nans()
    False
    """
    return _C._get_debug_nans()


class record_launches:  # noqa: N801, as above
    """Puts every launch of a single op on the timeline of :func:`torch_tpu.explain`, and the line
    that asked for it behind every transfer.

    Acts at once; in a ``with`` statement it is undone at the end. Off by default, as ops are many:
    only the newest 65536 events are kept. Launches are counted in any case.

    >>> import torch, torch_tpu
    >>> with torch_tpu.debug.record_launches():
    ...     y = torch.ones(2, device="tpu") + 1
    """

    def __init__(self, enabled: bool = True) -> None:
        self._previous = _C._journal_record("op_launch", bool(enabled))

    def __enter__(self) -> record_launches:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _C._journal_record("op_launch", self._previous)
