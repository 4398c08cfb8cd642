"""Pallas kernels for the device "tpu": for TPUs by Mosaic, elsewhere as the plain loops they are.

Each is an op of the namespace `torch_tpu` with a gradient, and works in every mode. They need JAX
when called with shapes not seen before (`pip install torchtpu[jax]`).

    >>> import torch
    >>> from torch_tpu.kernels import rms_norm
    >>> rms_norm(torch.full((1, 4), 3.0, device="tpu"), torch.ones(4, device="tpu"), eps=0.0)
    tensor([[1., 1., 1., 1.]], device='tpu:0')
"""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu.kernels import _bags, _flash, _grouped, _loss, _norm, _paged
from torch_tpu.pallas import jax_op

__all__ = [
    "cross_entropy",
    "embedding_bag",
    "flash_attention",
    "grouped_matmul",
    "paged_attention",
    "rms_norm",
    "rotary",
]


def _flash_function(
    query: Any,
    key: Any,
    value: Any,
    causal: bool = False,
    scale: float | None = None,
    block_q: int = 512,
    block_k: int = 512,
    left: int = -1,
    right: int = -1,
) -> Any:
    return _flash.forward(query, key, value, causal, scale, block_q, block_k, left, right)


def _paged_function(
    query: Any,
    key_pages: Any,
    value_pages: Any,
    lengths: Any,
    page_table: Any,
    scale: float | None = None,
) -> Any:
    return _paged.forward(query, key_pages, value_pages, lengths, page_table, scale)


def _rms_function(x: Any, weight: Any, eps: float = 1e-6) -> Any:
    return _norm.rms_forward(x, weight, eps)


def _loss_function(logits: Any, target: Any, ignore_index: int = -100) -> Any:
    return _loss.forward(logits, target, ignore_index)


def _bag_function(table: Any, indices: Any, bags: Any, weights: Any, num_bags: int) -> Any:
    return _bags.forward(table, indices, bags, weights, num_bags)


_flash_op = jax_op(
    "torch_tpu::flash_attention", _flash_function, outputs=2, backward=_flash.backward
)
_paged_op = jax_op("torch_tpu::paged_attention", _paged_function, differentiable=False)
_rms_op = jax_op("torch_tpu::rms_norm", _rms_function, backward=_norm.rms_backward)
_rotary_op = jax_op("torch_tpu::rotary", _norm.rotary_forward, backward=_norm.rotary_backward)
_loss_op = jax_op("torch_tpu::cross_entropy", _loss_function, outputs=2, backward=_loss.backward)
_grouped_op = jax_op("torch_tpu::grouped_matmul", _grouped.product, backward=_grouped.backward)
_bag_op = jax_op("torch_tpu::embedding_bag", _bag_function, backward=_bags.backward)


def _check(good: bool, op: str, expected: str, *tensors: torch.Tensor) -> None:
    if not good:
        got = ", ".join(f"{list(t.shape)} {t.dtype}" for t in tensors)
        raise ValueError(f"[{op}] expected {expected}, got {got}".replace("torch.", ""))


