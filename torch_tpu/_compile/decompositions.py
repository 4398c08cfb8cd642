"""What AOTAutograd takes apart before the partitioner chooses what to save for backward.

Of a cross entropy it then saves the logits, which are in memory anyway, and two numbers a row,
instead of a result as large again. All other ops stay whole: their lowerings know more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions

_MEAN, _NONE = 1, 0  # of at::Reduction


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype.itemsize < 4 else x


def _nll_loss_forward(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    if not any(self.stride()):
        return NotImplemented  # our own call below
    # The sum of weights, and the check of the targets with its message.
    nothing = torch.zeros((), dtype=self.dtype, device=self.device).expand(self.shape)
    _, total = torch.ops.aten.nll_loss_forward(nothing, target, weight, reduction, ignore_index)
    dim = min(self.dim() - 1, 1)
    counts = target != ignore_index
    index = torch.where(counts, target, 0)
    loss = -_wide(self.gather(dim, index.unsqueeze(dim)).squeeze(dim))
    if weight is not None:
        loss = loss * weight[index]
    loss = torch.where(counts, loss, 0)
    if reduction != _NONE:
        loss = loss.sum()
    if reduction == _MEAN:
        loss = loss / total
    return loss.to(self.dtype), total


def _nll_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """A comparison with each class: unlike PyTorch's, it reads nothing of `self` and scatters
    nothing, so it joins the ops around it."""
    dim = min(self.dim() - 1, 1)
    if self.dim() == 1 and target.dim() == 1:
        target = target[0]  # PyTorch's kernels take as many targets as classes, and read the first
    # Compared once for each logit: in 32 bits, and one comparison also for what is ignored.
    classes = torch.arange(self.shape[dim], dtype=torch.int32, device=self.device)
    if weight is not None and self.dim() == 2:
        weight = weight.unsqueeze(0)
    if self.dim() == 2:
        classes = classes.unsqueeze(0)
    grad = _wide(grad_output)
    if reduction == _MEAN:
        grad = grad / total_weight
    if reduction == _NONE and self.dim() == 2:
        grad = grad.unsqueeze(dim)
    wanted = torch.where(target == ignore_index, -1, target).to(torch.int32).unsqueeze(dim)
    slope = -grad if weight is None else -grad * weight
    return torch.where(classes == wanted, slope, 0).to(self.dtype)


def _of_fixed_sizes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Bounded programs know how the sizes of one op's tensors relate, not those of its parts."""

    @functools.wraps(function)
    def call(first: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not all(isinstance(size, int) for size in first.shape):
            return NotImplemented
        return function(first, *args, **kwargs)

    return call


@functools.cache
def table() -> dict[Any, Callable[..., Any]]:
    """By overload, as AOTAutograd wants it."""
    aten = torch.ops.aten
    taken: dict[Any, Any] = {
        **get_decompositions([aten._log_softmax, aten._log_softmax_backward_data]),
        aten.nll_loss_forward.default: _nll_loss_forward,
        aten.nll_loss_backward.default: _nll_loss_backward,
    }
    return {op: _of_fixed_sizes(function) for op, function in taken.items()}
