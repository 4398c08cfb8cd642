"""Device arguments. torch.load looks for `_get_device_index` under this name."""

from __future__ import annotations

from typing import TypeAlias

import torch

from torch_tpu import _C

DeviceLike: TypeAlias = int | str | torch.device | None


def _get_device_index(device: DeviceLike, optional: bool = False, allow_cpu: bool = False) -> int:
    """The number of a device given as 1, "tpu:1", torch.device or None (the current one).

    Without `optional`, a device without a number is an error. With `allow_cpu` the CPU is -1.
    """
    if isinstance(device, int):
        return device
    if device is None:
        index = None
    else:
        device = torch.device(device)
        if allow_cpu and device.type == "cpu":
            return -1
        if device.type != "tpu":
            raise ValueError(f"Expected a tpu device, but got: {device}")
        index = device.index
    if index is not None:
        return index
    if not optional:
        raise ValueError(
            f"Expected a torch.device with a specified index or an integer, but got: {device}"
        )
    return _C._current_device()
