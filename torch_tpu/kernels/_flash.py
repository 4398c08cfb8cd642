"""Flash attention, forward and backward: scores exist one block at a time, in the chip's memory.

Queries and keys are padded to whole blocks; what is padded is masked. Of shared heads (GQA) each
key head is read by its group of query heads where it lies.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from torch_tpu.kernels._common import (
    MASKED,
    add_block,
    block_of,
    cdiv,
    dot,
    estimate,
    grid_params,
    pad_to,
    start_softmax,
)


@dataclass(frozen=True)
class _Plan:
    """The sizes of one call."""

    batch: int
    heads: int
    group: int  # query heads per key head
    length: int
    keys: int
    width: int
    block_q: int
    block_k: int
    left: int  # a query at i sees keys from i - left ...
    right: int  # ... to i + right; -1: no bound
    scale: float

    @property
    def num_q(self) -> int:
        return cdiv(self.length, self.block_q)

    @property
    def num_k(self) -> int:
        return cdiv(self.keys, self.block_k)

    @property
    def product(self) -> int:
        """FLOPs of one product of the size of the scores, of the blocks that count."""
        blocks = sum(
            bool(_needed(self, i, j)) for i in range(self.num_q) for j in range(self.num_k)
        )
        return 2 * self.batch * self.heads * self.width * blocks * self.block_q * self.block_k


def _plan(
    q: Any,
    k: Any,
    causal: bool,
    scale: float | None,
    block_q: int,
    block_k: int,
    left: int,
    right: int,
) -> _Plan:
    batch, heads, length, width = q.shape
    keys = k.shape[2]
    return _Plan(
        batch,
        heads,
        heads // k.shape[1],
        length,
        keys,
        width,
        block_of(length, block_q),
        block_of(keys, block_k),
        left,
        0 if causal else right,
        1 / math.sqrt(width) if scale is None else scale,
    )


def _scores(plan: _Plan, q: Any, k: Any, i: Any, j: Any) -> Any:
    """Block (i, j) of the scores, masked."""
    import jax
    import jax.numpy as jnp

    s = dot(q, k, (1, 1)) * plan.scale
    rows = i * plan.block_q + jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
    columns = j * plan.block_k + jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
    valid = columns < plan.keys
    if plan.right >= 0:
        valid = jnp.logical_and(valid, columns - rows <= plan.right)
    if plan.left >= 0:
        valid = jnp.logical_and(valid, rows - columns <= plan.left)
    return jnp.where(valid, s, MASKED)


def _needed(plan: _Plan, i: Any, j: Any) -> Any:
    """Whether a block of scores has any that counts."""
    needed: Any = True
    if plan.right >= 0:
        needed = j * plan.block_k - (i * plan.block_q + plan.block_q - 1) <= plan.right
    if plan.left >= 0:
        near = i * plan.block_q - (j * plan.block_k + plan.block_k - 1) <= plan.left
        needed = near if needed is True else needed & near
    return needed


def _forward_kernel(
    q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any, lse_ref: Any, m: Any, total: Any, acc: Any, *,
    plan: _Plan,
) -> None:  # fmt: skip
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    i, j = pl.program_id(2), pl.program_id(3)

    @pl.when(j == 0)
    def _start() -> None:
        start_softmax(m, total, acc)

    @pl.when(_needed(plan, i, j))
    def _block() -> None:
        s = _scores(plan, q_ref[0, 0], k_ref[0, 0], i, j)
        add_block(m, total, acc, s, v_ref[0, 0])

    @pl.when(j == plan.num_k - 1)
    def _end() -> None:
        o_ref[0, 0] = (acc[...] / total[...]).astype(o_ref.dtype)
        lse_ref[0, 0] = (m[...] + jnp.log(total[...])).T


def _specs(plan: _Plan, of_q: str, of_k: str) -> tuple[Any, Any, Any]:
    """Blocks of queries, of keys, and of one number per query, in a grid whose last two dimensions
    are named "qk" or "kq"."""
    from jax.experimental import pallas as pl

    del of_k
    first_is_q = of_q == "first"

    def q_at(b: Any, h: Any, x: Any, y: Any) -> tuple[Any, ...]:
        return (b, h, x if first_is_q else y, 0)

    def row_at(b: Any, h: Any, x: Any, y: Any) -> tuple[Any, ...]:
        return (b, h, 0, x if first_is_q else y)

    def k_at(b: Any, h: Any, x: Any, y: Any) -> tuple[Any, ...]:
        return (b, h // plan.group, y if first_is_q else x, 0)

    return (
        pl.BlockSpec((1, 1, plan.block_q, plan.width), q_at),
        pl.BlockSpec((1, 1, plan.block_k, plan.width), k_at),
        # Along the lanes: a column of single numbers would take 128 times its size in HBM.
        pl.BlockSpec((1, 1, 1, plan.block_q), row_at),
    )


def _padded(plan: _Plan, x: Any, queries: bool) -> Any:
    rows = plan.num_q * plan.block_q if queries else plan.num_k * plan.block_k
    return pad_to(x, (*x.shape[:2], rows, x.shape[3]))


def forward(
    q: Any,
    k: Any,
    v: Any,
    causal: bool,
    scale: float | None,
    block_q: int,
    block_k: int,
    left: int,
    right: int,
) -> tuple[Any, Any]:
    """Attention and the logarithms of its denominators."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    plan = _plan(q, k, causal, scale, block_q, block_k, left, right)
    q_spec, k_spec, row_spec = _specs(plan, "first", "second")
    rows = plan.num_q * plan.block_q
    shapes = [
        jax.ShapeDtypeStruct((plan.batch, plan.heads, rows, plan.width), q.dtype),
        jax.ShapeDtypeStruct((plan.batch, plan.heads, 1, rows), jnp.float32),
    ]
    out, lse = pl.pallas_call(
        functools.partial(_forward_kernel, plan=plan),
        grid=(plan.batch, plan.heads, plan.num_q, plan.num_k),
        in_specs=[q_spec, k_spec, k_spec],
        out_specs=[q_spec, row_spec],
        out_shape=shapes,
        scratch_shapes=[
            pltpu.VMEM((plan.block_q, 1), jnp.float32),
            pltpu.VMEM((plan.block_q, 1), jnp.float32),
            pltpu.VMEM((plan.block_q, plan.width), jnp.float32),
        ],
        compiler_params=grid_params("p", "p", "p", "a"),
        cost_estimate=estimate(plan.product * 2, q, k, v, *shapes),
        name="flash_attention",
    )(_padded(plan, q, True), _padded(plan, k, False), _padded(plan, v, False))
    return out[:, :, : plan.length], lse[:, :, 0, : plan.length]


