"""Maximum pooling: PyTorch's own ops, and their gradients as functions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

max_pool1d = F.max_pool1d
max_pool2d = F.max_pool2d
max_pool3d = F.max_pool3d

_Sizes = int | tuple[int, ...] | list[int]


def _backward(
    dims: int,
    grad_output: torch.Tensor,
    input: torch.Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None,
    padding: _Sizes,
    dilation: _Sizes,
    ceil_mode: bool,
) -> torch.Tensor:
    def each(sizes: _Sizes) -> list[int]:
        given = [sizes] if isinstance(sizes, int) else list(sizes)
        return given * dims if len(given) == 1 else given

    sizes = [each(kernel_size), each(kernel_size if stride is None else stride)]
    sizes += [each(padding), each(dilation)]
    aten: Any = torch.ops.aten
    if dims == 1:  # PyTorch pools it as an image of height one
        sizes = [[neutral, *size] for neutral, size in zip((1, 1, 0, 1), sizes, strict=True)]
        grad_output, input = grad_output.unsqueeze(-2), input.unsqueeze(-2)
    name = f"max_pool{max(dims, 2)}d_with_indices"
    _, indices = getattr(aten, name)(input, *sizes, ceil_mode)
    grad = getattr(aten, name + "_backward")(grad_output, input, *sizes, ceil_mode, indices)
    return grad.squeeze(-2) if dims == 1 else grad


def max_pool1d_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    ceil_mode: bool = False,
) -> torch.Tensor:
    """The gradient of `max_pool1d`'s input.

    >>> import torch
    >>> x = torch.tensor([[[1.0, 3.0, 2.0, 0.0]]], device="tpu")
    >>> torch.tpu.ops.max_pool1d_backward(torch.ones(1, 1, 2, device="tpu"), x, 2)
    tensor([[[0., 1., 1., 0.]]], device='tpu:0')
    """
    return _backward(1, grad_output, input, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool2d_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    ceil_mode: bool = False,
) -> torch.Tensor:
    """The gradient of `max_pool2d`'s input; see `max_pool1d_backward`."""
    return _backward(2, grad_output, input, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool3d_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    ceil_mode: bool = False,
) -> torch.Tensor:
    """The gradient of `max_pool3d`'s input; see `max_pool1d_backward`."""
    return _backward(3, grad_output, input, kernel_size, stride, padding, dilation, ceil_mode)
