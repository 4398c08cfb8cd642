"""Tensors made from numbers, and lookups in them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from ops.harness import ALL, FLOATS, INTS, Case, cases


def check_both(make):
    expected, actual = make("cpu"), make("tpu")
    assert actual.device.type == "tpu"
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("dtype", ALL)
def test_fill(dtype):
    check_both(lambda d: torch.empty(2, 3, dtype=dtype, device=d).fill_(2))
    check_both(lambda d: torch.empty(2, 3, dtype=dtype, device=d).fill_(torch.tensor(1)))
    check_both(lambda d: torch.zeros(2, 3, dtype=dtype, device=d))
    check_both(lambda d: torch.ones(0, dtype=dtype, device=d))
    check_both(lambda d: torch.full((2,), 1, dtype=dtype, device=d))
    check_both(lambda d: torch.full((), 1, dtype=dtype, device=d).zero_())


@pytest.mark.parametrize(
    "bounds",
    [(5,), (0,), (1, 5), (5, 1, -2), (0.0, 1.0, 0.1), (-1.0, 1.0, 0.25), (0, 2**33, 2**31)],
)
def test_arange(bounds):
    check_both(lambda d: torch.arange(*bounds, device=d))


def test_ranges():
    check_both(lambda d: torch.arange(7, dtype=torch.bfloat16, device=d))
    check_both(lambda d: torch.arange(0, 300, 0.7, dtype=torch.float32, device=d))
    check_both(lambda d: torch.arange(0, 1, 0.01, dtype=torch.float64, device=d))
    check_both(lambda d: torch.arange(3, out=torch.empty(3, dtype=torch.int32, device=d)))
    for steps in (0, 1, 2, 5, 100):
        check_both(lambda d, n=steps: torch.linspace(-1, 2, n, device=d))
        check_both(lambda d, n=steps: torch.logspace(-1, 2, n, device=d))
    check_both(lambda d: torch.linspace(0, 10, 5, dtype=torch.int64, device=d))
    check_both(lambda d: torch.linspace(0.1, 0.7, 5, dtype=torch.float64, device=d))
    check_both(lambda d: torch.linspace(1, 2j, 5, dtype=torch.complex64, device=d))
    check_both(lambda d: torch.logspace(0, 3, 4, base=2, device=d))
    check_both(lambda d: torch.eye(3, device=d))
    check_both(lambda d: torch.eye(3, 5, dtype=torch.bool, device=d))
    check_both(lambda d: torch.eye(0, device=d))


@pytest.mark.filterwarnings("ignore:torch.range")
def test_range():
    check_both(lambda d: torch.range(1, 4, 0.5, device=d))


@pytest.mark.parametrize("offset", [-6, -2, 0, 1, 6])
@pytest.mark.parametrize("shape", [(4, 5), (5, 3), (0, 3)])
def test_triangle_indices(shape, offset):
    check_both(lambda d: torch.tril_indices(*shape, offset, device=d))
    check_both(lambda d: torch.triu_indices(*shape, offset, device=d))


@cases(
    Case("isin", torch.isin, lambda make: (make(3, 4), make(5)), dtypes=(*FLOATS, *INTS)),
    Case("isin_invert", torch.isin, lambda make: (make(3, 4), make(2)), kwargs={"invert": True}),
    Case("isin_number", torch.isin, lambda make: (make(3, 4), 2), dtypes=(torch.int64,)),
    Case("isin_of_number", torch.isin, lambda make: (2, make(3, 4)), dtypes=(torch.int64,)),
    Case("isin_none", torch.isin, lambda make: (make(3), make(0))),
    Case(
        "isin_large",
        torch.isin,
        lambda make: (make(5000, high=1e4), make(4000, high=1e4)),
        dtypes=(torch.int64,),
    ),
    Case("histc", torch.histc, lambda make: (make(40), 10, -2, 2), grad=False),
    Case("histc_auto", torch.histc, lambda make: (make(40), 7), grad=False),
    Case("histc_flat", torch.histc, lambda make: (torch.ones(4), 3), grad=False),
    Case("one_hot", F.one_hot, lambda make: (make.index(4, 3, 2), 5)),
    Case("one_hot_auto", F.one_hot, lambda make: (make.index(4, 3, 2),)),
    Case("vander", torch.vander, lambda make: (make(4), 3), grad=False),
)
def test_lookup(case, dtype):
    case.check(dtype)