def _gradient_block(
    plan: _Plan, q: Any, k: Any, v: Any, do: Any, lse: Any, delta: Any, i: Any, j: Any
) -> tuple[Any, Any]:
    """The weights of a block, and the gradients of its scores."""
    import jax.numpy as jnp

    p = jnp.exp(_scores(plan, q, k, i, j) - lse.T)
    dp = dot(do, v, (1, 1))
    return p, p * (dp - delta.T) * plan.scale


def _dq_kernel(
    q_ref: Any, k_ref: Any, v_ref: Any, do_ref: Any, lse_ref: Any, delta_ref: Any, dq_ref: Any,
    acc: Any, *, plan: _Plan,
) -> None:  # fmt: skip
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    i, j = pl.program_id(2), pl.program_id(3)

    @pl.when(j == 0)
    def _start() -> None:
        acc[...] = jnp.zeros_like(acc)

    @pl.when(_needed(plan, i, j))
    def _block() -> None:
        k = k_ref[0, 0]
        _, ds = _gradient_block(
            plan, q_ref[0, 0], k, v_ref[0, 0], do_ref[0, 0], lse_ref[0, 0], delta_ref[0, 0], i, j
        )
        acc[...] += dot(ds.astype(k.dtype), k, (1, 0))

    @pl.when(j == plan.num_k - 1)
    def _end() -> None:
        dq_ref[0, 0] = acc[...].astype(dq_ref.dtype)


