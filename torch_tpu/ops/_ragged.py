"""Products of groups of rows with a matrix each, by the kernels of torch_tpu.kernels."""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu import kernels
from torch_tpu.kernels import _grouped
from torch_tpu.pallas import jax_op


def ragged_dot(lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor) -> torch.Tensor:
    """The first group_sizes[0] rows of lhs[M, K] times rhs[0], and so on: jax.lax.ragged_dot. With
    gradients of both.

    >>> import torch
    >>> w = torch.stack([torch.eye(2), 2 * torch.eye(2)]).to("tpu")
    >>> sizes = torch.tensor([1, 2], device="tpu")
    >>> torch.tpu.ops.ragged_dot(torch.ones(3, 2, device="tpu"), w, sizes)
    tensor([[1., 1.],
            [2., 2.],
            [2., 2.]], device='tpu:0')
    """
    return kernels.grouped_matmul(lhs, rhs, group_sizes)


def _weight_grad(lhs: Any, grad: Any, group_sizes: Any) -> Any:
    return _grouped.transposed_product(lhs, grad, group_sizes, lhs.dtype)


_weight_grad_op = jax_op("torch_tpu::ragged_dot_weight_grad", _weight_grad, differentiable=False)


def ragged_dot_weight_grad(
    lhs: torch.Tensor, grad: torch.Tensor, group_sizes: torch.Tensor
) -> torch.Tensor:
    """The gradient of ragged_dot's weights, [G, K, N]: per group its rows of lhs[M, K], transposed,
    times its rows of grad[M, N].

    >>> import torch
    >>> x, g = torch.ones(3, 1, device="tpu"), torch.ones(3, 1, device="tpu")
    >>> torch.tpu.ops.ragged_dot_weight_grad(x, g, torch.tensor([1, 2], device="tpu")).flatten()
    tensor([1., 2.], device='tpu:0')
    """
    if lhs.dim() != 2 or grad.dim() != 2 or lhs.shape[0] != grad.shape[0]:
        raise ValueError(
            f"[ragged_dot_weight_grad] expected lhs[M, K] and grad[M, N], got {list(lhs.shape)} "
            f"and {list(grad.shape)}"
        )
    return _weight_grad_op(lhs, grad.to(lhs.dtype), group_sizes.int())
