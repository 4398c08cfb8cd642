"""Attention with a window, by the flash kernel of torch_tpu.kernels."""

from __future__ import annotations

import torch

from torch_tpu import kernels

Window = int | tuple[int | None, int | None] | None


def splash_sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: Window = None,
) -> torch.Tensor:
    """`scaled_dot_product_attention` whose scores are never held in memory, with a window: a query
    at i sees keys from i - left to i + right, `window=(left, right)`, None for no bound; a number
    stands for as many keys up to the query's own.

    >>> import torch
    >>> q = torch.zeros(1, 1, 4, 8, device="tpu")
    >>> v = torch.arange(4.0, device="tpu").view(1, 1, 4, 1).expand(1, 1, 4, 8)
    >>> torch.tpu.ops.splash_sdpa(q, q, v, window=2)[0, 0, :, 0]
    tensor([0.0000, 0.5000, 1.5000, 2.5000], device='tpu:0')
    """
    if attn_mask is not None or dropout_p:
        raise NotImplementedError(
            "[splash_sdpa] it has a window, but no mask of your own and no dropout: use "
            "torch.nn.functional.scaled_dot_product_attention for those."
        )
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ValueError(
            f"[splash_sdpa] {query.shape[1]} heads of queries for {key.shape[1]} of keys: "
            f"set enable_gqa=True."
        )
    if isinstance(window, int) and window < 1:
        raise ValueError(f"[splash_sdpa] a window of keys is a number from 1, got {window}")
    sides = (window - 1, 0) if isinstance(window, int) else window
    kernels._bounds(sides, query.shape[2], key.shape[2], "splash_sdpa", window)
    return kernels.flash_attention(
        query, key, value, is_causal=is_causal, scale=scale, window=sides
    )
