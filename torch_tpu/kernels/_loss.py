"""Cross-entropy over a large vocabulary: the logits are read once, block by block, and no
probabilities are written."""

from __future__ import annotations

import functools
from typing import Any

from torch_tpu.kernels._common import MASKED, block_of, cdiv, estimate, grid_params

_ROWS, _COLUMNS = 128, 2048


def _logits_block(x_ref: Any, j: Any, block: int, classes: int) -> tuple[Any, Any]:
    """The block in f32, what lies beyond the classes masked, and the class of each column."""
    import jax
    import jax.numpy as jnp

    x = x_ref[...].astype(jnp.float32)
    at = j * block + jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
    return jnp.where(at < classes, x, MASKED), at


def _kernel(
    x_ref: Any, t_ref: Any, loss_ref: Any, lse_ref: Any, m: Any, total: Any, picked: Any, *,
    block: int, classes: int, ignore: int,
) -> None:  # fmt: skip
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    j = pl.program_id(1)

    @pl.when(j == 0)
    def _start() -> None:
        m[...] = jnp.full_like(m, MASKED)
        total[...] = jnp.zeros_like(total)
        picked[...] = jnp.zeros_like(picked)

    x, at = _logits_block(x_ref, j, block, classes)
    target = t_ref[...]
    before = m[...]
    top = jnp.maximum(before, x.max(axis=1, keepdims=True))
    total[...] = total[...] * jnp.exp(before - top) + jnp.exp(x - top).sum(axis=1, keepdims=True)
    m[...] = top
    picked[...] += jnp.where(at == target, x, 0.0).sum(axis=1, keepdims=True)

    @pl.when(j == cdiv(classes, block) - 1)
    def _end() -> None:
        lse = m[...] + jnp.log(total[...])
        lse_ref[...] = lse
        loss_ref[...] = jnp.where(target == ignore, 0.0, lse - picked[...])


def _blocks(logits: Any) -> tuple[int, int]:
    rows, classes = logits.shape
    return block_of(rows, _ROWS, 16), block_of(classes, _COLUMNS)


def forward(logits: Any, target: Any, ignore_index: int) -> tuple[Any, Any]:
    """The loss of each row of logits[N, C], and the logarithm of its denominator."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    rows, classes = logits.shape
    block_r, block_c = _blocks(logits)
    one = pl.BlockSpec((block_r, 1), lambda i, j: (i, 0))
    column = jax.ShapeDtypeStruct((rows, 1), jnp.float32)
    loss, lse = pl.pallas_call(
        functools.partial(_kernel, block=block_c, classes=classes, ignore=ignore_index),
        grid=(cdiv(rows, block_r), cdiv(classes, block_c)),
        in_specs=[pl.BlockSpec((block_r, block_c), lambda i, j: (i, j)), one],
        out_specs=[one, one],
        out_shape=[column, column],
        scratch_shapes=[pltpu.VMEM((block_r, 1), jnp.float32)] * 3,
        compiler_params=grid_params("p", "a"),
        cost_estimate=estimate(0, logits, column, column),
        name="cross_entropy",
    )(logits, target.reshape(rows, 1))
    return loss[:, 0], lse[:, 0]


def _backward_kernel(
    x_ref: Any, t_ref: Any, lse_ref: Any, g_ref: Any, e_ref: Any, dx_ref: Any, *, block: int,
    classes: int,
) -> None:  # fmt: skip
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    x, at = _logits_block(x_ref, pl.program_id(1), block, classes)
    # e is the part of the denominator, g that of the class picked.
    dx = jnp.exp(x - lse_ref[...]) * e_ref[...] - jnp.where(at == t_ref[...], g_ref[...], 0.0)
    dx_ref[...] = dx.astype(dx_ref.dtype)


def backward(
    inputs: tuple[Any, Any], outputs: tuple[Any, Any], grads: tuple[Any, Any], ignore_index: int
) -> tuple[Any, None]:
    """The gradient of the logits."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    logits, target = inputs
    rows, classes = logits.shape
    block_r, block_c = _blocks(logits)
    g = jnp.where(target == ignore_index, 0.0, grads[0])
    one = pl.BlockSpec((block_r, 1), lambda i, j: (i, 0))
    tile = pl.BlockSpec((block_r, block_c), lambda i, j: (i, j))
    dx = pl.pallas_call(
        functools.partial(_backward_kernel, block=block_c, classes=classes),
        grid=(cdiv(rows, block_r), cdiv(classes, block_c)),
        in_specs=[tile, one, one, one, one],
        out_specs=tile,
        out_shape=jax.ShapeDtypeStruct(logits.shape, logits.dtype),
        compiler_params=grid_params("p", "p"),
        cost_estimate=estimate(0, logits, logits),
        name="cross_entropy_backward",
    )(logits, *[v.reshape(rows, 1) for v in (target, outputs[1], g, g + grads[1])])
    return dx, None
