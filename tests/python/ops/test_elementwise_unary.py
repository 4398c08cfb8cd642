"""Elementwise ops of one tensor against CPU; edge values where the formula has branches."""

import pytest
import torch
from ops.harness import COMPLEX, FLOATS, INTS, Case, cases

inf, nan = torch.inf, torch.nan
EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 2.5, 1e-3, inf, -inf, nan)
HALF = (torch.float32, torch.bfloat16)
WIDE = (torch.float32, torch.float64)


def unary(name, low=-3.0, high=3.0, dtypes=FLOATS, **kwargs):
    return Case(
        name,
        getattr(torch, name),
        lambda make: (make(3, 4, low=low, high=high),),
        dtypes=dtypes,
        **kwargs,
    )


def special(name, low=-3.0, high=3.0, dtypes=WIDE, **kwargs):
    fn = getattr(torch.special, name)
    return Case(name, fn, lambda make: (make(3, 4, low=low, high=high),), dtypes=dtypes, **kwargs)


@cases(
    unary("abs", dtypes=(*FLOATS, *INTS, *COMPLEX)),
    unary("neg", dtypes=(*FLOATS, *INTS, *COMPLEX)),
    unary("sign", dtypes=(*HALF, *INTS, torch.bool)),
    unary("sgn", dtypes=(*HALF, *INTS, *COMPLEX)),
    unary("ceil", dtypes=(*HALF, torch.int64)),
    unary("floor", dtypes=(*HALF, torch.int64)),
    unary("trunc", dtypes=(*HALF, torch.int64)),
    unary("round", dtypes=(*HALF, torch.int64)),
    unary("frac", dtypes=HALF),
    unary("bitwise_not", dtypes=(*INTS, torch.bool)),
    unary("conj_physical", dtypes=(torch.float32, *COMPLEX)),
    unary("nan_to_num", dtypes=(*HALF, torch.int64)),
    unary("square", dtypes=(*HALF, torch.int64, *COMPLEX)),
    unary("positive", dtypes=HALF),
    unary("deg2rad", dtypes=(*HALF, torch.int64)),
    unary("rad2deg", dtypes=(*HALF, torch.int64)),
    Case("round-decimals", torch.round, lambda make: (make(3, 4), {"decimals": 2}), WIDE),
    Case("round-tens", torch.round, lambda make: (make(9, low=-99, high=99), {"decimals": -1})),
    Case("empty", torch.abs, lambda make: (make(0, 3),)),
    Case("scalar", torch.neg, lambda make: (make(),)),
)
def test_same_dtype(case, dtype):
    case.check(dtype)


@cases(
    unary("reciprocal", low=0.3, dtypes=(*HALF, torch.int8, *COMPLEX)),
    unary("sqrt", low=0.1, dtypes=(*FLOATS, torch.int64, *COMPLEX)),
    unary("rsqrt", low=0.1, dtypes=(*HALF, torch.int64, *COMPLEX)),
    unary("exp", dtypes=(*FLOATS, torch.int64, torch.bool, *COMPLEX)),
    unary("exp2", dtypes=(*HALF, torch.int64)),
    unary("expm1", dtypes=(*HALF, torch.int64)),
    unary("log", low=0.1, dtypes=(*FLOATS, torch.uint8, *COMPLEX)),
    unary("log2", low=0.1, dtypes=(*HALF, torch.uint8, *COMPLEX)),
    unary("log10", low=0.1, dtypes=(*HALF, torch.uint8, *COMPLEX)),
    unary("log1p", low=-0.9, dtypes=(*HALF, torch.uint8, *COMPLEX)),
    unary("sin", dtypes=(*HALF, torch.int64, *COMPLEX)),
    unary("cos", dtypes=(*HALF, torch.int64, *COMPLEX)),
    unary("tan", low=-1.4, high=1.4, dtypes=(*HALF, torch.int64, *COMPLEX)),
    unary("asin", low=-0.9, high=0.9, dtypes=(*HALF, torch.bool, *COMPLEX)),
    unary("acos", low=-0.9, high=0.9, dtypes=(*HALF, torch.bool, *COMPLEX)),
    unary("atan", dtypes=(*HALF, torch.int64, *COMPLEX)),
    unary("sinh", dtypes=(*HALF, torch.int64, *COMPLEX)),
    unary("cosh", dtypes=(*HALF, torch.int64, *COMPLEX)),
    unary("tanh", dtypes=(*FLOATS, torch.int64, *COMPLEX)),
    unary("asinh", dtypes=(*HALF, torch.int64, *COMPLEX)),
    unary("acosh", low=1.1, dtypes=(*HALF, torch.uint8, *COMPLEX)),
    unary("atanh", low=-0.9, high=0.9, dtypes=(*HALF, *COMPLEX)),
    unary("sigmoid", dtypes=(*FLOATS, torch.int64, *COMPLEX)),
    unary("sinc", dtypes=(*HALF, torch.int64, *COMPLEX)),
    unary("angle", dtypes=(*HALF, torch.int64, *COMPLEX)),
    unary("logit", low=0.05, high=0.95, dtypes=HALF),
    Case("logit-eps", torch.logit, lambda make: (make(3, 4, low=-0.1, high=1.1), 0.2), HALF),
    unary("erf", dtypes=(*HALF, torch.int64)),
    unary("erfc", dtypes=(*HALF, torch.int64)),
    unary("erfinv", low=-0.9, high=0.9, dtypes=(*HALF, torch.float64)),
    unary("lgamma", low=0.1, dtypes=(*HALF, torch.float64)),
    unary("digamma", low=0.1, dtypes=(*HALF, torch.float64)),
    unary("i0", dtypes=(*HALF, torch.float64)),
    Case("polygamma-1", torch.polygamma, lambda make: (1, make(3, 4)), WIDE, inplace=False),
    Case(
        "polygamma-2", torch.polygamma, lambda make: (2, make(3, 4, low=0.5)), WIDE, inplace=False
    ),
    Case(
        "polygamma-3", torch.polygamma, lambda make: (3, make(3, 4, low=0.5)), WIDE, inplace=False
    ),
    Case("mvlgamma", torch.mvlgamma, lambda make: (make(3, 4, low=2.5, high=5.0), 3)),
)
def test_floating(case, dtype):
    case.check(dtype)


