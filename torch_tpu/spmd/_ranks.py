"""The order of a mesh for many processes with one device each, torch.distributed's DeviceMesh."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from torch_tpu import _C
from torch_tpu.spmd._torus import torus_order


def _attributes() -> Mapping[str, Any]:
    """Of this process's device."""
    return _C._device_attributes()[_C._current_device()]


def rank_order(shape: Sequence[int], caller: str) -> torch.Tensor:
    """All ranks in a tensor of that shape; along its last axis they are neighbours on the torus.
    Errors name the caller."""
    if not dist.is_initialized():
        raise RuntimeError(
            f"[{caller}] the process group must be initialized: call "
            'torch.distributed.init_process_group("tpu") first.'
        )
    size = dist.get_world_size()
    if math.prod(shape) != size:
        raise ValueError(f"[{caller}] a mesh of shape {tuple(shape)} for {size} ranks")
    attributes: list[Any] = [None] * size
    dist.all_gather_object(attributes, dict(_attributes()))
    return torch.tensor(torus_order(attributes, shape)).reshape(tuple(shape))


def device_mesh(shape: Sequence[int], names: Sequence[str]) -> DeviceMesh:
    """A DeviceMesh of all ranks, as `init_device_mesh` makes one, but so that ranks along its last
    axis are neighbours on the torus. Every rank calls it, after `init_process_group`."""
    return DeviceMesh("tpu", rank_order(shape, "device_mesh"), mesh_dim_names=tuple(names))
