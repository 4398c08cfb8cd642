"""The mesh of the ranks, as JAX has it: with sizes and names, without devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from torch_tpu.pallas import _jax


def get_pallas_mesh(
    axis_names: Sequence[str] = ("rank",), mesh_shape: Sequence[int] | None = None
) -> Any:
    """A jax.sharding.AbstractMesh of all ranks of torch.distributed, in order; of one without a
    group. It says how a kernel is divided; `jax_op` takes those of one device.

    >>> from torch_tpu.pallas import get_pallas_mesh
    >>> dict(get_pallas_mesh(("model",)).shape)
    {'model': 1}
    """
    size = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    shape = tuple(mesh_shape) if mesh_shape is not None else (size,) + (1,) * (len(axis_names) - 1)
    if math.prod(shape) != size or len(shape) != len(axis_names):
        raise ValueError(
            f"[get_pallas_mesh] a mesh of shape {shape} with axes {tuple(axis_names)} for {size} "
            f"ranks"
        )
    return _jax.jax_module().sharding.AbstractMesh(shape, tuple(axis_names))
