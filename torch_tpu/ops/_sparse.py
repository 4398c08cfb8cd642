"""Embedding tables by sums of rows: what a TPU's SparseCores do, said in gathers and scatters. A
batch is a sparse matrix, samples by table rows, of which `sample_ids`, `embedding_ids` and `gains`
say the elements, in any order."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def _check(op: str, sample_ids: torch.Tensor, embedding_ids: torch.Tensor) -> None:
    good = sample_ids.dim() == 1 and sample_ids.shape == embedding_ids.shape
    if not good or sample_ids.is_floating_point() or embedding_ids.is_floating_point():
        raise ValueError(
            f"[{op}] expected integer sample_ids[N] and embedding_ids[N], got "
            f"{list(sample_ids.shape)} {sample_ids.dtype} and {list(embedding_ids.shape)} "
            f"{embedding_ids.dtype}"
        )


def sparse_gather(table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows of a table; with a gradient.

    >>> import torch
    >>> table = torch.tensor([[1.0], [2.0], [3.0]], device="tpu")
    >>> torch.tpu.ops.sparse_gather(table, torch.tensor([2, 0], device="tpu")).flatten()
    tensor([3., 1.], device='tpu:0')
    """
    return table.index_select(0, indices.reshape(-1)).reshape(*indices.shape, *table.shape[1:])


def sparse_gather_backward(
    grad: torch.Tensor, indices: torch.Tensor, num_rows: int
) -> torch.Tensor:
    """The gradient of `sparse_gather`'s table: gradients of equal rows add up."""
    width = grad.shape[indices.dim() :]
    rows = grad.reshape(indices.numel(), *width)
    zeros = grad.new_zeros((num_rows, *width))
    return zeros.index_add(0, indices.reshape(-1), rows)


def sparse_dense_matmul(
    sample_ids: torch.Tensor,
    embedding_ids: torch.Tensor,
    gains: torch.Tensor,
    table: torch.Tensor,
    num_samples: int,
) -> torch.Tensor:
    """Per sample the sum of its rows of table[V, D], each times its gain: [num_samples, D]. With
    gradients of table and gains.

    >>> import torch
    >>> samples, rows = torch.tensor([[0, 0, 1], [0, 2, 1]], device="tpu")
    >>> table = torch.tensor([[1.0], [10.0], [100.0]], device="tpu")
    >>> gains = torch.ones(3, device="tpu")
    >>> torch.tpu.ops.sparse_dense_matmul(samples, rows, gains, table, 2).flatten()
    tensor([101.,  10.], device='tpu:0')
    """
    _check("sparse_dense_matmul", sample_ids, embedding_ids)
    rows = table.index_select(0, embedding_ids) * gains.to(table.dtype)[:, None]
    return table.new_zeros((num_samples, table.shape[1])).index_add(0, sample_ids, rows)


def sparse_dense_matmul_activation_unstack(
    activations: torch.Tensor, num_samples: Sequence[int], widths: Sequence[int] | None = None
) -> list[torch.Tensor]:
    """The activations of several features that were looked up together: of the stacked rows each
    takes as many as it has samples, and as many columns as it is wide.

    >>> import torch
    >>> unstack = torch.tpu.ops.sparse_dense_matmul_activation_unstack
    >>> a, b = unstack(torch.ones(3, 4, device="tpu"), [1, 2], [4, 2])
    >>> a.shape, b.shape
    (torch.Size([1, 4]), torch.Size([2, 2]))
    """
    parts = activations.split(list(num_samples))
    if widths is None:
        return list(parts)
    return [part[:, :width] for part, width in zip(parts, widths, strict=True)]


def sparse_dense_matmul_gradient_stack(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The reverse of `sparse_dense_matmul_activation_unstack`: narrow ones get columns of zeros."""
    width = max(gradient.shape[1] for gradient in gradients)
    return torch.cat(
        [torch.nn.functional.pad(each, (0, width - each.shape[1])) for each in gradients]
    )


def _rows_gradient(
    sample_ids: torch.Tensor,
    embedding_ids: torch.Tensor,
    gains: torch.Tensor,
    table: torch.Tensor,
    grad: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of the table, and which of its rows were looked up: [V, 1]."""
    _check("sparse_dense_matmul_grad", sample_ids, embedding_ids)
    each = grad.index_select(0, sample_ids) * gains.to(grad.dtype)[:, None]
    total = torch.zeros_like(table).index_add(0, embedding_ids, each.to(table.dtype))
    met = torch.zeros_like(table[:, :1]).index_fill(0, embedding_ids, 1).bool()
    return total, met


def sparse_dense_matmul_grad_with_sgd(
    sample_ids: torch.Tensor,
    embedding_ids: torch.Tensor,
    gains: torch.Tensor,
    table: torch.Tensor,
    grad: torch.Tensor,
    learning_rate: float | torch.Tensor,
) -> torch.Tensor:
    """The table after a step of SGD by the gradient grad[num_samples, D] of the activations."""
    total, _ = _rows_gradient(sample_ids, embedding_ids, gains, table, grad)
    return table - learning_rate * total


def sparse_dense_matmul_grad_with_adagrad(
    sample_ids: torch.Tensor,
    embedding_ids: torch.Tensor,
    gains: torch.Tensor,
    table: torch.Tensor,
    accumulator: torch.Tensor,
    grad: torch.Tensor,
    learning_rate: float | torch.Tensor,
    epsilon: float = 1e-10,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Table and accumulator (the sum of squared gradients) after a step of Adagrad."""
    total, _ = _rows_gradient(sample_ids, embedding_ids, gains, table, grad)
    accumulator = accumulator + total * total
    return table - learning_rate * total / (accumulator.sqrt() + epsilon), accumulator


def sparse_dense_matmul_grad_with_adam(
    sample_ids: torch.Tensor,
    embedding_ids: torch.Tensor,
    gains: torch.Tensor,
    table: torch.Tensor,
    momentum: torch.Tensor,
    velocity: torch.Tensor,
    grad: torch.Tensor,
    learning_rate: float | torch.Tensor,
    step: int | torch.Tensor,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Table, momentum and velocity after step number `step` of Adam. Rows that were not looked up
    stay as they are, as with torch.optim.SparseAdam."""
    total, met = _rows_gradient(sample_ids, embedding_ids, gains, table, grad)
    first = torch.where(met, beta_1 * momentum + (1 - beta_1) * total, momentum)
    second = torch.where(met, beta_2 * velocity + (1 - beta_2) * total * total, velocity)
    size = learning_rate * (1 - beta_2**step) ** 0.5 / (1 - beta_1**step)
    moved = table - size * first / (second.sqrt() + epsilon)
    return torch.where(met, moved, table), first, second
