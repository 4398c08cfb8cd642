"""Running reductions along a dimension."""

from __future__ import annotations

import math

import pytest
import torch
from ops.harness import COMPLEX, FLOATS, INTS, Case, cases

NUMBERS = (*FLOATS, *INTS, *COMPLEX)


def running(name, fn, *args, shape=(3, 5, 4), **options):
    return Case(name, fn, lambda make: (make(*shape, low=-1.5, high=1.5), *args), **options)


@cases(
    running("cumsum", torch.cumsum, 1, dtypes=NUMBERS),
    running("cumsum_last", torch.cumsum, -1),
    running("cumsum_long", torch.cumsum, 0, shape=(1000,), rtol=1e-4, atol=1e-4),
    running("cumsum_dtype", torch.cumsum, 0, dtypes=(torch.bool,), kwargs={"dtype": torch.int32}),
    running("cumsum_0d", torch.cumsum, 0, shape=()),
    running("cumsum_empty", torch.cumsum, 0, shape=(0, 3)),
    running("cumprod", torch.cumprod, 1, dtypes=NUMBERS),
    running("cummax", torch.cummax, 1, dtypes=(*FLOATS, *INTS, torch.bool)),
    running("cummin", torch.cummin, -1, dtypes=(*FLOATS, *INTS, torch.bool)),
    running("cummax_0d", torch.cummax, 0, shape=()),
    running("logcumsumexp", torch.logcumsumexp, 1, dtypes=FLOATS),
    running("logcumsumexp_complex", torch.logcumsumexp, 0, dtypes=COMPLEX, grad=False),
)
def test_scan(case, dtype):
    case.check(dtype)


@pytest.mark.parametrize("fn", [torch.cummax, torch.cummin, torch.logcumsumexp])
def test_nan_and_infinities(fn):
    x = torch.tensor([[-math.inf, -math.inf, 1.0, math.inf, math.inf], [3, math.nan, 5, 3, 9]])
    torch.testing.assert_close(fn(x.to("tpu"), 1), fn(x, 1), equal_nan=True, check_device=False)


def test_ties_take_the_last_index():
    x = torch.tensor([2, 1, 2, 3, 3, 0])
    assert torch.cummax(x.to("tpu"), 0).indices.tolist() == [0, 0, 2, 3, 4, 4]