@cases(
    special("i0e", dtypes=(*HALF, torch.int64), low=-20, high=20),
    special("i1", low=-10, high=10),
    special("i1e", low=-20, high=20),
    special("entr", low=-0.5),
    special("erfcx"),
    special("ndtri", low=0.01, high=0.99),
    special("ndtr"),
    special("log_ndtr", low=-20, high=5),
    special("bessel_j0", low=-12, high=12),
    special("bessel_j1", low=-12, high=12),
    special("bessel_y0", low=0.1, high=12),
    special("bessel_y1", low=0.1, high=12),
    special("modified_bessel_i0", low=-10, high=10),
    special("modified_bessel_i1", low=-10, high=10),
    special("modified_bessel_k0", low=0.1, high=6),
    special("modified_bessel_k1", low=0.1, high=6),
    special("scaled_modified_bessel_k0", low=0.1, high=6),
    special("scaled_modified_bessel_k1", low=0.1, high=6),
    special("spherical_bessel_j0"),
    special("airy_ai", low=-8, high=8),
)
def test_special(case, dtype):
    case.check(dtype)


@cases(
    Case("complex", torch.complex, lambda make: (make(3, 1), make(4)), WIDE),
    Case("polar", torch.polar, lambda make: (make(3, 4), make(3, 4)), WIDE),
    Case("frexp", torch.frexp, lambda make: (make(3, 4, low=-99, high=99),), FLOATS, grad=False),
    Case(
        "frexp-edges",
        torch.frexp,
        lambda make: (torch.tensor([0.0, -0.0, inf, nan, 1e-3]),),
        grad=False,
    ),
    Case(
        "nan_to_num-given",
        torch.nan_to_num,
        lambda make: (torch.tensor([inf, -inf, nan, 2.0]), 1.5, 7.0, -8.0),
    ),
    Case(
        "nan_to_num-edges",
        torch.nan_to_num,
        lambda make: (torch.tensor(EDGES).to(make.dtype),),
        FLOATS,
    ),
)
def test_assembled(case, dtype):
    case.check(dtype)


@pytest.mark.parametrize(
    "name",
    [
        "abs",
        "sign",
        "sgn",
        "ceil",
        "floor",
        "trunc",
        "round",
        "frac",
        "reciprocal",
        "sqrt",
        "rsqrt",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "sigmoid",
        "sinc",
        "angle",
        "logit",
        "erf",
        "erfc",
        "erfinv",
        "lgamma",
        "digamma",
        "i0",
        "signbit",
    ],
)
def test_edge_values(name):
    fn = getattr(torch, name)
    x = torch.tensor(EDGES)
    torch.testing.assert_close(fn(x.to("tpu")).cpu(), fn(x), equal_nan=True)
    # The sign of zero counts: 1 / -0 is not 1 / 0.
    zero = torch.tensor([0.0, -0.0])
    expected = torch.signbit(fn(zero)) & ~torch.isnan(fn(zero))
    actual = fn(zero.to("tpu")).cpu()
    assert torch.equal(torch.signbit(actual) & ~torch.isnan(actual), expected)


def test_special_edge_values():
    x = torch.tensor([*EDGES, 8.0, 5.0, -5.0, 30.0])
    for name in [
        "i0e",
        "i1",
        "i1e",
        "entr",
        "erfcx",
        "ndtri",
        "log_ndtr",
        "bessel_j0",
        "bessel_y0",
        "airy_ai",
    ]:
        fn = getattr(torch.special, name)
        actual = fn(x.to("tpu")).cpu()
        torch.testing.assert_close(actual, fn(x), equal_nan=True, msg=lambda m, n=name: n + m)
