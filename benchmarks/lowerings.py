"""Each lowering alone, as this backend runs it, beside what JAX's rules give for the same thing.

Both run on the same XLA:CPU plugin in one process and take turns; a backward pass gets the saved
tensors as inputs on both sides. A ratio far above 1 names StableHLO worth rewriting: fused programs
are made of the same lowerings. On a busy machine believe the CPU time, over all threads. Needs JAX
in the interpreter that has this package.

    python benchmarks/lowerings.py --only norm,softmax
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from weights import integers, normal

import torch_tpu

Pair = tuple[Callable[[], Any], Callable[[], Any]]
aten = torch.ops.aten
ALL = [True, True, True]  # which gradients: of all inputs
BLOCK = 5  # calls in a row
BATCH, LENGTH, WIDTH, HEADS, VOCAB = 2, 128, 256, 4, 1000


def plugin() -> str:
    """The library of the XLA:CPU plugin."""
    import xla_plugins.xla_cpu_pjrt as package

    return str(next(Path(next(iter(package.__path__))).glob("*.so")))


def both(name: str, *shape: int) -> tuple[torch.Tensor, Any]:
    """The same numbers on both sides."""
    import jax.numpy as jnp

    array = normal(name, shape)
    return torch.from_numpy(array).to("tpu"), jnp.asarray(array)


def indices(name: str, high: int, *shape: int) -> tuple[torch.Tensor, Any]:
    """The same indices on both sides."""
    import jax.numpy as jnp

    array = integers(name, high, shape)
    return torch.from_numpy(array).long().to("tpu"), jnp.asarray(array)


def call(function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """A jitted call."""
    import jax

    jitted = jax.jit(function)
    return lambda: jitted(*args)


def back(function: Callable[..., Any], cotangent: Any, *args: Any) -> Callable[[], Any]:
    """The backward pass of a function; what it saved is passed in as arguments."""
    import jax

    _, pull = jax.vjp(function, *args)
    jitted = jax.jit(lambda pull, cotangent: pull(cotangent))
    return lambda: jitted(pull, cotangent)


def back_again(function: Callable[..., Any], cotangent: Any, *args: Any) -> Callable[[], Any]:
    """The backward pass from the inputs alone: for ops whose ATen form saves nothing else."""
    import jax

    return call(lambda cotangent, *args: jax.vjp(function, *args)[1](cotangent), cotangent, *args)


def matrices() -> Iterator[tuple[str, Pair]]:
    """linear and bmm at the GPT's sizes."""
    import jax.numpy as jnp

    for out, fan_in in ((1024, 256), (256, 1024), (768, 256)):
        x, jx = both("x", BATCH, LENGTH, fan_in)
        w, jw = both("w", out, fan_in)
        b, jb = both("b", out)
        g, jg = both("g", BATCH, LENGTH, out)

        def linear(x: Any, w: Any, b: Any) -> Any:
            return x @ w.T + b

        yield (
            f"linear {fan_in}->{out}",
            ((lambda x=x, w=w, b=b: aten.linear(x, w, b)), call(linear, jx, jw, jb)),
        )
        yield (
            f"linear backward {fan_in}->{out}",
            (
                (lambda x=x, g=g, w=w: aten.linear_backward(x, g, w, ALL)),
                back(linear, jg, jx, jw, jb),
            ),
        )
    q, jq = both("q", 8, LENGTH, 64)
    k, jk = both("k", 8, 64, LENGTH)
    p, jp = both("p", 8, LENGTH, LENGTH)
    yield "bmm q k^T", (lambda: aten.bmm(q, k), call(jnp.matmul, jq, jk))
    yield "bmm p v", (lambda: aten.bmm(p, q), call(jnp.matmul, jp, jq))
    qt, jqt = both("qt", 8, LENGTH, 64)

    def transposed(p: Any, q: Any) -> Any:
        return jnp.swapaxes(p, 1, 2) @ q

    yield "bmm p^T g (a view)", (lambda: aten.bmm(p.mT, qt), call(transposed, jp, jqt))


