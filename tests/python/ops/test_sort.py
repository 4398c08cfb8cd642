"""Order statistics: sort, topk, kthvalue, median, mode, searchsorted, bucketize."""

from __future__ import annotations

import math

import pytest
import torch
from ops.harness import FLOATS, INTS, Case, cases

ORDERED = (*FLOATS, *INTS, torch.int16)


def distinct(make, *shape):
    """No two equal elements, exact in every dtype, so that indices are defined."""
    x = (make.permutation(math.prod(shape)) - 5).reshape(shape)
    if make.dtype == torch.uint8:
        x = x + 5
    x = x.to(make.dtype)
    return x.requires_grad_(make.grad and x.is_floating_point())


def ordered(name, fn, *args, shape=(3, 5, 4), dtypes=ORDERED, **options):
    return Case(name, fn, lambda make: (distinct(make, *shape), *args), dtypes=dtypes, **options)


@cases(
    ordered("sort", torch.sort),
    ordered("sort_descending", torch.sort, 1, True),
    ordered("sort_0d", torch.sort, shape=()),
    ordered("sort_empty", torch.sort, shape=(0, 3)),
    ordered("argsort", torch.argsort, 0, True),
    ordered("msort", torch.msort),
    ordered("topk", torch.topk, 2),
    ordered("topk_dim", torch.topk, 3, 1),
    ordered("topk_smallest", torch.topk, 2, 1, False),
    ordered("topk_0", torch.topk, 0),
    ordered("kthvalue", torch.kthvalue, 2, 1, True),
    ordered("median", torch.median),
    ordered("median_dim", torch.median, 1),
    ordered("nanmedian_dim", torch.nanmedian, -1, True),
    ordered("median_empty", torch.median, shape=(0,)),
    ordered("quantile", torch.quantile, 0.3, 1, dtypes=(torch.float32, torch.float64)),
)
def test_order(case, dtype):
    case.check(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable_and_puts_nan_last(dtype, descending):
    x = torch.tensor([0.0, math.nan, -0.0, -math.inf, 2, 0.0, math.inf, -math.nan, 2, -1])
    x = x.to(dtype)
    expected = torch.sort(x, stable=True, descending=descending)
    actual = torch.sort(x.to("tpu"), stable=True, descending=descending)
    assert actual.indices.tolist() == expected.indices.tolist()
    values = actual.values.cpu()
    torch.testing.assert_close(values, expected.values, equal_nan=True)
    numbers = ~values.isnan()
    assert torch.equal(values.signbit()[numbers], expected.values.signbit()[numbers])


@pytest.mark.parametrize("largest", [False, True])
def test_topk_counts_nan_as_largest(largest):
    x = torch.tensor([1.0, -math.nan, math.inf, math.nan, -math.inf, 0.5])
    for k in range(1, 7):
        actual = torch.topk(x.to("tpu"), k, largest=largest).values
        expected = torch.topk(x, k, largest=largest).values
        torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)


@pytest.mark.parametrize("fn", [torch.median, torch.nanmedian])
def test_median_with_nan(fn):
    x = torch.tensor([[3.0, math.nan, 1, math.nan, 2], [5, 4, 3, 2, 1], [math.nan] * 5])
    torch.testing.assert_close(fn(x.to("tpu"), 1), fn(x, 1), equal_nan=True, check_device=False)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_mode(dtype):
    x = torch.tensor([[3, 1, 2, 1, 3, 1], [0, 2, 2, 0, 5, 4]]).to(dtype)
    torch.testing.assert_close(torch.mode(x.to("tpu"), 1), torch.mode(x, 1), check_device=False)


def boundaries(make, *shape):
    return make(*shape, grad=False).sort().values


@cases(
    *(
        Case(
            f"searchsorted_{side}",
            torch.searchsorted,
            lambda make: (boundaries(make, 2, 7), make(2, 5)),
            dtypes=(torch.float32, torch.int64),
            grad=False,
            kwargs={"side": side},
        )
        for side in ("left", "right")
    ),
    Case(
        "searchsorted_row",
        torch.searchsorted,
        lambda make: (boundaries(make, 9), make(2, 3, 2)),
        grad=False,
        kwargs={"out_int32": True},
    ),
    Case(
        "searchsorted_sorter",
        torch.searchsorted,
        lambda make: ((x := make(2, 6)), make(2, 4), {"sorter": x.argsort()}),
        grad=False,
    ),
    Case("searchsorted_scalar", torch.searchsorted, lambda make: (boundaries(make, 9), 1)),
    Case(
        "bucketize",
        torch.bucketize,
        lambda make: (make(3, 4), boundaries(make, 5)),
        grad=False,
        kwargs={"right": True},
    ),
)
def test_search(case, dtype):
    case.check(dtype)


def test_sorter_out_of_range():
    x = torch.tensor([1.0, 2.0, 3.0], device="tpu")
    sorter = torch.tensor([0, 1, 7], device="tpu")
    with pytest.raises(RuntimeError, match="sorter index out of range"):
        torch.searchsorted(x, x, sorter=sorter).cpu()
