"""Triangular solves, the Cholesky factorization, the cross product."""

from __future__ import annotations

import pytest
import torch
from ops.harness import COMPLEX, FLOATS, INTS, Case, cases

DTYPES = (torch.float32, torch.float64, torch.complex64)


def triangular(make, *shape):
    """Far from singular."""
    x = make(*shape)
    return x.detach() + 5 * torch.eye(shape[-1], dtype=x.dtype)


def positive(make, *shape):
    x = make(*shape).detach()
    return x @ x.mH + torch.eye(shape[-1], dtype=x.dtype)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unitriangular", [False, True])
def test_solve_triangular(upper, left, unitriangular):
    options = {"upper": upper, "left": left, "unitriangular": unitriangular}
    rhs = (4, 2) if left else (2, 4)
    case = Case(
        "solve_triangular",
        torch.linalg.solve_triangular,
        lambda make: (triangular(make, 3, 4, 4) / 5, make(*rhs)),
        kwargs=options,
    )
    case.check(torch.float32)


@cases(
    *(
        case
        for upper in (False, True)
        for case in (
            Case(
                f"cholesky_{upper}",
                torch.linalg.cholesky,
                lambda make: (
                    positive(make, 2, 4, 4).requires_grad_(make.dtype.is_floating_point),
                ),
                dtypes=DTYPES,
                rtol=1e-4,
                atol=1e-4,
                kwargs={"upper": upper},
            ),
            Case(
                f"cholesky_solve_{upper}",
                torch.cholesky_solve,
                lambda make: (make(4, 3), triangular(make, 4, 4)),
                dtypes=DTYPES,
                rtol=1e-4,
                atol=1e-4,
                kwargs={"upper": upper},
            ),
            Case(
                f"cholesky_inverse_{upper}",
                torch.cholesky_inverse,
                lambda make: (torch.linalg.cholesky(positive(make, 2, 4, 4)),),
                dtypes=DTYPES,
                rtol=1e-4,
                atol=1e-4,
                kwargs={"upper": upper},
            ),
        )
    ),
    Case("cholesky_empty", torch.linalg.cholesky, lambda make: (make(2, 0, 0),)),
)
def test_cholesky(case, dtype):
    case.check(dtype)


@pytest.mark.parametrize("order", [1, 3])
def test_cholesky_names_the_failing_minor(order):
    x = torch.eye(4).repeat(2, 1, 1)
    x[1, order - 1, order - 1] = -2
    assert torch.linalg.cholesky_ex(x.to("tpu")).info.tolist() == [0, order]
    with pytest.raises(torch.linalg.LinAlgError, match=f"leading minor of order {order}"):
        torch.linalg.cholesky(x.to("tpu"))


@cases(
    Case(
        "cross",
        torch.linalg.cross,
        lambda make: (make(4, 1, 3), make(1, 5, 3)),
        dtypes=(*FLOATS, *INTS, *COMPLEX),
    ),
    Case("cross_dim", torch.cross, lambda make: (make(4, 3, 2), make(4, 3, 2), 1)),
)
def test_cross(case, dtype):
    case.check(dtype)
