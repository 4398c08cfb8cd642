"""The LU factorization and what is computed from it: solutions, inverse, determinant."""

from __future__ import annotations

import pytest
import torch
from ops.harness import Case, cases

DTYPES = (torch.float32, torch.complex64)
DOUBLES = (torch.float64, torch.complex128)
ALL_DTYPES = (*DTYPES, *DOUBLES)
CLOSE = {"rtol": 2e-4, "atol": 2e-4}


def regular(make, *shape):
    """Far from singular, and pivoting still has something to do."""
    x = make(*shape, grad=False)
    return (x + 4 * torch.eye(shape[-1], dtype=x.dtype).roll(1, -2)).requires_grad_(make.grad)


@cases(
    Case("square", torch.linalg.lu, lambda make: (make(3, 3),), DOUBLES, **CLOSE),
    Case("tall", torch.linalg.lu, lambda make: (make(2, 5, 3),), DTYPES, **CLOSE),
    Case("wide", torch.linalg.lu, lambda make: (make(2, 3, 5),), DTYPES, **CLOSE),
    Case("factor", torch.linalg.lu_factor, lambda make: (make(2, 4, 4),), DTYPES, **CLOSE),
    Case("factor_ex", torch.linalg.lu_factor_ex, lambda make: (make(2, 4, 4),), **CLOSE),
    Case("empty", torch.linalg.lu, lambda make: (make(2, 0, 3),)),
    Case("no_matrix", torch.linalg.lu_factor, lambda make: (make(0, 3, 3),)),
    # More than one panel.
    Case("panels", torch.linalg.lu_factor, lambda make: (make(140, 150),), grad=False, **CLOSE),
)
def test_lu(case, dtype):
    case.check(dtype)


@cases(
    Case("solve", torch.linalg.solve, lambda make: (regular(make, 4, 4), make(4, 2)), ALL_DTYPES),
    Case("vector", torch.linalg.solve, lambda make: (regular(make, 4, 4), make(4))),
    Case("vectors", torch.linalg.solve, lambda make: (regular(make, 2, 4, 4), make(2, 4))),
    Case("batch", torch.linalg.solve, lambda make: (regular(make, 2, 4, 4), make(3, 1, 4, 2))),
    Case(
        "right",
        torch.linalg.solve,
        lambda make: (regular(make, 4, 4), make(2, 4)),
        DTYPES,
        kwargs={"left": False},
    ),
    Case("transposed", torch.linalg.solve, lambda make: (regular(make, 4, 4).mT, make(4, 2))),
    Case("inv", torch.linalg.inv, lambda make: (regular(make, 2, 4, 4),), ALL_DTYPES),
    Case("inverse", torch.inverse, lambda make: (regular(make, 4, 4),)),
    Case("power", torch.linalg.matrix_power, lambda make: (regular(make, 3, 3), -2)),
    Case("det", torch.linalg.det, lambda make: (regular(make, 3, 3),), ALL_DTYPES, **CLOSE),
    Case("det_transposed", torch.linalg.det, lambda make: (regular(make, 3, 3).mT,), **CLOSE),
    Case("slogdet", torch.linalg.slogdet, lambda make: (regular(make, 2, 4, 4),), DTYPES),
    Case("det_empty", torch.linalg.det, lambda make: (make(2, 0, 0),)),
    Case("solve_empty", torch.linalg.solve, lambda make: (make(0, 0), make(0, 2))),
)
def test_solve(case, dtype):
    case.check(dtype)


def test_solve_in_panels():
    a, b = torch.randn(140, 140, dtype=torch.float64), torch.randn(140, 2, dtype=torch.float64)
    x = torch.linalg.solve(a.to("tpu"), b.to("tpu"))
    torch.testing.assert_close(x.cpu(), torch.linalg.solve(a, b))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_lu_solve(left, adjoint):
    def solved(a, b):
        return torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, left=left, adjoint=adjoint)

    rhs = (4, 2) if left else (2, 4)
    Case("lu_solve", solved, lambda make: (regular(make, 3, 4, 4), make(*rhs))).check(
        torch.complex64
    )


def test_lu_unpack():
    lu, pivots = torch.linalg.lu_factor(torch.randn(2, 4, 3))
    for options in ({}, {"unpack_data": False}, {"unpack_pivots": False}):
        want = torch.lu_unpack(lu, pivots, **options)
        got = torch.lu_unpack(lu.to("tpu"), pivots.to("tpu"), **options)
        for x, y in zip(got, want, strict=True):
            assert torch.equal(x.cpu(), y)
    with pytest.raises(RuntimeError, match="pivots passed to lu_unpack must be between 1 and"):
        torch.lu_unpack(lu.to("tpu"), torch.full((2, 3), 9).int().to("tpu"))[0].cpu()


def test_without_pivoting():
    """The CPU has no such kernel."""
    a = torch.randn(5, 5, dtype=torch.float64) + 5 * torch.eye(5)
    p, lower, upper = torch.linalg.lu(a.to("tpu"), pivot=False)
    assert p.numel() == 0
    torch.testing.assert_close((lower @ upper).cpu(), a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_determinant_of_singular_matrices(dtype):
    a = torch.ones(2, 3, 3, dtype=dtype)
    assert torch.linalg.det(a.to("tpu")).tolist() == [0, 0]
    sign, logabsdet = torch.linalg.slogdet(a.to("tpu"))
    assert sign.tolist() == [0, 0]
    assert logabsdet.tolist() == [float("-inf")] * 2


@pytest.mark.parametrize(
    "fn",
    [
        torch.linalg.inv,
        torch.linalg.lu_factor,
        lambda a: torch.linalg.inv_ex(a, check_errors=True),
        lambda a: torch.linalg.solve(a, a),
        lambda a: torch.linalg.solve_ex(a, a, check_errors=True),
        lambda a: torch.linalg.lu_factor_ex(a, check_errors=True),
        lambda a: torch.linalg.cholesky_ex(a - torch.eye(3).to(a), check_errors=True),
    ],
    ids=["inv", "lu_factor", "inv_ex", "solve", "solve_ex", "lu_factor_ex", "cholesky_ex"],
)
def test_singular_matrices_raise_as_on_the_cpu(fn):
    singular = torch.eye(3).repeat(4, 1, 1)
    singular[2, 1, 1] = singular[3, 0, 0] = 0
    for a in (singular, singular[2]):
        with pytest.raises(RuntimeError) as on_cpu:
            fn(a)
        with pytest.raises(type(on_cpu.value)) as on_device:
            fn(a.to("tpu"))
        assert str(on_device.value) == str(on_cpu.value)


def test_info():
    a = torch.eye(3).repeat(2, 1, 1)
    a[1, 1, 1] = 0
    assert torch.linalg.inv_ex(a.to("tpu")).info.tolist() == [0, 2]
    assert torch.linalg.lu_factor_ex(a.to("tpu")).info.tolist() == [0, 2]