def _dkv_kernel(
    q_ref: Any, k_ref: Any, v_ref: Any, do_ref: Any, lse_ref: Any, delta_ref: Any, dk_ref: Any,
    dv_ref: Any, dk_acc: Any, dv_acc: Any, *, plan: _Plan,
) -> None:  # fmt: skip
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    j, i = pl.program_id(2), pl.program_id(3)

    @pl.when(i == 0)
    def _start() -> None:
        dk_acc[...] = jnp.zeros_like(dk_acc)
        dv_acc[...] = jnp.zeros_like(dv_acc)

    @pl.when(_needed(plan, i, j))
    def _block() -> None:
        q, do = q_ref[0, 0], do_ref[0, 0]
        p, ds = _gradient_block(
            plan, q, k_ref[0, 0], v_ref[0, 0], do, lse_ref[0, 0], delta_ref[0, 0], i, j
        )
        dv_acc[...] += dot(p.astype(do.dtype), do, (0, 0))
        dk_acc[...] += dot(ds.astype(q.dtype), q, (0, 0))

    @pl.when(i == plan.num_q - 1)
    def _end() -> None:
        dk_ref[0, 0] = dk_acc[...].astype(dk_ref.dtype)
        dv_ref[0, 0] = dv_acc[...].astype(dv_ref.dtype)


def backward(
    inputs: tuple[Any, ...],
    outputs: tuple[Any, Any],
    grads: tuple[Any, Any],
    causal: bool,
    scale: float | None,
    block_q: int,
    block_k: int,
    left: int,
    right: int,
) -> tuple[Any, Any, Any]:
    """Gradients of queries, keys and values."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    q, k, v = inputs
    out, lse = outputs
    d_out, d_lse = grads
    plan = _plan(q, k, causal, scale, block_q, block_k, left, right)
    delta = jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), axis=-1) - d_lse
    # Rows that are padding get weights of zero: nothing is added for them.
    rows = plan.num_q * plan.block_q
    behind = [(0, 0), (0, 0), (0, rows - plan.length)]
    lse = jnp.pad(lse, behind, constant_values=-MASKED)[:, :, None]
    delta = jnp.pad(delta, behind)[:, :, None]
    operands = (
        _padded(plan, q, True),
        _padded(plan, k, False),
        _padded(plan, v, False),
        _padded(plan, d_out, True),
        lse,
        delta,
    )
    q_spec, k_spec, row_spec = _specs(plan, "first", "second")
    dq = pl.pallas_call(
        functools.partial(_dq_kernel, plan=plan),
        grid=(plan.batch, plan.heads, plan.num_q, plan.num_k),
        in_specs=[q_spec, k_spec, k_spec, q_spec, row_spec, row_spec],
        out_specs=q_spec,
        out_shape=jax.ShapeDtypeStruct((plan.batch, plan.heads, rows, plan.width), q.dtype),
        scratch_shapes=[pltpu.VMEM((plan.block_q, plan.width), jnp.float32)],
        compiler_params=grid_params("p", "p", "p", "a"),
        cost_estimate=estimate(plan.product * 3, *operands, q),
        name="flash_attention_dq",
    )(*operands)
    q_spec, k_spec, row_spec = _specs(plan, "second", "first")
    columns = plan.num_k * plan.block_k
    # One gradient per query head, added up over the group behind the kernel.
    own = pl.BlockSpec((1, 1, plan.block_k, plan.width), lambda b, h, j, i: (b, h, j, 0))
    shape = jax.ShapeDtypeStruct((plan.batch, plan.heads, columns, plan.width), jnp.float32)
    dk, dv = pl.pallas_call(
        functools.partial(_dkv_kernel, plan=plan),
        grid=(plan.batch, plan.heads, plan.num_k, plan.num_q),
        in_specs=[q_spec, k_spec, k_spec, q_spec, row_spec, row_spec],
        out_specs=[own, own],
        out_shape=[shape, shape],
        scratch_shapes=[
            pltpu.VMEM((plan.block_k, plan.width), jnp.float32),
            pltpu.VMEM((plan.block_k, plan.width), jnp.float32),
        ],
        compiler_params=grid_params("p", "p", "p", "a"),
        cost_estimate=estimate(plan.product * 4, *operands, shape, shape),
        name="flash_attention_dkv",
    )(*operands)

    def summed(x: Any) -> Any:
        x = x[:, :, : plan.keys]
        grouped = x.reshape(plan.batch, plan.heads // plan.group, plan.group, *x.shape[2:])
        return grouped.sum(axis=2)

    return dq[:, :, : plan.length], summed(dk).astype(k.dtype), summed(dv).astype(v.dtype)
