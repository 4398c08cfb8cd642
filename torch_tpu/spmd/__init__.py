"""One process, all its devices: tensors divided over a mesh, and programs that XLA partitions.

>>> from torch_tpu import spmd
>>> mesh = spmd.mesh((2, 4), ("dp", "tp"))
>>> x = spmd.shard(torch.randn(8, 16), mesh, {"dp": spmd.Shard(0)})
"""

from __future__ import annotations

from torch.distributed.tensor.placement_types import Replicate, Shard

from torch_tpu.spmd._compile import Compiled, compile
from torch_tpu.spmd._exchange import all_to_all, index, permute
from torch_tpu.spmd._hlo import Collective
from torch_tpu.spmd._local import PerDevice, per_device
from torch_tpu.spmd._mesh import Mesh, mesh
from torch_tpu.spmd._ranks import device_mesh
from torch_tpu.spmd._tensor import ShardedTensor, replicate, shard, shard_module

__all__ = [
    "Collective",
    "Compiled",
    "Mesh",
    "PerDevice",
    "Replicate",
    "Shard",
    "ShardedTensor",
    "all_to_all",
    "compile",
    "device_mesh",
    "index",
    "mesh",
    "per_device",
    "permute",
    "replicate",
    "shard",
    "shard_module",
]
