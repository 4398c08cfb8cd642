"""Calls at the sizes of real models: a compiler may take a small shape and refuse a large one.

`t` is as in cases.py. What they return is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from .cases import Make


def tracked(t: Make, *shape: int) -> torch.Tensor:
    return t(*shape).requires_grad_()


def indices(most: int, *shape: int) -> torch.Tensor:
    return torch.randint(most, shape).to("tpu")


def _attention(t: Make) -> torch.Tensor:
    q, k, v = (tracked(t, 2, 8, 512, 64) for _ in range(3))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _attention_long(t: Make) -> torch.Tensor:
    q, k, v = (tracked(t, 2, 8, 1024, 64) for _ in range(3))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _attention_masked(t: Make) -> torch.Tensor:
    """Fewer heads of keys, lengths no block divides, a bias with a gradient, dropout."""
    q, k, v = tracked(t, 2, 8, 1001, 64), tracked(t, 2, 2, 700, 64), tracked(t, 2, 2, 700, 64)
    bias = tracked(t, 1, 8, 1001, 700)
    return F.scaled_dot_product_attention(q, k, v, bias, dropout_p=0.1, enable_gqa=True)


def _batch_norm(t: Make) -> torch.Tensor:
    stats = torch.zeros(64, device="tpu"), torch.ones(64, device="tpu")
    return F.batch_norm(tracked(t, 4, 64, 56, 56), *stats, t(64), t(64), training=True)


def _adam(t: Make) -> None:
    weight = tracked(t, 1024, 1024)
    optimizer = torch.optim.AdamW([weight], fused=True)
    weight.grad = t(1024, 1024)
    optimizer.step()


def _lstm(t: Make) -> torch.Tensor:
    module = torch.nn.LSTM(128, 256).to(t.dtype).to("tpu")
    return module(tracked(t, 16, 8, 128))[0]


LARGE: dict[str, Callable[[Make], torch.Tensor | None]] = {
    "adam": _adam,
    "attention": _attention,
    "attention_long": _attention_long,
    "attention_masked": _attention_masked,
    "batch_norm": _batch_norm,
    "bmm": lambda t: torch.bmm(tracked(t, 8, 512, 256), t(8, 256, 512)),
    "conv2d": lambda t: F.conv2d(tracked(t, 2, 64, 56, 56), tracked(t, 64, 64, 3, 3), padding=1),
    "conv2d_stem": lambda t: F.conv2d(
        tracked(t, 2, 3, 224, 224), tracked(t, 64, 3, 7, 7), stride=2, padding=3
    ),
    "conv2d_depthwise": lambda t: F.conv2d(
        tracked(t, 2, 96, 56, 56), tracked(t, 96, 1, 7, 7), padding=3, groups=96
    ),
    "conv_transpose2d": lambda t: F.conv_transpose2d(
        tracked(t, 2, 64, 28, 28), tracked(t, 64, 32, 4, 4), stride=2, padding=1
    ),
    "cross_entropy": lambda t: F.cross_entropy(tracked(t, 512, 32000), indices(32000, 512)),
    "cumsum": lambda t: torch.cumsum(tracked(t, 512, 2048), 1),
    "dropout": lambda t: F.dropout(tracked(t, 1024, 1024), 0.1),
    "embedding": lambda t: F.embedding(indices(32000, 8, 512), tracked(t, 32000, 256)),
    "gather": lambda t: torch.gather(tracked(t, 512, 1000), 1, indices(1000, 512, 100)),
    "gelu": lambda t: F.gelu(tracked(t, 1024, 4096)),
    "group_norm": lambda t: F.group_norm(tracked(t, 2, 64, 64, 64), 32, t(64), t(64)),
    "index_put": lambda t: t(1000, 256).index_put(
        (indices(1000, 4096),), tracked(t, 4096, 256), accumulate=True
    ),
    "interpolate": lambda t: F.interpolate(
        tracked(t, 2, 16, 64, 64), scale_factor=2, mode="bicubic"
    ),
    "layer_norm": lambda t: F.layer_norm(tracked(t, 8, 512, 768), (768,), t(768), t(768)),
    "linear": lambda t: F.linear(tracked(t, 8, 512, 768), tracked(t, 3072, 768), t(3072)),
    "lstm": _lstm,
    "max_pool2d": lambda t: F.max_pool2d(tracked(t, 2, 64, 112, 112), 3, 2, 1),
    "mm": lambda t: torch.mm(tracked(t, 1024, 1024), tracked(t, 1024, 1024)),
    "multinomial": lambda t: torch.multinomial(t(32, 32000), 4).float(),
    "normal": lambda t: torch.empty(1024, 1024, dtype=t.dtype, device="tpu").normal_(),
    "softmax": lambda t: F.softmax(tracked(t, 64, 512, 512), -1),
    "sort": lambda t: torch.sort(tracked(t, 64, 4096))[0],
    "sum": lambda t: tracked(t, 4096, 4096).sum(0),
    "topk": lambda t: torch.topk(tracked(t, 32, 32000), 50)[0],
    # What linear algebra does in float32 only.
    "cholesky": lambda t: torch.linalg.cholesky(256 * torch.eye(256, device="tpu") + 1),
    "qr": lambda t: torch.linalg.qr(torch.rand(128, 64).to("tpu"))[0],
    "solve": lambda t: torch.linalg.solve(
        torch.rand(128, 128).to("tpu") + 128 * torch.eye(128, device="tpu"),
        torch.rand(128, 8).to("tpu"),
    ),
    "fft": lambda t: torch.fft.rfft(torch.rand(64, 1024).to("tpu")).abs(),
}
