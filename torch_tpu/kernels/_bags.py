"""Sums of rows of a table, per bag: each row is fetched by its index where it lies.

The gradient is a scatter, left to the compiler: on chips that have them it goes to the SparseCores.
"""

from __future__ import annotations

from typing import Any

from torch_tpu.kernels._common import estimate, grid_params


def _kernel(
    indices: Any, bags: Any, weights: Any, row_ref: Any, zeros_ref: Any, o_ref: Any
) -> None:
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    del indices, zeros_ref
    n = pl.program_id(0)
    row = row_ref[...].astype(jnp.float32) * weights[n]
    first = jnp.logical_or(n == 0, bags[n] != bags[jnp.maximum(n - 1, 0)])

    @pl.when(first)
    def _start() -> None:
        o_ref[...] = row

    @pl.when(jnp.logical_not(first))
    def _more() -> None:
        o_ref[...] += row


def forward(table: Any, indices: Any, bags: Any, weights: Any, num_bags: int) -> Any:
    """Row indices[n] of the table, times weights[n], is added to bag bags[n]; bags ascend."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    rows, width = table.shape
    count = indices.shape[0]
    shape = (num_bags, 1, width)
    out_shape = jax.ShapeDtypeStruct(shape, jnp.float32)
    out = pl.pallas_call(
        _kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(count,),
            in_specs=[
                pl.BlockSpec((1, 1, width), lambda n, indices, *_: (indices[n], 0, 0)),
                pl.BlockSpec((1, 1, width), lambda n, indices, bags, *_: (bags[n], 0, 0)),
            ],
            out_specs=pl.BlockSpec((1, 1, width), lambda n, indices, bags, *_: (bags[n], 0, 0)),
        ),
        out_shape=out_shape,
        # A bag that nothing goes to is never visited: it keeps these zeros.
        input_output_aliases={4: 0},
        compiler_params=grid_params("a"),
        cost_estimate=estimate(0, jax.ShapeDtypeStruct((count, width), table.dtype), out_shape),
        name="embedding_bag",
    )(indices, bags, weights, table.reshape(rows, 1, width), jnp.zeros(shape, jnp.float32))
    return out.reshape(num_bags, width).astype(table.dtype)


def backward(
    inputs: tuple[Any, Any, Any, Any], output: Any, grad: Any, num_bags: int
) -> tuple[Any, None, None, Any]:
    """Gradients of the table and the weights."""
    import jax.numpy as jnp

    del output, num_bags
    table, indices, bags, weights = inputs
    each = grad.astype(jnp.float32)[bags]
    d_table = jnp.zeros(table.shape, jnp.float32).at[indices].add(each * weights[:, None])
    d_weights = jnp.sum(table[indices].astype(jnp.float32) * each, axis=1)
    return d_table.astype(table.dtype), None, None, d_weights