def _bounds(
    window: tuple[int | None, int | None] | None, queries: int, keys: int, op: str, given: object
) -> tuple[int, int]:
    """How far a query sees to the left and to the right; -1: no bound. Errors name the op and the
    window that were given."""
    if window is None:
        return -1, -1
    if len(window) != 2 or any(side is not None and side < 0 for side in window):
        raise ValueError(f"[{op}] a window is (left, right), numbers from 0 or None, got {given}")
    left, right = (-1 if side is None else int(side) for side in window)
    if left >= 0 and queries - left > keys:
        raise ValueError(
            f"[{op}] the window {given} has no key for query {queries - 1}: there are {keys} keys"
        )
    return left, right


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    block_q: int = 512,
    block_k: int = 512,
    window: tuple[int | None, int | None] | None = None,
) -> torch.Tensor:
    """Scaled dot product attention whose scores are never held in the device's memory.

    query[B, H, L, D], key and value[B, Hkv, S, D], where Hkv divides H. A causal mask is aligned at
    the first query and the first key, as in torch's scaled_dot_product_attention. With a window
    (left, right) a query at i sees keys from i - left to i + right (None: no bound); blocks of keys
    that no query sees are not computed.

    >>> import torch
    >>> from torch_tpu.kernels import flash_attention
    >>> q = torch.zeros(1, 2, 3, 8, device="tpu")
    >>> flash_attention(q, q, q + 1, is_causal=True).mean()
    tensor(1., device='tpu:0')
    """
    _check(
        query.dim() == key.dim() == 4
        and key.shape == value.shape
        and query.shape[0] == key.shape[0]
        and query.shape[3] == key.shape[3]
        and query.shape[1] % max(key.shape[1], 1) == 0
        and query.dtype == key.dtype == value.dtype
        and key.shape[2] > 0,
        "flash_attention",
        "query[B, H, L, D], key and value[B, Hkv, S, D] of one dtype, where Hkv divides H",
        query,
        key,
        value,
    )
    for name, block in (("block_q", block_q), ("block_k", block_k)):
        if block <= 0 or block % 128 != 0:
            raise ValueError(f"[flash_attention] {name} must be a multiple of 128, got {block}")
    left, right = _bounds(window, query.shape[2], key.shape[2], "flash_attention", window)
    out, _ = _flash_op(query, key, value, is_causal, scale, block_q, block_k, left, right)
    return out


