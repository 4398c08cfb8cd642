"""Integers that no double has: every op takes them as they are, first call and later ones.

Each case runs with neighbours, which a double could not tell apart, so that a program which was
kept for one number and used for the next is found out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._decomp import register_decomposition
from torch.utils._pytree import tree_flatten, tree_map_only

import torch_tpu

MIN, MAX = -(2**63), 2**63 - 1
# A float32 rounds this up; one that is rounded to a double first, down.
ABOVE_TIE = 2**60 + 2**36 + 1
NUMBERS = (
    *(2**24 + 1, 2**31, 2**32 + 1, 2**40 + 1),
    *(2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, -(2**53), -(2**53) - 1),
    *(ABOVE_TIE - 1, ABOVE_TIE, 2**62 + 1),
    *(MAX, MAX - 1, MIN, MIN + 1, 3, 0, -1),
)
NEIGHBOURS = (2**53, 2**53 + 1, MAX - 1, MAX, MIN + 1, MIN)
UNSIGNED = (2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1, 2**53 + 1, 5)

Op = Callable[[int, str], Any]


def same(expected: Any, actual: Any, what: str) -> None:
    expecteds, actuals = tree_flatten(expected)[0], tree_flatten(actual)[0]
    assert len(expecteds) == len(actuals)
    for e, a in zip(expecteds, actuals, strict=True):
        if isinstance(e, Tensor):
            assert a.dtype == e.dtype, what
            a = a.cpu()
            assert torch.equal(a, e), f"{what}: expected {e.tolist()}, got {a.tolist()}"
        else:
            assert a == e, what


def check(op: Op, numbers: tuple[int, ...]) -> None:
    """Twice, so that the second round finds programs; where the CPU refuses, so must we."""
    results = []
    for n in numbers * 2:
        try:
            expected = op(n, "cpu")
        except (RuntimeError, TypeError, OverflowError) as error:
            with pytest.raises(type(error)):
                tree_map_only(Tensor, lambda t: t.cpu(), op(n, "tpu"))
        else:
            results.append((expected, op(n, "tpu"), n))
    for expected, actual, n in results:  # read last: in Fused Eager they are one program
        same(expected, actual, f"{n}")


def ints(device: str, dtype: torch.dtype = torch.int64) -> Tensor:
    values = [0, 1, -1, 7, 2**53, 2**53 + 1, -(2**53) - 1, MAX, MAX - 1, MIN, MIN + 1, 2**40 + 1]
    return torch.tensor(values, device=device).to(dtype)


def positive(device: str) -> Tensor:
    return torch.tensor([1, 2, 3, 2**53 + 1, MAX, 10**9 + 7], device=device)


def mask(device: str) -> Tensor:
    return torch.arange(12, device=device) % 2 == 0


def unsigned(device: str) -> Tensor:
    return torch.tensor([2**64 - 1, 2**63, 2**53 + 1, 1], dtype=torch.uint64, device=device)


def small(device: str) -> Tensor:
    return torch.tensor([1, 2, 3, 4, 5, 6, -1, -2, 0, 7, 8, 9], device=device)


SCALARS: dict[str, Op] = {
    "add": lambda n, d: ints(d) + n,
    "radd": lambda n, d: n + ints(d),
    "sub": lambda n, d: ints(d) - n,
    "rsub": lambda n, d: n - ints(d),
    "mul": lambda n, d: ints(d) * n,
    "add_alpha": lambda n, d: torch.add(ints(d), small(d), alpha=n),
    "sub_alpha": lambda n, d: torch.sub(ints(d), small(d), alpha=n),
    "rsub_alpha": lambda n, d: torch.rsub(ints(d), 5, alpha=n),
    "floor_divide": lambda n, d: positive(d) // (n or 1),
    "rfloor_divide": lambda n, d: n // positive(d),
    "div_trunc": lambda n, d: torch.div(positive(d), n or 1, rounding_mode="trunc"),
    "remainder": lambda n, d: positive(d) % (n or 1),
    "rremainder": lambda n, d: n % positive(d),
    "fmod": lambda n, d: torch.fmod(positive(d), n or 1),
    "pow": lambda n, d: torch.pow(n, torch.tensor([0, 1, 2, 3], device=d)),
    "square": lambda n, d: torch.tensor([n], device=d) ** 2,
    "and": lambda n, d: ints(d) & n,
    "or": lambda n, d: ints(d) | n,
    "xor": lambda n, d: ints(d) ^ n,
    "rshift": lambda n, d: n >> torch.tensor([0, 1, 5, 62], device=d),
    "lshift": lambda n, d: n << torch.tensor([0, 1, 5], device=d),
    "eq": lambda n, d: ints(d) == n,
    "ne": lambda n, d: ints(d) != n,
    "lt": lambda n, d: ints(d) < n,
    "le": lambda n, d: ints(d) <= n,
    "gt": lambda n, d: ints(d) > n,
    "ge": lambda n, d: ints(d) >= n,
    "clamp_min": lambda n, d: ints(d).clamp(min=n),
    "clamp_max": lambda n, d: ints(d).clamp(max=n),
    "clamp": lambda n, d: ints(d).clamp(n, MAX),
    "where_self": lambda n, d: torch.where(mask(d), n, ints(d)),
    "where_other": lambda n, d: torch.where(mask(d), ints(d), n),
    "where_both": lambda n, d: torch.where(mask(d), n, 5),
    "masked_fill": lambda n, d: ints(d).masked_fill(mask(d), n),
    "fill_": lambda n, d: torch.empty(3, dtype=torch.int64, device=d).fill_(n),
    "fill_part": lambda n, d: (x := ints(d), x[2:5].fill_(n), x)[2],
    "setitem": lambda n, d: (x := ints(d), x.__setitem__(mask(d), n), x)[2],
    "full": lambda n, d: torch.full((3,), n, device=d),
    "full_like": lambda n, d: torch.full_like(ints(d), n),
    "new_full": lambda n, d: ints(d).new_full((2, 2), n),
    "tensor": lambda n, d: torch.tensor(n, device=d),
    "scalar_tensor": lambda n, d: torch.scalar_tensor(n, dtype=torch.int64, device=d),
    "index_fill": lambda n, d: ints(d).index_fill(0, torch.tensor([1, 3], device=d), n),
    "index_put": lambda n, d: ints(d).index_put(
        (torch.tensor([1, 3], device=d),), torch.tensor(n, device=d)
    ),
    "scatter": lambda n, d: ints(d).scatter(0, torch.tensor([1, 3], device=d), n),
    "isin": lambda n, d: torch.isin(ints(d), n),
    "isin_scalar": lambda n, d: torch.isin(n, ints(d)),
    "searchsorted": lambda n, d: torch.searchsorted(ints(d).sort().values, n),
    "bucketize": lambda n, d: torch.bucketize(n, ints(d).sort().values),
    "addcmul": lambda n, d: torch.addcmul(ints(d), small(d), small(d), value=n),
    "addmm": lambda n, d: torch.addmm(
        small(d)[:9].view(3, 3), *[ints(d)[:9].view(3, 3)] * 2, alpha=n
    ),
    "baddbmm_beta": lambda n, d: torch.baddbmm(
        small(d).view(3, 2, 2), small(d).view(3, 2, 2), small(d).view(3, 2, 2), beta=n
    ),
    "foreach_add": lambda n, d: torch._foreach_add([ints(d), small(d)], n),
    "foreach_mul": lambda n, d: torch._foreach_mul([ints(d), small(d)], n),
    "foreach_list": lambda n, d: torch._foreach_add([ints(d), small(d)], [n, 3]),
    "foreach_clamp": lambda n, d: torch._foreach_clamp_max([ints(d), small(d)], n),
    "foreach_mixed": lambda n, d: torch._foreach_add([ints(d), small(d).float()], n),
    "foreach_alpha": lambda n, d: torch._foreach_add([ints(d)], [small(d)], alpha=n),
    "nonzero_static": lambda n, d: torch.nonzero_static(mask(d), size=9, fill_value=n),
    "cumsum": lambda n, d: torch.full((3,), n, device=d).cumsum(0),
    "host_add": lambda n, d: ints(d) + torch.tensor(n),
    "host_eq": lambda n, d: ints(d) == torch.tensor(n),
    "host_where": lambda n, d: torch.where(mask(d), ints(d), torch.tensor(n)),
    "host_float": lambda n, d: small(d).float() * torch.tensor(n),
    "copy": lambda n, d: torch.zeros(2, dtype=torch.int64, device=d).copy_(torch.tensor([n, n])),
    "item": lambda n, d: torch.tensor([n], device=d).item(),
    "sum_item": lambda n, d: (torch.tensor([n], device=d) + 0).sum().item(),
    "tolist": lambda n, d: (torch.tensor([n], device=d) * 1).tolist(),
    "linspace": lambda n, d: torch.linspace(n, n, 1, dtype=torch.int64, device=d),
    "int32": lambda n, d: torch.full((2,), n % 2**31, dtype=torch.int32, device=d) + n % 2**30,
}

RANGES: dict[str, Op] = {
    "end": lambda n, d: torch.arange(n, n + 5, device=d),
    "fewer": lambda n, d: torch.arange(n, n + 4, device=d),
    "step": lambda n, d: torch.arange(n, n + 9, 2, device=d),
    "down": lambda n, d: torch.arange(n + 4, n, -1, device=d),
    "out": lambda n, d: torch.arange(n, n + 3, out=torch.empty(3, dtype=torch.int64, device=d)),
    "int32": lambda n, d: torch.arange(n % 2**30, n % 2**30 + 5, dtype=torch.int32, device=d),
}
STARTS = (2**53, 2**53 + 1, 2**53 - 3, -(2**53) - 2, -(2**53) - 3, 2**31 - 2, MAX - 9, MIN, MIN + 1)

# An integer and floats: the integer is rounded to the float's type, and only once.
FLOATS: dict[str, Op] = {
    "add": lambda n, d: small(d).float() + n,
    "mul": lambda n, d: small(d).float() * n,
    "double": lambda n, d: small(d).double() + n,
    "mixed": lambda n, d: torch._foreach_mul([small(d).float(), small(d).double()], n),
    "eq": lambda n, d: torch.full((2,), float(n), device=d) == n,
    "lt": lambda n, d: torch.full((2,), float(n), device=d) < n,
    "fill_": lambda n, d: torch.empty(2, device=d).fill_(n),
    "full": lambda n, d: torch.full((2,), n, dtype=torch.float32, device=d),
    "full64": lambda n, d: torch.full((2,), n, dtype=torch.float64, device=d),
    "tensor": lambda n, d: torch.tensor(n, dtype=torch.float32, device=d),
    "where": lambda n, d: torch.where(mask(d), small(d).float(), n),
    "clamp": lambda n, d: small(d).float().clamp(max=n),
    "of_ints": lambda n, d: ints(d).float() + n,
    # A float that holds an integer, for integers.
    "float_fill": lambda n, d: torch.zeros(2, dtype=torch.int64, device=d).fill_(float(n // 2)),
    "float_full": lambda n, d: torch.full((2,), float(n // 2), dtype=torch.int64, device=d),
    "float_mul": lambda n, d: ints(d) * float(n),
}

LARGE_UNSIGNED: dict[str, Op] = {
    "full": lambda n, d: torch.full((2,), n, dtype=torch.uint64, device=d),
    "fill_": lambda n, d: torch.zeros(2, dtype=torch.uint64, device=d).fill_(n),
    "fill_tensor": lambda n, d: torch.zeros(2, dtype=torch.uint64, device=d).fill_(
        torch.tensor(n, dtype=torch.uint64)
    ),
    "tensor": lambda n, d: torch.tensor([n, 1], dtype=torch.uint64, device=d),
    "item": lambda n, d: torch.tensor([n], dtype=torch.uint64, device=d).item(),
    "eq": lambda n, d: torch.tensor([n, 1], dtype=torch.uint64, device=d) == n,
    "host_eq": lambda n, d: (
        torch.tensor([n, 1], dtype=torch.uint64, device=d) == torch.tensor(n, dtype=torch.uint64)
    ),
    "mul": lambda n, d: unsigned(d) * n,
    "and": lambda n, d: unsigned(d) & n,
    "xor": lambda n, d: unsigned(d) ^ n,
    "where": lambda n, d: torch.where(unsigned(d) == 1, unsigned(d), n),
    "isin": lambda n, d: torch.isin(unsigned(d), n),
    "full_like": lambda n, d: torch.full_like(unsigned(d), n),
    "sort": lambda n, d: torch.full((2,), n, dtype=torch.uint64, device=d).sort().values,
    "signed_add": lambda n, d: ints(d) + n,
    "signed_eq": lambda n, d: ints(d) == n,
    "signed_fill": lambda n, d: torch.zeros(2, dtype=torch.int64, device=d).fill_(n),
    "float": lambda n, d: torch.ones(2, device=d) * n,
    "double": lambda n, d: torch.ones(2, dtype=torch.float64, device=d) + n,
    "to_float": lambda n, d: torch.tensor([n], dtype=torch.uint64, device=d).to(torch.float64),
    "to_int": lambda n, d: torch.tensor([n], dtype=torch.uint64, device=d).to(torch.int64),
}


@pytest.fixture(params=["strict", "fused"])
def each_mode(request: pytest.FixtureRequest) -> Any:
    with torch_tpu.mode(request.param):
        yield


@pytest.mark.parametrize("name", SCALARS)
def test_scalars(each_mode: None, name: str) -> None:
    check(SCALARS[name], NUMBERS)


@pytest.mark.parametrize("name", RANGES)
def test_ranges(each_mode: None, name: str) -> None:
    check(RANGES[name], STARTS)


@pytest.mark.parametrize("name", FLOATS)
def test_floats(each_mode: None, name: str) -> None:
    check(FLOATS[name], NUMBERS)


@pytest.mark.parametrize("name", LARGE_UNSIGNED)
def test_unsigned(each_mode: None, name: str) -> None:
    check(LARGE_UNSIGNED[name], UNSIGNED)


@pytest.mark.parametrize("name", ["add", "eq", "fill_", "clamp", "foreach_mixed", "host_add"])
def test_debug(name: str) -> None:
    with torch_tpu.mode("debug"):
        check(SCALARS[name], NEIGHBOURS)


# Ops without numbers: the elements are neighbours that a double could not tell apart.
TENSORS: dict[str, Callable[[str], Any]] = {
    "sort": lambda d: list(ints(d).sort(stable=True)),
    "argsort": lambda d: ints(d).argsort(descending=True),
    "topk": lambda d: list(ints(d).topk(5)),
    "kthvalue": lambda d: list(ints(d).kthvalue(10)),
    "median": lambda d: ints(d).median(),
    "max": lambda d: list(ints(d).max(0)),
    "argmin": lambda d: ints(d)[:9].argmin(),
    "aminmax": lambda d: list(ints(d).aminmax()),
    "cummax": lambda d: list(ints(d).cummax(0)),
    "cumsum": lambda d: ints(d).cumsum(0),
    "cumprod": lambda d: ints(d).cumprod(0),
    "sum": lambda d: ints(d).sum(),
    "prod": lambda d: ints(d)[3:].prod(),
    "unique": lambda d: list(torch.unique(ints(d).repeat(2), return_counts=True)),
    "mode": lambda d: torch.mode(ints(d).repeat(2)[:-1])[0],
    "dot": lambda d: ints(d) @ small(d),
    "matmul": lambda d: ints(d).view(3, 4) @ ints(d).view(4, 3),
    "searchsorted": lambda d: torch.searchsorted(ints(d).sort().values, ints(d)),
    "isin": lambda d: torch.isin(ints(d) + 1, ints(d)),
    "eq": lambda d: ints(d) == ints(d).roll(1),
    "maximum": lambda d: torch.maximum(ints(d), ints(d).roll(1)),
    "abs": lambda d: ints(d).abs(),
    "neg": lambda d: -ints(d),
    "sign": lambda d: ints(d).sign(),
    "not": lambda d: ~ints(d),
    "gcd": lambda d: torch.gcd(positive(d), positive(d).roll(1)),
    "diff": lambda d: ints(d).diff(),
    "index_add": lambda d: ints(d).index_add(0, small(d)[:3], ints(d)[:3]),
    "scatter_amax": lambda d: ints(d).scatter_reduce(0, small(d)[:3], ints(d)[6:9], "amax"),
    "to_float32": lambda d: ints(d).float(),
    "to_float64": lambda d: ints(d).double(),
    "to_int32": lambda d: ints(d).int(),
    "to_bool": lambda d: ints(d).bool(),
    "to_uint64": lambda d: ints(d).to(torch.uint64),
    "from_float64": lambda d: ints(d)[:7].double().long(),
    "where": lambda d: torch.where(mask(d), ints(d), -ints(d)),
    "floor_divide": lambda d: positive(d) // positive(d).roll(1),
    "remainder": lambda d: positive(d) % positive(d).roll(1),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors(name: str) -> None:
    same(TENSORS[name]("cpu"), TENSORS[name]("tpu"), name)


STORED: dict[str, Op] = {
    "fill_": lambda n, d: small(d).int().fill_(n),
    "full": lambda n, d: torch.full((2,), n, dtype=torch.int32, device=d),
    "masked_fill": lambda n, d: small(d).int().masked_fill(mask(d), n),
    "index_fill": lambda n, d: small(d).int().index_fill(0, torch.tensor([1], device=d), n),
    "scatter": lambda n, d: small(d).int().scatter(0, torch.tensor([1], device=d), n),
    "setitem": lambda n, d: small(d).int().__setitem__(1, n),
    "float": lambda n, d: small(d).int().fill_(float(n)),
    "half": lambda n, d: torch.ones(2, dtype=torch.float16, device=d).fill_(n),
}


@pytest.mark.parametrize("name", STORED)
def test_numbers_that_do_not_fit_are_refused(name: str) -> None:
    for n in (2**40, -(2**31) - 1, 3):  # 3 fits, and must not have been kept as refused
        try:
            expected = STORED[name](n, "cpu")
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error)):
                STORED[name](n, "tpu")
        else:
            same(expected, STORED[name](n, "tpu"), f"{n}")


def test_seen() -> None:
    """The second range was given the program of the first, and had 4 elements."""
    torch.arange(2**53, 2**53 + 4, device="tpu")
    assert torch.arange(2**53, 2**53 + 5, device="tpu").tolist() == [2**53 + i for i in range(5)]


def many(x: Tensor, n: int) -> tuple[Tensor, ...]:
    return (
        x + n,
        x * n,
        n - x,
        x == n,
        x < n,
        x & n,
        x.clamp(max=n),
        torch.where(x > 0, x, n),
        x.masked_fill(x > 0, n),
        torch.full((2,), n, device=x.device),
        torch.full_like(x, n),
        torch.add(x, x, alpha=n),
        torch.addcmul(x, x, x, value=n),
        x.float() * n,
        x.new_full((3,), n).cumsum(0),
    )


@pytest.mark.parametrize(
    ("dynamic", "numbers"),
    [
        (False, (2**53, 2**53 + 1, MAX, MIN + 1)),
        # PyTorch takes the largest integers for infinity where they are symbols.
        (True, (2**53, 2**53 + 1, 2**62 + 1, -(2**53) - 1)),
    ],
)
def test_compile(dynamic: bool, numbers: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    function = torch.compile(many, backend="tpu", dynamic=dynamic)
    for n in numbers:
        same(many(ints("cpu"), n), function(ints("tpu"), n), f"{n}")


def test_compile_ranges() -> None:
    torch._dynamo.reset()

    def ranges(x: Tensor, n: int) -> Tensor:
        return torch.arange(n, n + x.shape[0], device=x.device) + x

    function = torch.compile(ranges, backend="tpu")
    for n in (2**53, 2**53 + 1, MIN, MIN + 1):
        same(ranges(small("cpu"), n), function(small("tpu"), n), f"{n}")


def shift(x: Tensor, n: int, m: int) -> Tensor:
    return torch.where(x == n, x - m, torch.full_like(x, n) + m)


LIBRARY = torch.library.Library("tpu_large_integers", "DEF")
LIBRARY.define("shift(Tensor x, Scalar n, int m) -> Tensor")
LIBRARY.impl("shift", shift, "CPU")
register_decomposition(torch.ops.tpu_large_integers.shift)(shift)


def test_decomposition() -> None:
    """Its recording keeps numbers as constants."""
    op = torch.ops.tpu_large_integers.shift
    check(lambda n, d: op(ints(d), n, 3), NEIGHBOURS)
    check(lambda n, d: op(ints(d), 3, n), NEIGHBOURS)


class Offset(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x == self.n, x - self.n, torch.full_like(x, self.n))


def test_export(tmp_path: Path) -> None:
    for n in (2**53 + 1, 2**53 + 2, MIN + 1):
        module = Offset(n)
        folder = tmp_path / str(n)
        torch_tpu.export(module, (ints("cpu"),), path=folder)
        same(module(ints("cpu")), torch_tpu.load(folder)(ints("tpu")), f"{n}")
