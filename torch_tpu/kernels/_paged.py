"""Attention of one new token per sequence over keys and values that lie in pages."""

from __future__ import annotations

import functools
import math
from typing import Any

from torch_tpu.kernels._common import MASKED, add_block, dot, estimate, grid_params, start_softmax


def _kernel(
    lengths: Any, pages: Any, q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any, m: Any, total: Any,
    acc: Any, *, page: int, per_sequence: int, scale: float,
) -> None:  # fmt: skip
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    del pages
    b, j = pl.program_id(0), pl.program_id(2)
    length = lengths[b]

    @pl.when(j == 0)
    def _start() -> None:
        start_softmax(m, total, acc)

    @pl.when(j * page < length)
    def _page() -> None:
        s = dot(q_ref[0, 0], k_ref[0, 0], (1, 1)) * scale
        at = j * page + jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
        s = jnp.where(at < length, s, MASKED)
        add_block(m, total, acc, s, v_ref[0, 0])

    @pl.when(j == per_sequence - 1)
    def _end() -> None:
        sums = total[...]
        o_ref[0, 0] = (acc[...] / jnp.where(sums == 0, 1.0, sums)).astype(o_ref.dtype)


def forward(
    q: Any, k_pages: Any, v_pages: Any, lengths: Any, page_table: Any, scale: float | None
) -> Any:
    """q[B, H, D]; pages[Hkv, P, S, D]; page_table[B, N] names the pages of each sequence."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    batch, heads, width = q.shape
    kv_heads, _, page, _ = k_pages.shape
    group = heads // kv_heads
    per_sequence = page_table.shape[1]
    own = pl.BlockSpec((1, 1, group, width), lambda b, h, j, *_: (b, h, 0, 0))
    paged = pl.BlockSpec(
        (1, 1, page, width),
        lambda b, h, j, lengths, pages: (h, pages[b * per_sequence + j], 0, 0),
    )
    pages = jax.ShapeDtypeStruct((batch, kv_heads, per_sequence * page, width), k_pages.dtype)
    out = pl.pallas_call(
        functools.partial(
            _kernel,
            page=page,
            per_sequence=per_sequence,
            scale=1 / math.sqrt(width) if scale is None else scale,
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(batch, kv_heads, per_sequence),
            in_specs=[own, paged, paged],
            out_specs=own,
            scratch_shapes=[
                pltpu.VMEM((group, 1), jnp.float32),
                pltpu.VMEM((group, 1), jnp.float32),
                pltpu.VMEM((group, width), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((batch, kv_heads, group, width), q.dtype),
        compiler_params=grid_params("p", "p", "a"),
        cost_estimate=estimate(4 * q.size * per_sequence * page, q, q, pages, pages),
        name="paged_attention",
    )(lengths, page_table.reshape(-1), q.reshape(batch, kv_heads, group, width), k_pages, v_pages)
    return out.reshape(batch, heads, width)
