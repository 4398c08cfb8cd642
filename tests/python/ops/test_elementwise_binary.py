"""Elementwise arithmetic of two and three operands against CPU."""

import pytest
import torch
from ops.harness import ALL, ARITHMETIC, COMPLEX, FLOATS, INTS, Case, cases

import torch_tpu

inf, nan = torch.inf, torch.nan
WIDE = (torch.float32, torch.float64)
NUMBERS = (*ARITHMETIC, torch.uint8, *COMPLEX)
REAL = (*ARITHMETIC, torch.float64, torch.uint8)


def nonzero(make, *shape):
    x = make(*shape, low=-3, high=3, grad=False)
    x = torch.where(x == 0, torch.ones_like(x), x)
    return x.requires_grad_(make.grad and (x.is_floating_point() or x.is_complex()))


def pair(make):
    return make(3, 1), make(4)


def divisible(make):
    return make(3, 4, low=-9, high=9), nonzero(make, 4)


def positive(make):
    return make(3, 1, low=0.2), make(4, low=0.2)


@cases(
    Case("add", torch.add, pair, dtypes=ALL),
    Case("add-alpha", torch.add, pair, dtypes=NUMBERS, kwargs={"alpha": 2}),
    Case("add-number", torch.add, lambda make: (make(3, 4), 2), dtypes=ALL),
    Case("add-float", torch.add, lambda make: (make(3, 4), 0.1), dtypes=ALL),
    Case("sub", torch.sub, pair, dtypes=NUMBERS),
    Case("sub-alpha", torch.sub, pair, dtypes=ARITHMETIC, kwargs={"alpha": 3}),
    Case("rsub", torch.rsub, pair, dtypes=ARITHMETIC),
    Case("rsub-number", torch.rsub, lambda make: (make(3, 4), 2), dtypes=ARITHMETIC),
    Case("mul", torch.mul, pair, dtypes=ALL),
    Case("mul-number", torch.mul, lambda make: (make(3, 4), 0.5), dtypes=ALL),
    Case("div", torch.div, divisible, dtypes=ALL),
    Case("div-trunc", torch.div, divisible, dtypes=REAL, kwargs={"rounding_mode": "trunc"}),
    Case("div-floor", torch.div, divisible, dtypes=REAL, kwargs={"rounding_mode": "floor"}),
    Case("floor_divide", torch.floor_divide, divisible, dtypes=REAL, grad=False),
    Case("fmod", torch.fmod, divisible, dtypes=REAL),
    Case("fmod-number", torch.fmod, lambda make: (make(3, 4), 2), dtypes=REAL),
    Case("remainder", torch.remainder, divisible, dtypes=REAL),
    Case("remainder-number", torch.remainder, lambda make: (make(3, 4), -2), dtypes=ARITHMETIC),
    Case(
        "remainder-of", torch.remainder, lambda make: (7, nonzero(make, 4)), ARITHMETIC, grad=False
    ),
    Case("pow", torch.pow, positive, dtypes=FLOATS),
    Case("pow-complex", torch.pow, pair, dtypes=COMPLEX, rtol=1e-4, atol=1e-4),
    Case("pow-int", torch.pow, lambda make: (make(9), make(9, low=0, high=5)), dtypes=INTS),
    Case("pow-base", torch.pow, lambda make: (2.5, make(3, 4)), dtypes=ARITHMETIC),
    *[
        Case(f"pow({e})", torch.pow, lambda make, e=e: (make(3, 4, low=0.3), e), dtypes=WIDE)
        for e in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, 4)
    ],
    Case("float_power", torch.float_power, positive, dtypes=ARITHMETIC),
    Case("empty", torch.add, lambda make: (make(0, 4), make(4))),
    Case("scalars", torch.mul, lambda make: (make(), make())),
)
def test_arithmetic(case, dtype):
    case.check(dtype)


@cases(
    Case("atan2", torch.atan2, pair, dtypes=REAL),
    Case("hypot", torch.hypot, pair, dtypes=FLOATS),
    Case("copysign", torch.copysign, pair, dtypes=REAL),
    Case("copysign-number", torch.copysign, lambda make: (make(3, 4), -1.0)),
    Case("nextafter", torch.nextafter, pair, dtypes=(*WIDE, torch.bfloat16), grad=False),
    Case("ldexp", torch.ldexp, lambda make: (make(3, 4), make(4, dtype=torch.int32)), FLOATS),
    Case("heaviside", torch.heaviside, lambda make: (make(3, 4), make(4)), REAL, grad=False),
    Case("gcd", torch.gcd, lambda make: (make(9, high=99), make(9, high=99)), INTS),
    Case("lcm", torch.lcm, lambda make: (make(9, high=9), make(9, high=9)), INTS),
    Case("xlogy", torch.xlogy, lambda make: (make(3, 4), make(4, low=0.1)), FLOATS),
    Case("xlogy-number", torch.xlogy, lambda make: (2.0, make(4, low=0.1))),
    Case("xlog1py", torch.special.xlog1py, lambda make: (make(3, 4), make(4, low=0.1)), WIDE),
    Case(
        "zeta",
        torch.special.zeta,
        lambda make: (make(3, 4, low=1.1, high=9, grad=False), make(4, low=0.2)),
        WIDE,
        grad=False,
    ),
    Case("logaddexp", torch.logaddexp, pair, dtypes=FLOATS),
    Case("logaddexp2", torch.logaddexp2, pair, dtypes=FLOATS),
    Case(
        "igamma",
        torch.special.gammainc,
        lambda make: (make(40, low=0.1, high=30, grad=False), make(40, low=0.1, high=30)),
        WIDE,
    ),
    Case(
        "igammac",
        torch.special.gammaincc,
        lambda make: (make(40, low=0.1, high=30, grad=False), make(40, low=0.1, high=30)),
        WIDE,
    ),
)
def test_functions(case, dtype):
    case.check(dtype)


