"""Pooling, adaptive and fractional pooling, unpooling; values, indices and gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from ops.harness import FLOATS, Case, cases


def on(*shape, **kwargs):
    return lambda make: (make(*shape), kwargs)


def max_pool1d(x, *args, **kwargs):
    return F.max_pool1d(x, *args, **kwargs, return_indices=True)


def max_pool2d(x, *args, **kwargs):
    return F.max_pool2d(x, *args, **kwargs, return_indices=True)


def max_pool3d(x, *args, **kwargs):
    return F.max_pool3d(x, *args, **kwargs, return_indices=True)


def adaptive_max(n):
    pool = getattr(F, f"adaptive_max_pool{n}d")
    return lambda x, size: pool(x, size, return_indices=True)


X2, X3 = (2, 3, 9, 7), (2, 2, 5, 6, 7)


@cases(
    Case("max1d", max_pool1d, on(2, 3, 11, kernel_size=3, stride=2, padding=1), dtypes=FLOATS),
    Case("max2d", max_pool2d, on(*X2, kernel_size=2), dtypes=(*FLOATS, torch.int64)),
    Case("max2d-overlap", max_pool2d, on(*X2, kernel_size=3, stride=2, padding=1), dtypes=FLOATS),
    Case("max2d-many-overlaps", max_pool2d, on(*X2, kernel_size=3, stride=1, padding=1)),
    Case("max2d-dilation", max_pool2d, on(*X2, kernel_size=(3, 2), stride=2, dilation=2)),
    Case("max2d-ceil", max_pool2d, on(*X2, kernel_size=2, stride=2, ceil_mode=True)),
    Case("max2d-ceil-pad", max_pool2d, on(*X2, kernel_size=3, stride=3, padding=1, ceil_mode=True)),
    Case("max2d-unbatched", max_pool2d, on(3, 9, 7, kernel_size=2)),
    Case("max2d-long", max_pool2d, on(1, 2, 40, 41, kernel_size=(40, 35), stride=2)),
    Case("max2d-no-batch", max_pool2d, on(0, 3, 9, 7, kernel_size=2)),
    Case("max3d", max_pool3d, on(*X3, kernel_size=2, stride=(1, 2, 2), padding=1)),
    Case("avg1d", F.avg_pool1d, on(2, 3, 11, kernel_size=3, stride=2, padding=1)),
    Case("avg2d", F.avg_pool2d, on(*X2, kernel_size=2), dtypes=FLOATS),
    Case("avg2d-overlap", F.avg_pool2d, on(*X2, kernel_size=3, stride=2, padding=1), dtypes=FLOATS),
    Case("avg2d-stride1", F.avg_pool2d, on(*X2, kernel_size=(3, 4), stride=1, padding=(1, 2))),
    Case("avg2d-gaps", F.avg_pool2d, on(*X2, kernel_size=2, stride=3)),
    Case(
        "avg2d-not-padding",
        F.avg_pool2d,
        on(*X2, kernel_size=3, stride=2, padding=1, ceil_mode=True, count_include_pad=False),
    ),
    Case("avg2d-ceil", F.avg_pool2d, on(*X2, kernel_size=3, stride=2, padding=1, ceil_mode=True)),
    Case("avg2d-divisor", F.avg_pool2d, on(*X2, kernel_size=3, divisor_override=5)),
    Case("avg2d-global", F.avg_pool2d, on(*X2, kernel_size=(9, 7))),
    Case("avg3d", F.avg_pool3d, on(*X3, kernel_size=(2, 3, 3), stride=2, padding=1)),
    Case("adaptive-avg1d", F.adaptive_avg_pool1d, on(2, 3, 11, output_size=4)),
    Case("adaptive-avg2d-even", F.adaptive_avg_pool2d, on(2, 3, 8, 6, output_size=(4, 2))),
    Case("adaptive-avg2d", F.adaptive_avg_pool2d, on(*X2, output_size=(4, 5)), dtypes=FLOATS),
    Case("adaptive-avg2d-up", F.adaptive_avg_pool2d, on(2, 3, 3, 4, output_size=(7, 8))),
    Case("adaptive-avg2d-one", F.adaptive_avg_pool2d, on(*X2, output_size=1)),
    Case("adaptive-avg2d-long", F.adaptive_avg_pool2d, on(1, 2, 40, 41, output_size=(3, 2))),
    Case("adaptive-avg3d", F.adaptive_avg_pool3d, on(*X3, output_size=(2, 3, 4))),
    Case("adaptive-max1d", adaptive_max(1), lambda make: (make(2, 3, 11), 4)),
    Case("adaptive-max2d-even", adaptive_max(2), lambda make: (make(2, 3, 8, 6), (4, 2))),
    Case("adaptive-max2d", adaptive_max(2), lambda make: (make(*X2), (4, 5)), dtypes=FLOATS),
    Case("adaptive-max3d", adaptive_max(3), lambda make: (make(*X3), (2, 3, 4))),
    Case(
        "fractional2d",
        F.fractional_max_pool2d_with_indices,
        lambda make: (
            make(2, 3, 9, 8),
            (2, 3),
            {"output_size": (4, 3), "_random_samples": make(2, 3, 2, low=0, high=1, grad=False)},
        ),
    ),
    Case(
        "fractional3d",
        F.fractional_max_pool3d_with_indices,
        lambda make: (
            make(2, 3, 7, 9, 8),
            (2, 2, 3),
            {"output_size": (3, 4, 3), "_random_samples": make(2, 3, 3, low=0, high=1, grad=False)},
        ),
    ),
)
def test_pool(case, dtype):
    case.check(dtype)


@pytest.mark.parametrize("kernel", [(2, 2), (3, 3)])
def test_unpool_inverts_pool(kernel):
    x = torch.randn(2, 3, 9, 12)
    want = F.max_unpool2d(*F.max_pool2d(x, kernel, return_indices=True), kernel)
    got = F.max_unpool2d(*F.max_pool2d(x.to("tpu"), kernel, return_indices=True), kernel)
    assert torch.equal(got.cpu(), want)


def test_unpool3d():
    x = torch.randn(1, 2, 4, 6, 8)
    want = F.max_unpool3d(*F.max_pool3d(x, 2, return_indices=True), 2)
    got = F.max_unpool3d(*F.max_pool3d(x.to("tpu"), 2, return_indices=True), 2)
    assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("kernel", [3, 33, (3, 33)])
def test_ties_nan_and_infinity(kernel):
    """Values and indices are CPU's: the first of equals, the last NaN, -inf has a place, too."""
    x = torch.randint(0, 2, (2, 2, 40, 40)).float()
    x[0, 0, 3:6, 3:9] = math.nan
    x[0, 1, :20] = -math.inf
    x[1, 1] = math.inf
    for padding in (0, 1):
        want = F.max_pool2d(x, kernel, 2, padding, return_indices=True)
        got = F.max_pool2d(x.to("tpu"), kernel, 2, padding, return_indices=True)
        torch.testing.assert_close(got[0].cpu(), want[0], equal_nan=True)
        assert torch.equal(got[1].cpu(), want[1])
