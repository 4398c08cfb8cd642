"""What the kernels share: block sizes and the settings of a grid. Imports JAX when called."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

LANES = 128
SUBLANES = 8
# Added to scores that do not count. Not infinite: a row of nothing but those must stay finite.
MASKED = -1e30


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def block_of(size: int, most: int, unit: int = LANES) -> int:
    """A block's side: a multiple of `unit`, at most `most`, no larger than the size needs."""
    return min(most, cdiv(max(size, 1), unit) * unit)


def grid_params(*semantics: str) -> Any:
    """Which dimensions of a grid may run in any order ("p") and which carry results on ("a")."""
    from jax.experimental.pallas import tpu as pltpu

    names = {"p": "parallel", "a": "arbitrary"}
    return pltpu.CompilerParams(dimension_semantics=tuple(names[s] for s in semantics))


def estimate(flops: float, *arrays: Any) -> Any:
    """For pallas_call: the FLOPs of a kernel's products, and the bytes of what it reads and writes.
    No compiler can count them, and it orders other work around the kernel by them."""
    from jax.experimental import pallas as pl

    size = 0
    for array in arrays:
        sizes = [1, 1, *array.shape]
        rows, columns = cdiv(sizes[-2], SUBLANES) * SUBLANES, cdiv(sizes[-1], LANES) * LANES
        size += math.prod(sizes[:-2]) * rows * columns * array.dtype.itemsize  # as it lies in HBM
    return pl.CostEstimate(flops=int(flops), transcendentals=0, bytes_accessed=size)


def pad_to(x: Any, sizes: Sequence[int]) -> Any:
    """Zeros behind the elements of each dimension, up to these sizes."""
    import jax.numpy as jnp

    if tuple(x.shape) == tuple(sizes):
        return x
    return jnp.pad(x, [(0, want - have) for have, want in zip(x.shape, sizes, strict=True)])


def dot(a: Any, b: Any, contract: tuple[int, int]) -> Any:
    """A product of two matrices in f32, exact for f32 operands."""
    import jax
    import jax.numpy as jnp

    exact = a.dtype == jnp.float32
    return jax.lax.dot_general(
        a,
        b,
        (((contract[0],), (contract[1],)), ((), ())),
        precision=jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT,
        preferred_element_type=jnp.float32,
    )


def start_softmax(top: Any, total: Any, acc: Any) -> None:
    """Before the first block of a softmax that meets its scores block by block: `top` is the
    largest score so far, `total` and `acc` the sums of weights and of weighted values."""
    import jax.numpy as jnp

    top[...] = jnp.full_like(top, MASKED)
    total[...] = jnp.zeros_like(total)
    acc[...] = jnp.zeros_like(acc)


def add_block(top: Any, total: Any, acc: Any, scores: Any, values: Any) -> None:
    """Takes another block in."""
    import jax.numpy as jnp

    before = top[...]
    now = jnp.maximum(before, scores.max(axis=1, keepdims=True))
    weights = jnp.exp(scores - now)
    shrink = jnp.exp(before - now)
    top[...] = now
    total[...] = total[...] * shrink + weights.sum(axis=1, keepdims=True)
    acc[...] = acc[...] * shrink + dot(weights.astype(values.dtype), values, (1, 0))
