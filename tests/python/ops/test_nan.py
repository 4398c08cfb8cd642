"""NaN and infinities through everything that looks for an extreme value, against the CPU.

A compiler's own minimum and maximum may drop NaN, and which operand it drops can depend on the
place in a vector register. So NaN sits first, in the middle and last, in small rows and in long
ones, over both dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

INF, NAN = float("inf"), float("nan")
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def rows(width: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of every kind: plain, NaN in several places, infinities, and both."""
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(16, width, generator=generator, dtype=torch.float64)
    x[1, 0] = NAN
    x[2, width // 2] = NAN
    x[3, -1] = NAN
    x[4] = NAN
    x[5] = INF
    x[6] = -INF
    x[7, 1], x[7, 2] = NAN, INF
    x[8, 1], x[8, 2] = INF, NAN
    x[9, 1], x[9, 2] = -INF, NAN
    x[10, 1] = -torch.tensor(NAN, dtype=torch.float64)  # the sign bit set
    x[11, 1], x[11, 2] = INF, -INF
    x[12, ::2] = NAN
    x[13, 1::2] = NAN
    return x.to(dtype)


def check(fn: Callable[..., Any], *args: Any, rtol: float | None = None) -> None:
    expected = fn(*args)
    moved = [x.to("tpu") if isinstance(x, torch.Tensor) else x for x in args]
    actual = fn(*moved)
    if isinstance(expected, torch.Tensor):
        expected, actual = (expected,), (actual,)
    for e, a in zip(expected, actual, strict=True):
        if rtol is None and e.is_floating_point():
            bounds = {torch.bfloat16: (1.6e-2, 1e-2), torch.float32: (1e-4, 1e-5)}
            r, t = bounds.get(e.dtype, (1e-7, 1e-9))
        else:
            r, t = rtol or 0, 0
        torch.testing.assert_close(a.cpu(), e, rtol=r, atol=t, equal_nan=True)


def each(**fns: Callable[..., Any]) -> Any:
    return pytest.mark.parametrize("fn", [pytest.param(f, id=name) for name, f in fns.items()])


@pytest.mark.parametrize("dtype", DTYPES)
@each(
    amax=torch.amax,
    amin=torch.amin,
    max=torch.max,
    min=torch.min,
    argmax=torch.argmax,
    argmin=torch.argmin,
    aminmax=lambda x, d: torch.aminmax(x, dim=d),
    cummax=torch.cummax,
    cummin=torch.cummin,
    softmax=torch.softmax,
    log_softmax=torch.log_softmax,
    logsumexp=torch.logsumexp,
    norm_inf=lambda x, d: torch.linalg.vector_norm(x, INF, d),
    norm_minus_inf=lambda x, d: torch.linalg.vector_norm(x, -INF, d),
    sort=torch.sort,
    median=lambda x, d: torch.median(x, d).values,
    nanmedian=lambda x, d: torch.nanmedian(x, d).values,
)
def test_along_a_dimension(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    stable = "sort" in getattr(fn, "__name__", "")
    for width in (7, 300):
        x = rows(width, dtype)
        for dim in (0, 1):
            check((lambda y, d: torch.sort(y, stable=True, dim=d)) if stable else fn, x, dim)


@pytest.mark.parametrize("dtype", DTYPES)
@each(
    max=torch.max,
    min=torch.min,
    amax=torch.amax,
    amin=torch.amin,
    argmax=torch.argmax,
    argmin=torch.argmin,
    aminmax=torch.aminmax,
    norm_inf=lambda x: torch.linalg.vector_norm(x, INF),
    foreach_norm=lambda x: torch._foreach_norm([x, x[:1]], INF),
    foreach_max=lambda x: torch._foreach_max([x, x[:1]]),
)
def test_whole(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    for width in (7, 640):
        x = rows(width, dtype)
        for part in (x, x[:1], x[:2], x[3], x[6:7], x[9]):
            check(fn, part)


def clean_and_nan(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    x = rows(300, dtype)
    return x, x.roll(1, 0).flip(1).contiguous()


@pytest.mark.parametrize("dtype", DTYPES)
@each(
    maximum=torch.maximum,
    minimum=torch.minimum,
    fmax=torch.fmax,
    fmin=torch.fmin,
    clamp=lambda x, y: x.clamp(y, y + 1),
    clamp_min=lambda x, y: x.clamp(min=y),
    clamp_max=lambda x, y: x.clamp(max=y),
    clamp_zero=lambda x, y: x.clamp(-0.5, 0.5),
    clamp_min_zero=lambda x, y: x.clamp_min(0),
    clamp_max_zero=lambda x, y: x.clamp_max(0),
    clamp_nan=lambda x, y: x.clamp(min=NAN),
    relu=lambda x, y: torch.relu(x),
    relu6=lambda x, y: F.relu6(x),
    hardtanh=lambda x, y: F.hardtanh(x),
    hardswish=lambda x, y: F.hardswish(x),
    hardsigmoid=lambda x, y: F.hardsigmoid(x),
    threshold=lambda x, y: F.threshold(x, 0.1, 20.0),
    logsigmoid=lambda x, y: F.logsigmoid(x),
    softplus=lambda x, y: F.softplus(x),
    leaky_relu=lambda x, y: F.leaky_relu(x),
    logaddexp=torch.logaddexp,
    hypot=torch.hypot,
    logit=lambda x, y: torch.logit(x, 0.1),
    nan_to_num=lambda x, y: torch.nan_to_num(x),
    foreach_maximum=lambda x, y: torch._foreach_maximum([x], [y]),
    foreach_minimum=lambda x, y: torch._foreach_minimum([x], [y]),
    foreach_clamp_min=lambda x, y: torch._foreach_clamp_min([x], 0.0),
    foreach_clamp_max=lambda x, y: torch._foreach_clamp_max([x], 0.0),
)
def test_elementwise(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    x, y = clean_and_nan(dtype)
    check(fn, x, y)
    check(fn, y[:, :7].contiguous(), x[:, :7].contiguous())


@pytest.mark.parametrize("dtype", DTYPES)
@each(
    max_pool1d=lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True),
    max_pool1d_long=lambda x: F.max_pool1d(x, 40, 3, return_indices=True),
    max_pool2d=lambda x: F.max_pool2d(x[None], 2, return_indices=True),
    max_pool3d=lambda x: F.max_pool3d(x[None, None], 2, return_indices=True),
    adaptive_max_pool1d=lambda x: F.adaptive_max_pool1d(x, 7, return_indices=True),
    adaptive_max_pool2d=lambda x: F.adaptive_max_pool2d(x[None], 5, return_indices=True),
)
def test_pool(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    check(fn, rows(300, dtype).reshape(4, 4, 300))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", ["amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    x = rows(30, dtype)
    start = torch.zeros(16, 5, dtype=dtype)
    start[:, 1] = NAN
    index = torch.arange(30).remainder(4).expand(16, 30).contiguous()
    check(
        lambda a, i, b: a.scatter_reduce(1, i, b, reduce, include_self=include_self),
        start,
        index,
        x,
    )
    check(
        lambda a, i, b: a.index_reduce(1, i, b, reduce, include_self=include_self),
        start,
        index[0].contiguous(),
        x,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@each(
    pdist_inf=lambda x, y: F.pdist(x, INF),
    cdist=lambda x, y: torch.cdist(x, y),
    hinge=lambda x, y: F.hinge_embedding_loss(x, torch.ones_like(x), reduction="none"),
    huber=lambda x, y: F.huber_loss(x, y, reduction="none"),
    smooth_l1=lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    bce_logits=lambda x, y: F.binary_cross_entropy_with_logits(
        x, torch.ones_like(x), reduction="none"
    ),
    margin_ranking=lambda x, y: F.margin_ranking_loss(
        x, y, torch.ones_like(x), 0.1, reduction="none"
    ),
    multi_margin=lambda x, y: F.multi_margin_loss(
        x, torch.zeros(16, dtype=torch.long, device=x.device), reduction="none"
    ),
    renorm=lambda x, y: torch.renorm(x, INF, 0, 1.0),
)
def test_losses_and_distances(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    x, y = clean_and_nan(dtype)
    check(fn, x[:, :7].contiguous(), y[:, :7].contiguous())


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(1, 2, 16, 8, generator=torch.Generator().manual_seed(i)).to(dtype)
               for i in range(3))  # fmt: skip
    q[0, 0, 3, 2] = NAN
    k[0, 1, 5, 1] = NAN
    v[0, 0, 2, 0] = INF
    check(F.scaled_dot_product_attention, q, k, v)


def test_gradient_of_the_extreme() -> None:
    x = rows(7, torch.float32)

    def grads(y: torch.Tensor) -> torch.Tensor:
        y = y.detach().requires_grad_()
        torch.amax(y, 1).nansum().backward()
        return y.grad

    check(grads, x)
    check(lambda y: torch.relu(y.detach().requires_grad_()).sum(), x[:1])


def test_adam_amsgrad_keeps_nan() -> None:
    def step(g: torch.Tensor) -> torch.Tensor:
        p = torch.ones_like(g, requires_grad=True)
        optimizer = torch.optim.Adam([p], lr=0.1, amsgrad=True)
        for _ in range(2):
            p.grad = g.clone()
            optimizer.step()
        return p.detach()

    check(step, torch.tensor([1.0, NAN, 0.5, INF]))
