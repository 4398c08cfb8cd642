"""Attention over jagged tensors (torch.nested): PyTorch chooses a kernel by what CUDA has."""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu._on_import import on_import
from torch_tpu._replace import replace


def install() -> None:
    """Lets jagged attention take the op that goes from sequence to sequence on this device."""
    on_import("torch.nested._internal.sdpa", _complete)


def _complete(sdpa: Any) -> None:
    def make(original: Any) -> Any:
        def _select_sdp_backend(
            query: Any,
            key: Any,
            value: Any,
            attn_mask: Any,
            dropout: Any,
            is_causal: Any,
            enable_gqa: Any,
        ) -> Any:
            plain = attn_mask is None and dropout == 0.0 and not enable_gqa
            if query.device.type == "tpu" and plain and _fits(query, key, value):
                return sdpa.SDPBackend.FLASH_ATTENTION
            return original(query, key, value, attn_mask, dropout, is_causal, enable_gqa)

        return _select_sdp_backend

    def make_padding(original: Any) -> Any:
        def _pad_last_dim(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            # To a multiple of 8, for CUDA's kernel.
            return tensor if tensor.device.type == "tpu" else original(tensor, *args, **kwargs)

        return _pad_last_dim

    replace(sdpa, "_select_sdp_backend", make)
    replace(sdpa, "_pad_last_dim", make_padding)


def _fits(query: Any, key: Any, value: Any) -> bool:
    """[batch, heads, sequence, E], ragged in the sequence. Any fused kernel that the user allows
    stands for ours."""
    cuda = torch.backends.cuda
    if not (
        cuda.flash_sdp_enabled() or cuda.mem_efficient_sdp_enabled() or cuda.cudnn_sdp_enabled()
    ):
        return False
    return all(
        x.dim() == 4
        and x._ragged_idx == 2
        and x.dtype.is_floating_point
        and x.dtype == query.dtype
        and x.size(0) == query.size(0)
        and x.size(1) == query.size(1)
        and x.size(-1) == query.size(-1)
        for x in (query, key, value)
    )
