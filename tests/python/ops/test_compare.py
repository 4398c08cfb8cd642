"""Comparisons, predicates, logical and bitwise ops, maximum, clamp, where, masked_fill, isin."""

import pytest
import torch
from ops.harness import ALL, ARITHMETIC, COMPLEX, FLOATS, INTS, Case, cases

inf, nan = torch.inf, torch.nan
REAL = (*ARITHMETIC, torch.float16, torch.uint8, torch.bool)
BITS = (*INTS, torch.bool)


def pair(make):
    return make(3, 1), make(4)


def binary(name, dtypes, inputs=pair, **kwargs):
    return Case(name, getattr(torch, name), inputs, dtypes=dtypes, **kwargs)


def number(name, value, dtypes=REAL):
    return Case(f"{name}({value})", getattr(torch, name), lambda make: (make(3, 4), value), dtypes)


@cases(
    binary("eq", ALL),
    binary("ne", ALL),
    binary("lt", REAL),
    binary("le", REAL),
    binary("gt", REAL),
    binary("ge", REAL),
    number("eq", 1, ALL),
    number("ne", 0.5, ALL),
    number("lt", 0.1),
    number("le", 1),
    number("gt", 1),
    number("ge", 0.1),
    binary("logical_and", ALL),
    binary("logical_or", ALL),
    binary("logical_xor", ALL),
    Case("logical_not", torch.logical_not, lambda make: (make(3, 4),), ALL),
    binary("bitwise_and", BITS),
    binary("bitwise_or", BITS),
    binary("bitwise_xor", BITS),
    number("bitwise_and", 5, INTS),
    Case("bitwise_or-of", torch.bitwise_or, lambda make: (5, make(3, 4)), INTS),
    Case(
        "shift-left",
        torch.bitwise_left_shift,
        lambda make: (make(9, high=99), make(9, low=0, high=9)),
        INTS,
    ),
    Case(
        "shift-right",
        torch.bitwise_right_shift,
        lambda make: (make(9, low=-99, high=99), make(9, low=0, high=9)),
        INTS,
    ),
    Case(
        "operator-shift",
        lambda a, b: (a << b, a >> b, a << 1, a >> 1),
        lambda make: (make(9), make(9, low=0, high=4)),
        INTS,
    ),
)
def test_compare(case, dtype):
    case.check(dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_shifts_out_of_range(dtype):
    a = torch.tensor([5, 100, 7, 1], dtype=dtype) * (1 if dtype == torch.uint8 else -1)
    b = torch.tensor([8, 64, 100, 7], dtype=dtype)
    for fn in (torch.bitwise_left_shift, torch.bitwise_right_shift):
        assert torch.equal(fn(a.to("tpu"), b.to("tpu")).cpu(), fn(a, b))
    host, device = a.clone(), a.to("tpu")
    host <<= 1
    device <<= 1
    assert torch.equal(device.cpu(), host)


@cases(
    binary("maximum", REAL),
    binary("minimum", REAL),
    binary("fmax", REAL),
    binary("fmin", REAL),
    Case("clamp", torch.clamp, lambda make: (make(3, 4), -1, 2), (*ARITHMETIC, torch.uint8)),
    Case("clamp-min", torch.clamp, lambda make: (make(3, 4), 0.5), (*ARITHMETIC, torch.uint8)),
    Case(
        "clamp-max", torch.clamp, lambda make: (make(3, 4), None, 0.5), (*ARITHMETIC, torch.uint8)
    ),
    Case("clamp-tensor", torch.clamp, lambda make: (make(3, 4), make(4), make(3, 1)), FLOATS),
    Case("clamp_min", torch.clamp_min, lambda make: (make(3, 4), 0), (*ARITHMETIC, torch.uint8)),
    Case(
        "clamp_max", torch.clamp_max, lambda make: (make(3, 4), make(4)), (*ARITHMETIC, torch.uint8)
    ),
    Case("where", torch.where, lambda make: (make.mask(3, 4), make(3, 1), make(4)), ALL),
    Case("where-number", torch.where, lambda make: (make.mask(3, 4), make(3, 4), 0.5), ALL),
    Case("masked_fill", torch.masked_fill, lambda make: (make(3, 4), make.mask(4), 2), ALL),
    Case(
        "masked_fill-tensor",
        torch.masked_fill,
        lambda make: (make(3, 4), make.mask(3, 1), make(grad=False)),
        ALL,
    ),
)
def test_select(case, dtype):
    case.check(dtype)


EDGES = (0.0, -0.0, 1.0, -1.0, inf, -inf, nan)


@pytest.mark.parametrize(
    "name", ["isnan", "isinf", "isposinf", "isneginf", "isfinite", "signbit", "isreal"]
)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool, *COMPLEX])
def test_predicate(name, dtype):
    fn = getattr(torch, name)
    x = torch.tensor(EDGES)
    x = x.nan_to_num().to(dtype) if dtype in (torch.int64, torch.bool) else x.to(dtype)
    try:
        expected = fn(x)
    except RuntimeError:
        pytest.skip("not on CPU either")
    assert torch.equal(fn(x.to("tpu")).cpu(), expected)


def test_nan_propagation():
    a, b = torch.tensor(EDGES).reshape(-1, 1), torch.tensor(EDGES)
    for fn in (
        torch.maximum,
        torch.minimum,
        torch.fmax,
        torch.fmin,
        torch.clamp_min,
        torch.eq,
        torch.ne,
        torch.lt,
        torch.ge,
    ):
        actual = fn(a.to("tpu"), b.to("tpu")).cpu()
        torch.testing.assert_close(actual, fn(a, b), equal_nan=True)
    actual = torch.clamp(b.to("tpu"), nan, 1.0).cpu()
    torch.testing.assert_close(actual, torch.clamp(b, nan, 1.0), equal_nan=True)


@cases(
    Case("isclose", torch.isclose, lambda make: (make(3, 4), make(4)), (*ARITHMETIC, *COMPLEX)),
    Case(
        "isclose-loose",
        torch.isclose,
        lambda make: (make(3, 4), make(4), 0.1, 0.5),
        (*ARITHMETIC, torch.uint8),
    ),
    Case(
        "isclose-nan",
        torch.isclose,
        lambda make: (torch.tensor([nan, inf, 1.0]), torch.tensor([nan, inf, -inf])),
        kwargs={"equal_nan": True},
    ),
    Case("isin", torch.isin, lambda make: (make(3, 4), make(5)), (torch.float32, *INTS)),
    Case(
        "isin-invert",
        torch.isin,
        lambda make: (make(3, 4), make(2, 2)),
        INTS,
        kwargs={"invert": True},
    ),
    Case("isin-number", torch.isin, lambda make: (make(3, 4), 1), INTS),
    Case("isin-in", torch.isin, lambda make: (1, make(3, 4)), INTS),
    Case("isin-empty", torch.isin, lambda make: (make(3, 4), make(0))),
)
def test_membership(case, dtype):
    case.check(dtype)


def test_rounding_before_comparison():
    # 0.1 is compared as the bfloat16 it becomes.
    x = torch.tensor([0.1], dtype=torch.bfloat16)
    assert torch.equal((x.to("tpu") == 0.1).cpu(), x == 0.1)


def test_equal_and_allclose():
    x = torch.rand(3, 4)
    y = x.to("tpu")
    assert torch.equal(y, y.clone())
    assert not torch.equal(y, y + 1)
    assert torch.allclose(y, y + 1e-9)
    assert not torch.allclose(y, y + 1)
