"""Eigenvalues of Hermitian matrices, singular values, and what is computed from them.

Vectors are only known up to a sign or phase, so most tests look at what does not depend on it.
"""

from __future__ import annotations

import pytest
import torch
from ops.harness import Case, cases

DTYPES = (torch.float32, torch.complex64)
DOUBLES = (torch.float64, torch.complex128)
CLOSE = {"rtol": 5e-4, "atol": 5e-4}


def hermitian(make, *shape):
    x = make(*shape, grad=False)
    return (x + x.mH).requires_grad_(make.grad)


def regular(make, *shape):
    x = make(*shape, grad=False)
    return (x + 8 * torch.eye(shape[-1])).requires_grad_(make.grad)


def eigh_squared(a):
    values, vectors = torch.linalg.eigh(a)
    return values, (vectors * values.exp().unsqueeze(-2)) @ vectors.mH


def svd_signless(a):
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    return s, (u * s.sqrt().unsqueeze(-2)) @ vh


@cases(
    Case("eigh", eigh_squared, lambda make: (hermitian(make, 4, 4),), DOUBLES, **CLOSE),
    Case("odd", eigh_squared, lambda make: (hermitian(make, 2, 3, 3),), DTYPES, **CLOSE),
    Case("one", torch.linalg.eigvalsh, lambda make: (hermitian(make, 1, 1),), DTYPES),
    Case("eigvalsh", torch.linalg.eigvalsh, lambda make: (hermitian(make, 2, 5, 5),), **CLOSE),
    Case(
        "upper",
        torch.linalg.eigvalsh,
        lambda make: (make(4, 4, grad=False), {"UPLO": "U"}),
        DTYPES,
        **CLOSE,
    ),
    Case("empty", torch.linalg.eigh, lambda make: (make(2, 0, 0),)),
    Case("no_matrix", torch.linalg.eigh, lambda make: (make(0, 3, 3),)),
)
def test_eigh(case, dtype):
    case.check(dtype)


@cases(
    Case("square", svd_signless, lambda make: (make(3, 3),), DOUBLES, **CLOSE),
    Case("tall", svd_signless, lambda make: (make(2, 5, 3),), DTYPES, **CLOSE),
    Case("wide", svd_signless, lambda make: (make(2, 3, 4),), DTYPES, **CLOSE),
    Case("svdvals", torch.linalg.svdvals, lambda make: (make(2, 4, 3),), DTYPES, **CLOSE),
    Case("empty", torch.linalg.svd, lambda make: (make(2, 0, 3),), grad=False),
    Case("reduced_empty", torch.linalg.svdvals, lambda make: (make(0, 3, 2),)),
    Case("pinv", torch.linalg.pinv, lambda make: (make(4, 3),), DTYPES, **CLOSE),
    Case(
        "pinv_hermitian",
        lambda a: torch.linalg.pinv(a, hermitian=True),
        lambda make: (hermitian(make, 3, 3),),
        **CLOSE,
    ),
    Case("cond", torch.linalg.cond, lambda make: (regular(make, 3, 3),), **CLOSE),
    Case("rank", torch.linalg.matrix_rank, lambda make: (make(2, 4, 3, grad=False),)),
    Case("nuclear", torch.linalg.matrix_norm, lambda make: (make(3, 4), "nuc"), **CLOSE),
    Case("spectral", torch.linalg.norm, lambda make: (make(3, 4), 2), **CLOSE),
)
def test_svd(case, dtype):
    case.check(dtype)


@pytest.mark.parametrize("driver", [None, "gels", "gelsd"])
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 4)])
def test_least_squares(driver, shape):
    case = Case(
        "lstsq",
        lambda a, b: torch.linalg.lstsq(a, b, driver=driver)[:3],
        lambda make: (make(*shape), make(*shape[:-1], 2)),
        **CLOSE,
    )
    case.check(torch.float32)


def test_least_squares_without_full_rank():
    """The solution of least norm, and no residuals."""
    a, b = torch.ones(2, 5, 3, dtype=torch.float64), torch.randn(2, 5, dtype=torch.float64)
    want = torch.linalg.lstsq(a, b, driver="gelsd")
    got = torch.linalg.lstsq(a.to("tpu"), b.to("tpu"), driver="gelsd")
    torch.testing.assert_close([x.cpu() for x in got], list(want))
    with pytest.raises(RuntimeError, match="should match other"):
        torch.linalg.lstsq(a.to("tpu"), torch.ones(2, 4, 1, dtype=a.dtype, device="tpu"))


# Repeated and vanishing values, columns that depend on others, and scales near the dtype's limits.
HARD = {
    "zeros": torch.zeros(4, 4),
    "ones": torch.ones(4, 4),
    "identity": torch.eye(4),
    "low_rank": torch.outer(torch.arange(4.0), torch.arange(1.0, 5.0)),
    "large": torch.arange(16.0).view(4, 4) * 1e36,
    "small": torch.arange(16.0).view(4, 4) * 1e-36,
    "graded": torch.ones(4, 4).triu() * torch.logspace(-6, 6, 4),
    "permutation": torch.eye(4).roll(1, 0),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HARD)
def test_hard_matrices(name, dtype):
    a = HARD[name].to(dtype)
    scale = a.abs().max().item() or 1.0
    u, s, vh = (x.cpu() for x in torch.linalg.svd(a.to("tpu")))
    for q in (u, vh):
        one = torch.eye(q.shape[-1], dtype=dtype)
        torch.testing.assert_close(q.mH @ q, one, rtol=0, atol=5e-6)
    assert (s.diff() <= 0).all()
    middle = torch.zeros(a.shape, dtype=dtype)
    middle.diagonal().copy_(s / scale)
    torch.testing.assert_close(u @ middle @ vh, a / scale, rtol=0, atol=5e-6)
    h = (a.mH / scale) @ (a / scale)
    values, vectors = (x.cpu() for x in torch.linalg.eigh(h.to("tpu")))
    assert (values.diff() >= 0).all()
    torch.testing.assert_close((vectors * values) @ vectors.mH, h, rtol=0, atol=5e-5)


# The CPU's eigh raises only sometimes, by what LAPACK makes of the NaN; ours always does.
def test_nans_raise_in_eigh():
    a = torch.eye(3).index_put((torch.tensor([1]), torch.tensor([1])), torch.tensor(float("nan")))
    with pytest.raises(torch.linalg.LinAlgError, match="failed to converge"):
        torch.linalg.eigh(a.to("tpu"))


@pytest.mark.parametrize("fn", [torch.linalg.svd, torch.linalg.svdvals])
def test_nans_raise_as_on_the_cpu(fn):
    batch = torch.rand(3, 3, 3, generator=torch.Generator().manual_seed(0))
    batch[1, 1, 1] = float("nan")
    for a in (batch, batch[1]):
        with pytest.raises(torch.linalg.LinAlgError) as on_cpu:
            fn(a)
        with pytest.raises(torch.linalg.LinAlgError) as on_device:
            fn(a.to("tpu"))
        assert str(on_device.value) == str(on_cpu.value)
