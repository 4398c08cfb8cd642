"""Waiting, or only launching."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torch_tpu import _C

__all__ = ["synchronize"]


def synchronize(
    tensors: torch.Tensor | Iterable[torch.Tensor] | None = None, wait: bool = True
) -> None:
    """Launches what Fused Eager has gathered and waits until it is computed: of the devices of
    these tensors, or of all. With `wait=False` it is only launched."""
    if not _C._is_initialized() and not _C._is_in_bad_fork():
        return
    if not wait:
        _C._fused_flush()
        return
    if tensors is None:
        indices = set(range(_C._device_count()))
    else:
        given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        indices = {t.device.index for t in given if t.device.type == "tpu"}
    for index in sorted(indices):
        _C._synchronize(index)
