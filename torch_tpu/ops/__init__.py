"""Ops under the names of Google's torch-tpu, each done by machinery of this package: kernels,
torch.distributed, PyTorch's own ops. docs/from_google_torch_tpu.md says which is which.

    >>> import torch
    >>> x = torch.arange(3.0, device="tpu")
    >>> torch.tpu.ops.optimization_barrier(x)
    tensor([0., 1., 2.], device='tpu:0')
"""

from __future__ import annotations

from typing import Any

from torch_tpu.ops._attention import splash_sdpa
from torch_tpu.ops._barrier import optimization_barrier
from torch_tpu.ops._collectives import (
    all_gather_dim,
    ragged_all_to_all,
    recv,
    reduce_scatter_dim,
    send,
)
from torch_tpu.ops._jagged import align_jagged_to_multiple, strip_jagged_padding
from torch_tpu.ops._pool import (
    max_pool1d,
    max_pool1d_backward,
    max_pool2d,
    max_pool2d_backward,
    max_pool3d,
    max_pool3d_backward,
)
from torch_tpu.ops._ragged import ragged_dot, ragged_dot_weight_grad
from torch_tpu.ops._sparse import (
    sparse_dense_matmul,
    sparse_dense_matmul_activation_unstack,
    sparse_dense_matmul_grad_with_adagrad,
    sparse_dense_matmul_grad_with_adam,
    sparse_dense_matmul_grad_with_sgd,
    sparse_dense_matmul_gradient_stack,
    sparse_gather,
    sparse_gather_backward,
)

__all__ = [
    "align_jagged_to_multiple",
    "all_gather_dim",
    "max_pool1d",
    "max_pool1d_backward",
    "max_pool2d",
    "max_pool2d_backward",
    "max_pool3d",
    "max_pool3d_backward",
    "optimization_barrier",
    "ragged_all_to_all",
    "ragged_dot",
    "ragged_dot_weight_grad",
    "recv",
    "reduce_scatter_dim",
    "send",
    "sparse_dense_matmul",
    "sparse_dense_matmul_activation_unstack",
    "sparse_dense_matmul_grad_with_adagrad",
    "sparse_dense_matmul_grad_with_adam",
    "sparse_dense_matmul_grad_with_sgd",
    "sparse_dense_matmul_gradient_stack",
    "sparse_gather",
    "sparse_gather_backward",
    "splash_sdpa",
    "strip_jagged_padding",
]

# They prepare the SparseCores' own layout of a batch, which nothing here needs.
_NOT_HERE = {
    "sparse_iota": "torch.arange numbers elements, and torch.repeat_interleave their rows",
    "sparse_map_row": "torch_tpu.kernels.embedding_bag takes indices with offsets as they are",
}


def __getattr__(name: str) -> Any:
    instead = f": {_NOT_HERE[name]}" if name in _NOT_HERE else ""
    raise AttributeError(f"module 'torch_tpu.ops' has no attribute '{name}'{instead}")
