"""Products of groups of rows with a matrix each: the experts of a mixture.

The rows of all groups lie one after the other, and a tile of rows may belong to several groups. So
the work is cut into items, a tile and a group each, in order: where they meet, a mask of the rows
decides. How many items there are is known beforehand; which, only when the sizes are.
"""

from __future__ import annotations

import functools
from typing import Any

from torch_tpu.kernels._common import block_of, cdiv, dot, estimate, grid_params, pad_to

_ROWS, _INNER, _COLUMNS = 128, 512, 512


def _items(sizes: Any, rows: int, tile: int) -> tuple[Any, Any, Any, Any]:
    """Per item its group and tile; per group where its rows begin and end. Rows that no group has
    make a group of their own, the last."""
    import jax.numpy as jnp

    groups = sizes.shape[0]
    ends = jnp.minimum(jnp.cumsum(sizes), rows).astype(jnp.int32)
    ends = jnp.append(ends, jnp.int32(rows))
    begins = jnp.concatenate([jnp.zeros((1,), jnp.int32), ends[:-1]])
    tiles = cdiv(rows, tile)
    first = jnp.minimum(begins // tile, tiles - 1)
    last = jnp.clip((ends - 1) // tile, first, tiles - 1)
    count = jnp.where(ends > begins, last - first + 1, 1)  # an empty group has an item, too
    until = jnp.cumsum(count)
    item = jnp.arange(tiles + groups + 1, dtype=jnp.int32)
    group = jnp.sum(item[:, None] >= until[None, :], axis=1).astype(jnp.int32)
    there = group <= groups
    group = jnp.minimum(group, groups)
    at = jnp.where(there, first[group] + item - (until[group] - count[group]), tiles - 1)
    # Items beyond the last do the work of the last group on no rows.
    begins = jnp.append(begins, jnp.int32(rows))
    ends = jnp.append(ends, jnp.int32(rows))
    group = jnp.where(there, group, groups + 1)
    return group, at.astype(jnp.int32), begins, ends


def _mask(groups: Any, tiles: Any, begins: Any, ends: Any, w: Any, shape: Any, tile: int) -> Any:
    import jax
    import jax.numpy as jnp

    group = groups[w]
    row = tiles[w] * tile + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    return jnp.logical_and(row >= begins[group], row < ends[group])


def _kernel(
    groups: Any, tiles: Any, begins: Any, ends: Any, x_ref: Any, w_ref: Any, o_ref: Any, acc: Any,
    *, tile: int, num_groups: int, steps: int,
) -> None:  # fmt: skip
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    w, k = pl.program_id(1), pl.program_id(2)

    @pl.when(k == 0)
    def _start() -> None:
        acc[...] = jnp.zeros_like(acc)

    @pl.when(groups[w] < num_groups)
    def _step() -> None:
        acc[...] += dot(x_ref[...], w_ref[0], (1, 0))

    @pl.when(k == steps - 1)
    def _end() -> None:
        mine = _mask(groups, tiles, begins, ends, w, acc.shape, tile)
        again = jnp.logical_and(w > 0, tiles[w] == tiles[jnp.maximum(w - 1, 0)])
        others = jnp.where(again, o_ref[...].astype(jnp.float32), 0.0)
        o_ref[...] = jnp.where(mine, acc[...], others).astype(o_ref.dtype)


def product(x: Any, weights: Any, sizes: Any) -> Any:
    """x[M, K] by weights[G, K, N]: the first sizes[0] rows by the first, and so on."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    rows, inner = x.shape
    num_groups, _, columns = weights.shape
    tile = block_of(rows, _ROWS, 16)
    block_k, block_n = block_of(inner, _INNER), block_of(columns, _COLUMNS)
    padded = (cdiv(rows, tile) * tile, cdiv(inner, block_k) * block_k)
    wide = cdiv(columns, block_n) * block_n
    items = _items(sizes, padded[0], tile)
    steps = padded[1] // block_k
    out_shape = jax.ShapeDtypeStruct((padded[0], wide), x.dtype)
    out = pl.pallas_call(
        functools.partial(_kernel, tile=tile, num_groups=num_groups, steps=steps),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(wide // block_n, items[0].shape[0], steps),
            in_specs=[
                pl.BlockSpec((tile, block_k), lambda n, w, k, groups, tiles, *_: (tiles[w], k)),
                pl.BlockSpec(
                    (1, block_k, block_n),
                    lambda n, w, k, groups, *_: (jnp.minimum(groups[w], num_groups - 1), k, n),
                ),
            ],
            out_specs=pl.BlockSpec(
                (tile, block_n), lambda n, w, k, groups, tiles, *_: (tiles[w], n)
            ),
            scratch_shapes=[pltpu.VMEM((tile, block_n), jnp.float32)],
        ),
        out_shape=out_shape,
        compiler_params=grid_params("p", "a", "a"),
        cost_estimate=estimate(2 * rows * inner * columns, x, weights, out_shape),
        name="grouped_matmul",
    )(*items, pad_to(x, padded), pad_to(weights, (num_groups, padded[1], wide)))
    return out[:rows, :columns]


def _transposed_kernel(
    groups: Any, tiles: Any, begins: Any, ends: Any, x_ref: Any, g_ref: Any, o_ref: Any, acc: Any,
    *, tile: int, items: int,
) -> None:  # fmt: skip
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    w = pl.program_id(2)
    group = groups[w]

    @pl.when(jnp.logical_or(w == 0, group != groups[jnp.maximum(w - 1, 0)]))
    def _start() -> None:
        acc[...] = jnp.zeros_like(acc)

    x, g = x_ref[...], g_ref[...]
    mine = _mask(groups, tiles, begins, ends, w, x.shape, tile)
    acc[...] += dot(jnp.where(mine, x, jnp.zeros_like(x)), g, (0, 0))

    following = groups[jnp.minimum(w + 1, items - 1)]

    @pl.when(jnp.logical_or(w == items - 1, group != following))
    def _end() -> None:
        o_ref[0] = acc[...].astype(o_ref.dtype)


def transposed_product(x: Any, grad: Any, sizes: Any, dtype: Any) -> Any:
    """Per group the product of its rows of x, transposed, and of grad: [G, K, N]."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    (rows, inner), columns = x.shape, grad.shape[1]
    num_groups = sizes.shape[0]
    tile = block_of(rows, _ROWS, 16)
    block_k, block_n = block_of(inner, _INNER), block_of(columns, _COLUMNS)
    deep, wide = cdiv(inner, block_k) * block_k, cdiv(columns, block_n) * block_n
    high = cdiv(rows, tile) * tile
    items = _items(sizes, high, tile)
    # Two more for the rows of no group and for the items beyond the last.
    out_shape = jax.ShapeDtypeStruct((num_groups + 2, deep, wide), dtype)
    out = pl.pallas_call(
        functools.partial(_transposed_kernel, tile=tile, items=items[0].shape[0]),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(deep // block_k, wide // block_n, items[0].shape[0]),
            in_specs=[
                pl.BlockSpec((tile, block_k), lambda k, n, w, groups, tiles, *_: (tiles[w], k)),
                pl.BlockSpec((tile, block_n), lambda k, n, w, groups, tiles, *_: (tiles[w], n)),
            ],
            out_specs=pl.BlockSpec(
                (1, block_k, block_n), lambda k, n, w, groups, *_: (groups[w], k, n)
            ),
            scratch_shapes=[pltpu.VMEM((block_k, block_n), jnp.float32)],
        ),
        out_shape=out_shape,
        compiler_params=grid_params("p", "p", "a"),
        cost_estimate=estimate(2 * rows * inner * columns, x, grad, out_shape),
        name="grouped_matmul_transposed",
    )(*items, pad_to(x, (high, deep)), pad_to(grad, (high, wide)))
    return out[:num_groups, :inner, :columns]


def backward(inputs: tuple[Any, Any, Any], output: Any, grad: Any) -> tuple[Any, Any, None]:
    """Gradients of x and the weights."""
    del output
    x, weights, sizes = inputs
    dx = product(grad, weights.transpose(0, 2, 1), sizes)
    return dx, transposed_product(x, grad.astype(x.dtype), sizes, weights.dtype), None
