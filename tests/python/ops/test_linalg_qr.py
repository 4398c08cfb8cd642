"""The QR factorization, products with its Q, and the matrix exponential."""

from __future__ import annotations

import pytest
import torch
from ops.harness import Case, cases

DTYPES = (torch.float32, torch.complex64)
DOUBLES = (torch.float64, torch.complex128)
ALL_DTYPES = (*DTYPES, *DOUBLES)
CLOSE = {"rtol": 2e-4, "atol": 2e-4}


@cases(
    Case("square", torch.linalg.qr, lambda make: (make(2, 4, 4),), DOUBLES, **CLOSE),
    Case("tall", torch.linalg.qr, lambda make: (make(5, 3),), DTYPES, **CLOSE),
    Case("wide", torch.linalg.qr, lambda make: (make(3, 5),), DTYPES, **CLOSE),
    Case("one", torch.linalg.qr, lambda make: (make(1, 1),), DTYPES, **CLOSE),
    Case("geqrf", torch.geqrf, lambda make: (make(2, 4, 3, grad=False),), DTYPES, **CLOSE),
    Case("empty", torch.linalg.qr, lambda make: (make(2, 0, 3),)),
    Case("no_matrix", torch.linalg.qr, lambda make: (make(0, 3, 2),)),
)
def test_qr(case, dtype):
    case.check(dtype)


@pytest.mark.parametrize("mode", ["complete", "r"])
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (3, 0)])
def test_qr_modes(mode, shape):
    Case(mode, lambda a: torch.linalg.qr(a, mode), lambda make: (make(*shape, grad=False),)).check(
        torch.float64
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_qr_of_dependent_columns(dtype):
    a = torch.ones(5, 3, dtype=dtype)
    q, r = torch.linalg.qr(a.to("tpu"))
    torch.testing.assert_close((q.mH @ q).cpu(), torch.eye(3, dtype=dtype))
    torch.testing.assert_close((q @ r).cpu(), a)


@cases(
    Case(
        "householder_product",
        torch.linalg.householder_product,
        lambda make: (make(2, 4, 3, low=-0.5, high=0.5), make(2, 2, low=0.5, high=1.0)),
        DTYPES,
        **CLOSE,
    ),
    Case(
        "orgqr", torch.orgqr, lambda make: torch.geqrf(make(4, 3, grad=False)), grad=False, **CLOSE
    ),
)
def test_householder_product(case, dtype):
    case.check(dtype)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_ormqr(left, transpose):
    other = (5, 2) if left else (2, 5)
    case = Case(
        "ormqr",
        torch.ormqr,
        lambda make: (*torch.geqrf(make(5, 3, grad=False)), make(*other, grad=False)),
        kwargs={"left": left, "transpose": transpose},
    )
    case.check(torch.complex128)


@cases(
    Case("exp", torch.linalg.matrix_exp, lambda make: (make(3, 3),), ALL_DTYPES, **CLOSE),
    Case(
        # Small ones need no squaring, large ones several; each matrix of a batch its own.
        "exp_scales",
        torch.linalg.matrix_exp,
        lambda make: (
            make(4, 3, 3, grad=False)
            * torch.tensor([1e-6, 0.1, 1, 5]).view(4, 1, 1).to(make.dtype),
        ),
        (torch.float64, torch.complex128),
        grad=False,
    ),
    Case("exp_empty", torch.linalg.matrix_exp, lambda make: (make(0, 3, 3),)),
    Case("exp_one", torch.matrix_exp, lambda make: (make(1, 1),)),
)
def test_matrix_exp(case, dtype):
    case.check(dtype)
