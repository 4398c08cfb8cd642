"""Reductions to a value: sums, extremes, any and all, moments, norms, distances."""

from __future__ import annotations

import math

import pytest
import torch
from ops.harness import ALL, COMPLEX, FLOAT, FLOATS, INTS, Case, cases

NUMBERS = (*FLOATS, *INTS, *COMPLEX)
ORDERED = (*FLOATS, *INTS, torch.bool)
MOMENTS = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)


def reduce(name, fn, *args, shape=(3, 4, 5), **options):
    return Case(name, fn, lambda make: (make(*shape), *args), **options)


@cases(
    reduce("sum", torch.sum, dtypes=ALL),
    reduce("sum_dims", torch.sum, (0, -1), dtypes=NUMBERS),
    reduce("sum_none", torch.sum, []),
    reduce("sum_dtype", torch.sum, 1, dtypes=(torch.int32,), kwargs={"dtype": torch.float64}),
    reduce("sum_to_bool", torch.sum, dtypes=(torch.int64,), kwargs={"dtype": torch.bool}),
    reduce("sum_0d", torch.sum, 0, shape=()),
    reduce("sum_empty", torch.sum, 0, shape=(0, 3)),
    reduce("nansum", torch.nansum, 1, dtypes=FLOATS),
    reduce("mean", torch.mean, dtypes=MOMENTS),
    reduce("mean_dims", torch.mean, (0, 2), True, dtypes=MOMENTS),
    reduce("mean_empty", torch.mean, shape=(0,)),
    reduce("prod", torch.prod, dtypes=NUMBERS, rtol=1e-2, atol=1e-2, grad=False),
    reduce("prod_dim", torch.prod, 1, True, shape=(2, 3)),
    reduce("count_nonzero", torch.count_nonzero, dtypes=ALL, grad=False),
    reduce("count_nonzero_dims", torch.count_nonzero, (0, 1), dtypes=ALL, grad=False),
    reduce("logsumexp", torch.logsumexp, (0, 2), True, dtypes=FLOATS),
    reduce("logsumexp_int", torch.logsumexp, 1, dtypes=(torch.int64,)),
)
def test_sums(case, dtype):
    case.check(dtype)


@cases(
    reduce("amax", torch.amax, (0, 2), dtypes=ORDERED),
    reduce("amin", torch.amin, 1, True, dtypes=ORDERED),
    reduce("aminmax", torch.aminmax, dtypes=ORDERED, kwargs={"dim": 1}),
    reduce("max", torch.max, dtypes=ORDERED, shape=(7,)),
    reduce("min", torch.min, dtypes=ORDERED, shape=(7,)),
    reduce("max_dim", torch.max, 1, dtypes=ORDERED),
    reduce("min_dim", torch.min, -1, True, dtypes=ORDERED),
    reduce("max_dim_0d", torch.max, 0, shape=()),
    reduce("argmax", torch.argmax, dtypes=(*FLOATS, *INTS), grad=False),
    reduce("argmin_dim", torch.argmin, 1, True, dtypes=(*FLOATS, *INTS), grad=False),
    reduce("argmax_0d", torch.argmax, shape=(), grad=False),
    reduce("any", torch.any, dtypes=ALL, grad=False),
    reduce("any_dim", torch.any, 1, dtypes=ALL, grad=False),
    reduce("any_dims", torch.any, (0, 1), True, grad=False),
    reduce("any_no_dims", torch.any, [], grad=False),
    reduce("all", torch.all, dtypes=ALL, grad=False),
    reduce("all_dim", torch.all, -1, True, grad=False),
    reduce("all_empty", torch.all, shape=(0, 3), grad=False),
)
def test_extremes(case, dtype):
    case.check(dtype)


@pytest.mark.parametrize("fn", [torch.max, torch.min, torch.argmax, torch.argmin])
def test_first_nan_is_the_extreme(fn):
    x = torch.tensor([[1.0, math.nan, 5.0, math.nan], [2.0, 2.0, -math.inf, math.inf]])
    torch.testing.assert_close(fn(x.to("tpu"), 1), fn(x, 1), equal_nan=True, check_device=False)


@cases(
    reduce("var", torch.var, dtypes=MOMENTS),
    reduce("var_dims", torch.var, (0, 2), dtypes=MOMENTS, kwargs={"correction": 0}),
    reduce("var_of_one", torch.var, 0, shape=(1, 3), kwargs={"correction": 0}),
    reduce("std", torch.std, 1, dtypes=MOMENTS, kwargs={"keepdim": True}),
    reduce("var_mean", torch.var_mean, 1, dtypes=MOMENTS, kwargs={"correction": 2}),
    reduce("std_mean", torch.std_mean, (0, 1)),
    reduce("var_empty", torch.var, 0, shape=(0, 3)),
    *(
        reduce(f"vector_norm_{p}", torch.linalg.vector_norm, p, (0, 2), dtypes=(*FLOAT, *COMPLEX))
        for p in (0, 1, 2, 3.5, -2, math.inf, -math.inf)
    ),
    reduce("vector_norm", torch.linalg.vector_norm, dtypes=FLOATS),
    reduce("vector_norm_empty", torch.linalg.vector_norm, shape=(0,)),
    reduce("norm", torch.norm, 3, 1, True),
    reduce("norm_dtype", torch.norm, 2, 1, dtypes=FLOAT, kwargs={"dtype": torch.float64}),
    Case("dist", torch.dist, lambda make: (make(3, 4), make(4), 3)),
)
@pytest.mark.filterwarnings("ignore:var...:UserWarning")
def test_moments_and_norms(case, dtype):
    case.check(dtype)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, math.inf])
def test_cdist(p):
    case = Case(f"cdist_{p}", torch.cdist, lambda make: (make(2, 1, 4, 3), make(5, 6, 3), p))
    case.check(torch.float32)


def test_cdist_by_matrix_product():
    Case("cdist", torch.cdist, lambda make: (make(30, 4), make(5, 4))).check(torch.float32)


def test_large_sums_follow_the_memory():
    """Written in place, at one address: a kernel that remembers its operand gives the old sum."""
    host = torch.randn(512, 1024, generator=torch.Generator().manual_seed(0))
    device = host.to("tpu")
    for _ in range(3):
        host.mul_(-0.5).add_(0.25)
        device.mul_(-0.5).add_(0.25)
        for dims in ((0,), (1,), (0, 1)):
            torch.testing.assert_close(device.sum(dims).cpu(), host.sum(dims), rtol=1e-5, atol=1e-2)
            got = device.double().var(dims).cpu()
            torch.testing.assert_close(got, host.double().var(dims))