@cases(
    Case("addcmul", torch.addcmul, lambda make: (make(3, 4), make(3, 1), make(4)), NUMBERS),
    Case(
        "addcmul-value",
        torch.addcmul,
        lambda make: (make(3, 4), make(3, 1), make(4), {"value": 2}),
        NUMBERS,
    ),
    Case(
        "addcdiv",
        torch.addcdiv,
        lambda make: (make(3, 4), make(3, 1), nonzero(make, 4)),
        (*FLOATS, *COMPLEX),
    ),
    Case(
        "addcdiv-value",
        torch.addcdiv,
        lambda make: (make(3, 4), make(3, 1), nonzero(make, 4), {"value": 0.5}),
        FLOATS,
    ),
    Case("lerp", torch.lerp, lambda make: (make(3, 4), make(3, 4), 0.3), (*FLOATS, *COMPLEX)),
    Case("lerp-far", torch.lerp, lambda make: (make(3, 4), make(3, 4), 0.9), FLOATS),
    Case("lerp-tensor", torch.lerp, lambda make: (make(3, 4), make(3, 4), make(4)), FLOATS),
)
def test_ternary(case, dtype):
    case.check(dtype)


POLYNOMIALS = [name for name in dir(torch.special) if "polynomial" in name]


@cases(
    *[
        Case(
            name,
            getattr(torch.special, name),
            lambda make: (make(30, low=-1.5, high=1.5), torch.arange(30) % 11 - 1),
            WIDE,
            grad=False,
            rtol=1e-4,
            atol=1e-4,
        )
        for name in POLYNOMIALS
    ]
)
def test_polynomial(case, dtype):
    case.check(dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
def test_integer_division_rounds_like_cpu(dtype):
    a = torch.arange(-9, 10, dtype=dtype).reshape(-1, 1)
    b = torch.tensor([-4, -3, -1, 1, 2, 5], dtype=dtype)
    for fn in (torch.floor_divide, torch.fmod, torch.remainder):
        assert torch.equal(fn(a.to("tpu"), b.to("tpu")).cpu(), fn(a, b))
    for mode in ("trunc", "floor"):
        actual = torch.div(a.to("tpu"), b.to("tpu"), rounding_mode=mode).cpu()
        assert torch.equal(actual, torch.div(a, b, rounding_mode=mode))


def test_integer_division_by_zero():
    a, zero = torch.tensor([3, -3], device="tpu"), torch.tensor([1, 0], device="tpu")
    for fn in (torch.floor_divide, torch.fmod, torch.remainder):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            fn(a, zero).cpu()
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            fn(a, 0)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            fn(a, torch.tensor(0, device="tpu")).cpu()
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            fn(a, torch.tensor(0))
        assert fn(a[:0], 0).cpu().tolist() == []
        assert fn(a[:0].reshape(0, 1), zero).cpu().tolist() == []
        assert fn(a, 2).cpu().tolist() == fn(a.cpu(), 2).tolist()
        assert fn(a, torch.tensor(2, device="tpu")).cpu().tolist() == fn(a.cpu(), 2).tolist()
    assert torch.div(a, 0, rounding_mode=None).cpu().tolist() == [inf, -inf]


def test_float_division_edges():
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, 7.5, -7.5, inf, -inf, nan, 0.3])
    a, b = values.reshape(-1, 1), values
    for fn in (
        torch.fmod,
        torch.remainder,
        torch.atan2,
        torch.hypot,
        torch.pow,
        torch.xlogy,
        torch.logaddexp,
        torch.logaddexp2,
        torch.copysign,
        torch.heaviside,
        torch.floor_divide,
    ):
        actual = fn(a.to("tpu"), b.to("tpu")).cpu()
        torch.testing.assert_close(actual, fn(a, b), equal_nan=True, msg=lambda m, f=fn: f"{f} {m}")


def test_negative_integer_exponents():
    base = torch.tensor([1, -1, 2, -2, 3])
    exponent = torch.tensor([-3, -3, -1, -2, 0])
    expected = torch.pow(base, exponent)
    assert torch.equal(torch.pow(base.to("tpu"), exponent.to("tpu")).cpu(), expected)


def test_promotion():
    ints, floats = torch.arange(4), torch.rand(4)
    half = torch.rand(4).bfloat16()
    number = torch.tensor(2.5)  # a 0-d tensor on the host joins in
    for a, b in [(ints, floats), (ints, half), (half, floats), (half, number), (ints, number)]:
        host = a + b
        on_device = a.to("tpu") + (b if b.dim() == 0 else b.to("tpu"))
        assert on_device.dtype == host.dtype
        torch.testing.assert_close(on_device.cpu(), host)


def test_scalars_are_runtime_values():
    x = torch.rand(5, device="tpu")
    (x * 0.5).cpu()
    before = torch_tpu.stats()["misses"]
    for value in (0.25, 0.75, 3.0):
        (x * value).cpu()
    assert torch_tpu.stats()["misses"] == before