def norms() -> Iterator[tuple[str, Pair]]:
    """layer norm and batch norm."""
    import jax

    x, jx = both("x", BATCH, LENGTH, WIDTH)
    g, jg = both("g", BATCH, LENGTH, WIDTH)
    w, jw = both("w", WIDTH)
    b, jb = both("b", WIDTH)

    def layer_norm(x: Any, w: Any, b: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * w + b

    _, mean, rstd = aten.native_layer_norm(x, [WIDTH], w, b, 1e-5)
    yield (
        "layer norm",
        (lambda: aten.native_layer_norm(x, [WIDTH], w, b, 1e-5), call(layer_norm, jx, jw, jb)),
    )
    yield (
        "layer norm backward",
        (
            lambda: aten.native_layer_norm_backward(g, x, [WIDTH], mean, rstd, w, b, ALL),
            back(layer_norm, jg, jx, jw, jb),
        ),
    )

    def batch_norm(x: Any, w: Any, b: Any) -> Any:
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
        scale = w * jax.lax.rsqrt(variance + 1e-5)
        shift = b - mean * scale
        return x * scale[:, None, None] + shift[:, None, None]

    for channels, side in ((32, 32), (64, 16), (128, 8)):
        x4, jx4 = both("x", 8, channels, side, side)
        g4, jg4 = both("g", 8, channels, side, side)
        w1, jw1 = both("w", channels)
        b1, jb1 = both("b", channels)
        rm, rv = torch.zeros(channels, device="tpu"), torch.ones(channels, device="tpu")
        _, sm, si = aten.native_batch_norm(x4, w1, b1, rm, rv, True, 0.1, 1e-5)
        forward = (x4, w1, b1, rm, rv, True, 0.1, 1e-5)
        backward = (g4, x4, w1, rm, rv, sm, si, True, 1e-5, ALL)
        size = f"{channels}x{side}x{side}"
        yield (
            f"batch norm {size}",
            ((lambda a=forward: aten.native_batch_norm(*a)), call(batch_norm, jx4, jw1, jb1)),
        )
        yield (
            f"batch norm backward {size}",
            (
                (lambda a=backward: aten.native_batch_norm_backward(*a)),
                back(batch_norm, jg4, jx4, jw1, jb1),
            ),
        )


def convolutions() -> Iterator[tuple[str, Pair]]:
    """The ConvNet's convolutions."""
    import jax

    cases = ((3, 32, 32, 1), (32, 32, 32, 1), (32, 64, 32, 2), (64, 64, 16, 1), (64, 128, 16, 2))
    for before, after, side, stride in (*cases, (128, 128, 8, 1)):
        x, jx = both("x", 8, before, side, side)
        w, jw = both("w", after, before, 3, 3)
        g, jg = both("g", 8, after, side // stride, side // stride)

        def conv(x: Any, w: Any, stride: int = stride) -> Any:
            return jax.lax.conv_general_dilated(x, w, (stride, stride), [(1, 1), (1, 1)])

        where = ([stride] * 2, [1, 1], [1, 1], False, [0, 0], 1)
        size = f"{before}->{after} {side}x{side}/{stride}"
        yield (
            f"conv {size}",
            (
                (lambda x=x, w=w, a=where: aten.convolution(x, w, None, *a)),
                call(conv, jx, jw),
            ),
        )
        for name, mask, j in (
            ("input", [True, False, False], 0),
            ("weight", [False, True, False], 1),
        ):
            only = (lambda v, jw=jw: conv(v, jw)) if j == 0 else (lambda v, jx=jx: conv(jx, v))
            yield (
                f"conv grad {name} {size}",
                (
                    (
                        lambda g=g, x=x, w=w, a=where, m=mask: aten.convolution_backward(
                            g, x, w, None, *a, m
                        )
                    ),
                    back(only, jg, (jx, jw)[j]),
                ),
            )


def others() -> Iterator[tuple[str, Pair]]:
    """softmax, losses, gelu, embedding and copies."""
    import jax
    import jax.numpy as jnp

    s, js = both("s", BATCH, HEADS, LENGTH, LENGTH)
    g, jg = both("g", BATCH, HEADS, LENGTH, LENGTH)
    y = aten._softmax(s, -1, False)
    yield "softmax", (lambda: aten._softmax(s, -1, False), call(jax.nn.softmax, js))
    yield (
        "softmax backward",
        (
            lambda: aten._softmax_backward_data(g, y, -1, torch.float32),
            back(jax.nn.softmax, jg, js),
        ),
    )
    z, jz = both("z", BATCH * LENGTH, VOCAB)
    gz, jgz = both("gz", BATCH * LENGTH, VOCAB)
    t, jt = indices("t", VOCAB, BATCH * LENGTH)
    lz = aten._log_softmax(z, -1, False)
    yield "log softmax", (lambda: aten._log_softmax(z, -1, False), call(jax.nn.log_softmax, jz))
    yield (
        "log softmax backward",
        (
            lambda: aten._log_softmax_backward_data(gz, lz, -1, torch.float32),
            back_again(jax.nn.log_softmax, jgz, jz),
        ),
    )

    def nll(logits: Any, targets: Any = jt) -> Any:
        return -jnp.take_along_axis(logits, targets[:, None], axis=-1).mean()

    one = torch.ones((), device="tpu")
    _, total = aten.nll_loss_forward(lz, t, None, 1, -100)
    yield "nll loss", (lambda: aten.nll_loss_forward(lz, t, None, 1, -100), call(nll, jz))
    yield (
        "nll loss backward",
        (
            lambda: aten.nll_loss_backward(one, lz, t, None, 1, -100, total),
            back(nll, jnp.ones(()), jz),
        ),
    )
    u, ju = both("u", BATCH, LENGTH, 4 * WIDTH)
    gu, jgu = both("gu", BATCH, LENGTH, 4 * WIDTH)

    def gelu(x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    yield "gelu", (lambda: aten.gelu(u), call(gelu, ju))
    yield "gelu backward", (lambda: aten.gelu_backward(gu, u), back_again(gelu, jgu, ju))
    table, jtable = both("table", VOCAB, WIDTH)
    rows, jrows = both("rows", BATCH * LENGTH, WIDTH)
    yield "embedding", (lambda: aten.embedding(table, t), call(lambda w: w[jt], jtable))
    yield (
        "embedding backward",
        (
            lambda: aten.embedding_dense_backward(rows, t, VOCAB, -1, False),
            back(lambda w: w[jt], jrows, jtable),
        ),
    )
    x, jx = both("x", BATCH, LENGTH, WIDTH)
    yield "add", (lambda: aten.add(x, x), call(jnp.add, jx, jx))
    h, jh = both("h", BATCH, LENGTH, HEADS, WIDTH // HEADS)
    yield (
        "clone of a transposed view",
        (
            lambda: aten.clone(h.transpose(1, 2), memory_format=torch.contiguous_format),
            call(lambda h: h.transpose(0, 2, 1, 3), jh),
        ),
    )
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1).to("tpu")
    jhidden = jnp.triu(jnp.ones((LENGTH, LENGTH), bool), 1)
    yield (
        "masked fill",
        (
            lambda: aten.masked_fill(s, hidden, -math.inf),
            call(lambda s, m: jnp.where(m, -jnp.inf, s), js, jhidden),
        ),
    )


def adamw() -> Iterator[tuple[str, Pair]]:
    """The whole update of one large parameter list, as torch's foreach form does it."""
    import jax
    import jax.numpy as jnp

    shapes = [(VOCAB, WIDTH), (768, 256), (256, 256), (1024, 256), (256, 1024)] * 2
    pairs = [both(f"p{i}", *shape) for i, shape in enumerate(shapes)]
    parameters = [torch.nn.Parameter(p) for p, _ in pairs]
    for p, (grad, _) in zip(parameters, pairs, strict=True):
        p.grad = grad.clone()
    optimizer = torch.optim.AdamW(parameters, lr=1e-12)
    state = [[j for _, j in pairs] for _ in range(4)]

    def update(p: Any, g: Any, m: Any, v: Any) -> Any:
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        p = jax.tree.map(lambda p, m, v: p - 1e-12 * m / (jnp.sqrt(jnp.abs(v)) + 1e-8), p, m, v)
        return p, m, v

    yield "AdamW, foreach", (lambda: optimizer.step(), call(update, *state))


@dataclass
class Cost:
    """Seconds a call: the fastest one, and the CPU time of all threads in the best block."""

    wall: float = math.inf
    cpu: float = math.inf


def cheapest(pair: Pair, seconds: float) -> tuple[Cost, Cost]:
    """What each side costs, taking turns."""
    import jax

    ours, theirs = pair

    def run_ours() -> None:
        ours()
        torch_tpu.tpu.synchronize()

    def run_theirs() -> None:
        jax.block_until_ready(theirs())

    costs = (Cost(), Cost())
    for _ in range(3):
        run_ours()
        run_theirs()
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        for cost, run in zip(costs, (run_ours, run_theirs), strict=True):
            cpu = time.process_time()
            for _ in range(BLOCK):
                begin = time.perf_counter()
                run()
                cost.wall = min(cost.wall, time.perf_counter() - begin)
            cost.cpu = min(cost.cpu, (time.process_time() - cpu) / BLOCK)
    return costs


def main() -> int:
    """Prints a line per lowering."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="A,B", help="names that contain one of these")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each (default: 0.5)")
    args = parser.parse_args()
    os.environ["PJRT_NAMES_AND_LIBRARY_PATHS"] = f"xcpu:{plugin()}"
    os.environ["JAX_PLATFORMS"] = "xcpu"
    torch_tpu.set_mode("strict")
    print(f"{'us a call':<36} {'ours':>9} {'jax':>9} {'ratio':>6} {'ours CPU':>9} {'ratio':>6}")
    for group in (matrices, norms, convolutions, others, adamw):
        for name, pair in group():
            if any(part in name for part in args.only.split(",")):
                ours, theirs = cheapest(pair, args.seconds)
                print(
                    f"{name:<36} {ours.wall * 1e6:9.1f} {theirs.wall * 1e6:9.1f} "
                    f"{ours.wall / theirs.wall:6.2f} {ours.cpu * 1e6:9.1f} "
                    f"{ours.cpu / theirs.cpu:6.2f}",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