def paged_attention(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor,
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention of one new token per sequence over keys and values in pages. No gradient.

    query[B, H, D]; pages[Hkv, P, page size, D]; lengths[B]: how many keys each sequence has;
    page_table[B, N]: the pages of each sequence, in order (any valid page behind the last).

    >>> import torch
    >>> from torch_tpu.kernels import paged_attention
    >>> q, pages = torch.zeros(1, 2, 8, device="tpu"), torch.ones(2, 4, 16, 8, device="tpu")
    >>> table = torch.tensor([[3, 1]], device="tpu")
    >>> paged_attention(q, pages, pages, torch.tensor([17], device="tpu"), table).mean()
    tensor(1., device='tpu:0')
    """
    _check(
        query.dim() == 3
        and key_pages.dim() == 4
        and key_pages.shape == value_pages.shape
        and query.shape[2] == key_pages.shape[3]
        and query.shape[1] % max(key_pages.shape[0], 1) == 0
        and lengths.shape == query.shape[:1]
        and page_table.dim() == 2
        and page_table.shape[0] == query.shape[0],
        "paged_attention",
        "query[B, H, D], pages[Hkv, P, S, D], lengths[B], page_table[B, N]",
        query,
        key_pages,
        value_pages,
        lengths,
        page_table,
    )
    return _paged_op(query, key_pages, value_pages, lengths.int(), page_table.int(), scale)


def grouped_matmul(x: torch.Tensor, weights: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """The first sizes[0] rows of x[M, K] times weights[0], the next sizes[1] times weights[1] ...

    weights[G, K, N], sizes[G]; the result is [M, N]. Rows beyond the sum of the sizes give zeros.
    New sizes compile nothing.

    >>> import torch
    >>> from torch_tpu.kernels import grouped_matmul
    >>> w = torch.stack([torch.eye(2), 2 * torch.eye(2)]).to("tpu")
    >>> grouped_matmul(torch.ones(3, 2, device="tpu"), w, torch.tensor([1, 2], device="tpu"))
    tensor([[1., 1.],
            [2., 2.],
            [2., 2.]], device='tpu:0')
    """
    _check(
        x.dim() == 2
        and weights.dim() == 3
        and x.shape[1] == weights.shape[1]
        and sizes.shape == weights.shape[:1]
        and x.dtype == weights.dtype
        and not sizes.is_floating_point(),
        "grouped_matmul",
        "x[M, K], weights[G, K, N] of one dtype and integer sizes[G]",
        x,
        weights,
        sizes,
    )
    return _grouped_op(x, weights, sizes.int())


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension, computed in f32.

    >>> import torch
    >>> from torch_tpu.kernels import rms_norm
    >>> rms_norm(torch.full((2,), 5.0, device="tpu"), torch.ones(2, device="tpu"), eps=0.0)
    tensor([1., 1.], device='tpu:0')
    """
    _check(
        x.dim() >= 1 and weight.shape == x.shape[-1:] and x.shape[-1] > 0,
        "rms_norm",
        "x[..., D] and weight[D]",
        x,
        weight,
    )
    return _rms_op(x, weight, eps) if x.numel() > 0 else torch.empty_like(x)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x[B, H, L, D]: turns the pairs (i, i + D/2) by the angles whose
    cos and sin[L, D/2] are given.

    >>> import torch
    >>> from torch_tpu.kernels import rotary
    >>> x = torch.tensor([1.0, 2.0], device="tpu").view(1, 1, 1, 2)
    >>> rotary(x, torch.zeros(1, 1, device="tpu"), torch.ones(1, 1, device="tpu")).flatten()
    tensor([-2.,  1.], device='tpu:0')
    """
    _check(
        x.dim() == 4
        and x.shape[3] % 2 == 0
        and cos.shape == sin.shape == (x.shape[2], x.shape[3] // 2),
        "rotary",
        "x[B, H, L, D] with an even D, cos and sin[L, D/2]",
        x,
        cos,
        sin,
    )
    return _rotary_op(x, cos, sin)


def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> torch.Tensor:
    """Cross-entropy of logits[N, C] with classes target[N]; the logits are read once, and no
    probabilities are kept for the backward.

    >>> import torch
    >>> from torch_tpu.kernels import cross_entropy
    >>> cross_entropy(torch.zeros(2, 4, device="tpu"), torch.tensor([1, 3], device="tpu"))
    tensor(1.3863, device='tpu:0')
    """
    _check(
        logits.dim() == 2 and target.shape == logits.shape[:1] and not target.is_floating_point(),
        "cross_entropy",
        "logits[N, C] and integer target[N]",
        logits,
        target,
    )
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    loss, _ = _loss_op(logits, target.int(), ignore_index)
    if reduction == "none":
        return loss
    total = loss.sum()
    return total if reduction == "sum" else total / (target != ignore_index).sum()


def embedding_bag(
    indices: torch.Tensor,
    table: torch.Tensor,
    offsets: torch.Tensor | None = None,
    *,
    mode: str = "sum",
    per_sample_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sums or means of rows of table[V, D] per bag, as torch's embedding_bag.

    indices[B, L]: a bag per row; or indices[N] with offsets[B], where each bag begins.

    >>> import torch
    >>> from torch_tpu.kernels import embedding_bag
    >>> table = torch.tensor([[1.0], [10.0], [100.0]], device="tpu")
    >>> embedding_bag(torch.tensor([[0, 1], [1, 2]], device="tpu"), table)
    tensor([[ 11.],
            [110.]], device='tpu:0')
    """
    _check(
        table.dim() == 2
        and not indices.is_floating_point()
        and indices.dim() == (2 if offsets is None else 1)
        and (per_sample_weights is None or per_sample_weights.shape == indices.shape)
        and (offsets is None or offsets.dim() == 1),
        "embedding_bag",
        "integer indices[B, L], or indices[N] with offsets[B], and table[V, D]",
        indices,
        table,
    )
    if mode not in ("sum", "mean"):
        raise ValueError(f"[embedding_bag] mode must be 'sum' or 'mean', got {mode!r}")
    if mode == "mean" and per_sample_weights is not None:
        raise ValueError("[embedding_bag] per_sample_weights go with mode='sum' only")
    where = indices.device
    if offsets is None:
        num_bags, length = indices.shape
        bags = torch.arange(num_bags, device=where, dtype=torch.int32).repeat_interleave(length)
    else:
        num_bags = offsets.numel()
        at = torch.arange(indices.numel(), device=where)
        bags = torch.searchsorted(offsets.long(), at, right=True, out_int32=True) - 1
    if indices.numel() == 0:
        return torch.zeros(num_bags, table.shape[1], device=where, dtype=table.dtype)
    if per_sample_weights is not None:
        weights = per_sample_weights.flatten().float()
    else:
        weights = torch.ones(indices.numel(), device=where)
    if mode == "mean":
        counts = torch.zeros(num_bags, device=where).index_add_(0, bags, weights)
        weights = weights / counts[bags.long()]
    return _bag_op(table, indices.flatten().int(), bags.int(), weights, num_bags)
