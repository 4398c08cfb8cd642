"""RMSNorm with its gradient, and rotary embedding."""

from __future__ import annotations

import functools
from typing import Any

from torch_tpu.kernels._common import cdiv, estimate, grid_params

_ROWS = 256  # a block's, at most


def _rows_per_block(rows: int, width: int) -> int:
    fitting = max(8, (1 << 19) // max(width, 1) // 8 * 8)  # 2 MB of f32
    return min(_ROWS, fitting, cdiv(rows, 8) * 8)


def _rms_kernel(x_ref: Any, w_ref: Any, o_ref: Any, *, eps: float) -> None:
    import jax
    import jax.numpy as jnp

    x = x_ref[...].astype(jnp.float32)
    mean = jnp.mean(x * x, axis=1, keepdims=True)
    o_ref[...] = (x * jax.lax.rsqrt(mean + eps) * w_ref[...].astype(jnp.float32)).astype(
        o_ref.dtype
    )


def rms_forward(x: Any, weight: Any, eps: float) -> Any:
    """x / sqrt(mean(x²) + eps) · weight, over the last dimension."""
    import jax
    from jax.experimental import pallas as pl

    width = x.shape[-1]
    flat = x.reshape(-1, width)
    block = _rows_per_block(flat.shape[0], width)
    rows = pl.BlockSpec((block, width), lambda i: (i, 0))
    out = pl.pallas_call(
        functools.partial(_rms_kernel, eps=eps),
        grid=(cdiv(flat.shape[0], block),),
        in_specs=[rows, pl.BlockSpec((1, width), lambda i: (0, 0))],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(flat.shape, x.dtype),
        compiler_params=grid_params("p"),
        cost_estimate=estimate(0, x, x),
        name="rms_norm",
    )(flat, weight.reshape(1, width))
    return out.reshape(x.shape)


def _rms_backward_kernel(
    x_ref: Any, w_ref: Any, g_ref: Any, dx_ref: Any, dw_ref: Any, *, eps: float, rows: int
) -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    # The last block reaches beyond the rows there are.
    block = x_ref.shape[0]
    at = pl.program_id(0) * block + jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)
    x = jnp.where(at < rows, x_ref[...].astype(jnp.float32), 0.0)
    g = jnp.where(at < rows, g_ref[...].astype(jnp.float32), 0.0)
    inverse = jax.lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True) + eps)
    normal = x * inverse
    gw = g * w_ref[...].astype(jnp.float32)
    dx = inverse * (gw - normal * jnp.mean(gw * normal, axis=1, keepdims=True))
    dx_ref[...] = dx.astype(dx_ref.dtype)
    dw_ref[0] = jnp.sum(g * normal, axis=0, keepdims=True)


def rms_backward(inputs: tuple[Any, Any], output: Any, grad: Any, eps: float) -> tuple[Any, Any]:
    """Gradients of x and weight."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    del output
    x, weight = inputs
    width = x.shape[-1]
    flat, grad = x.reshape(-1, width), grad.reshape(-1, width)
    block = _rows_per_block(flat.shape[0], width)
    blocks = cdiv(flat.shape[0], block)
    rows = pl.BlockSpec((block, width), lambda i: (i, 0))
    dx, dw = pl.pallas_call(
        functools.partial(_rms_backward_kernel, eps=eps, rows=flat.shape[0]),
        grid=(blocks,),
        in_specs=[rows, pl.BlockSpec((1, width), lambda i: (0, 0)), rows],
        out_specs=[rows, pl.BlockSpec((1, 1, width), lambda i: (i, 0, 0))],
        out_shape=[
            jax.ShapeDtypeStruct(flat.shape, x.dtype),
            jax.ShapeDtypeStruct((blocks, 1, width), jnp.float32),
        ],
        compiler_params=grid_params("p"),
        cost_estimate=estimate(0, x, x, x),
        name="rms_norm_backward",
    )(flat, weight.reshape(1, width), grad)
    return dx.reshape(x.shape), dw.sum(axis=(0, 1)).reshape(weight.shape).astype(weight.dtype)


def _rotary_kernel(x_ref: Any, cos_ref: Any, sin_ref: Any, o_ref: Any) -> None:
    import jax.numpy as jnp

    x = x_ref[0, 0].astype(jnp.float32)
    half = x.shape[-1] // 2
    first, second = x[:, :half], x[:, half:]
    cos = cos_ref[...].astype(jnp.float32)
    sin = sin_ref[...].astype(jnp.float32)
    turned = [first * cos - second * sin, second * cos + first * sin]
    o_ref[0, 0] = jnp.concatenate(turned, axis=-1).astype(o_ref.dtype)


def rotary_forward(x: Any, cos: Any, sin: Any) -> Any:
    """Turns the pairs (x[i], x[i + D/2]) of x[B, H, L, D] by the angles of cos, sin[L, D/2]."""
    import jax
    from jax.experimental import pallas as pl

    batch, heads, length, width = x.shape
    block = _rows_per_block(length, width)
    rows = pl.BlockSpec((1, 1, block, width), lambda b, h, i: (b, h, i, 0))
    angles = pl.BlockSpec((block, width // 2), lambda b, h, i: (i, 0))
    return pl.pallas_call(
        _rotary_kernel,
        grid=(batch, heads, cdiv(length, block)),
        in_specs=[rows, angles, angles],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=grid_params("p", "p", "p"),
        cost_estimate=estimate(0, x, x, cos, sin),
        name="rotary",
    )(x, cos, sin)


def rotary_backward(inputs: tuple[Any, Any, Any], output: Any, grad: Any) -> tuple[Any, Any, Any]:
    """The gradient of x: turned back. Those of the angles, too, for who asks."""
    import jax.numpy as jnp

    del output
    x, cos, sin = inputs
    half = x.shape[-1] // 2
    x, g = x.astype(jnp.float32), grad.astype(jnp.float32)
    first, second = x[..., :half], x[..., half:]
    g_first, g_second = g[..., :half], g[..., half:]
    d_cos = (g_first * first + g_second * second).sum(axis=(0, 1))
    d_sin = (g_second * first - g_first * second).sum(axis=(0, 1))
    return rotary_forward(grad, cos, -sin), d_cos.astype(cos.dtype), d_sin.astype(sin.dtype)
