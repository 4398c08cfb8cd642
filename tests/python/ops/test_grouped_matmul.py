"""Grouped products: every form against CPU, group sizes as data, errors of bad arguments."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from ops.harness import Case, Make, cases
from torch import Tensor

import torch_tpu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def ends(*sizes: int) -> Tensor:
    """The offsets of groups of these sizes."""
    return torch.tensor(sizes).cumsum(0).int()


def grouped(a: Tensor, b: Tensor, offs: Tensor | None = None) -> Tensor:
    return F.grouped_mm(a, b, offs=offs)


def transposed(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    return F.grouped_mm(a, b.transpose(-2, -1), offs=offs)


def by_row(*sizes: int) -> tuple[Case, ...]:
    """[rows, K] x [groups, K, N] and the weights as a linear layer holds them."""
    rows, groups = sum(sizes), len(sizes)
    name = "-".join(map(str, sizes))

    def plain(make: Make) -> tuple[Tensor, ...]:
        return make(rows, 8), make(groups, 8, 16), ends(*sizes)

    def linear(make: Make) -> tuple[Tensor, ...]:
        return make(rows, 8), make(groups, 16, 8), ends(*sizes)

    return (
        Case(f"rows-{name}", grouped, plain, DTYPES if groups == 4 else DTYPES[:1]),
        Case(f"linear-{name}", transposed, linear),
    )


@cases(
    *by_row(3, 5, 7, 1),
    *by_row(0, 5, 0, 0, 11, 0),
    *by_row(16),
    # More rows than a tile, so groups begin and end anywhere in one.
    Case("tiles", grouped, lambda make: (make(205, 8), make(3, 8, 4), ends(70, 130, 5))),
    Case("tiles-tail", grouped, lambda make: (make(99, 8), make(2, 8, 4), ends(98, 1))),
    Case("inner", grouped, lambda make: (make(8, 16), make(16, 24), ends(3, 0, 12, 1)), DTYPES),
    Case("inner-tiles", grouped, lambda make: (make(4, 200), make(200, 8), ends(70, 129, 1))),
    Case("columns", grouped, lambda make: (make(3, 8, 16), make(16, 24), ends(9, 0, 15)), DTYPES),
    Case("batches", grouped, lambda make: (make(3, 8, 16), make(3, 16, 24)), DTYPES),
)
def test_grouped_mm(case: Case, dtype: torch.dtype) -> None:
    case.check(dtype)


def test_group_sizes_compile_nothing() -> None:
    a = torch.randn(64, 8)
    weights = torch.randn(4, 8, 16)
    x, w = a.to("tpu").requires_grad_(), weights.to("tpu").requires_grad_()

    def step(offsets: Tensor) -> Tensor:
        out = F.grouped_mm(x, w, offs=offsets.to("tpu"))
        torch.autograd.grad(out.sum(), (x, w))
        return out.detach().cpu()

    step(ends(16, 16, 16, 16))
    before = torch_tpu.stats()["misses"]
    for sizes in ((1, 2, 3, 58), (0, 64, 0, 0), (30, 0, 0, 34), (63, 1, 0, 0)):
        torch.testing.assert_close(step(ends(*sizes)), F.grouped_mm(a, weights, offs=ends(*sizes)))
    assert torch_tpu.stats()["misses"] == before


def test_rows_of_no_group_are_zero() -> None:
    a, b = torch.randn(20, 8), torch.randn(2, 8, 4)
    a[15:] = torch.nan
    offsets = ends(9, 6)
    actual = F.grouped_mm(a.to("tpu"), b.to("tpu"), offs=offsets.to("tpu")).cpu()
    torch.testing.assert_close(actual[:15], F.grouped_mm(a, b, offs=offsets)[:15])
    assert actual[15:].eq(0).all()


def test_infinities_stay_in_their_group() -> None:
    a, b = torch.randn(4, 12), torch.randn(12, 8)
    a[:, 5:7] = torch.inf
    b[9, 3] = torch.nan
    offsets = ends(5, 3, 4)
    actual = F.grouped_mm(a.to("tpu"), b.to("tpu"), offs=offsets.to("tpu")).cpu()
    torch.testing.assert_close(actual, F.grouped_mm(a, b, offs=offsets), equal_nan=True)


def test_widths_that_a_gpu_would_refuse() -> None:
    a, b = torch.randn(7, 5), torch.randn(2, 5, 3)
    actual = F.grouped_mm(a.to("tpu"), b.to("tpu"), offs=ends(3, 4).to("tpu")).cpu()
    torch.testing.assert_close(actual, torch.cat([a[:3] @ b[0], a[3:] @ b[1]]))


@pytest.mark.parametrize("offsets", [[9, -1, 20], [5, 3, 16], [0, 0, 0], [50, 60, 70]])
def test_bad_offsets_come_to_an_end(offsets: list[int]) -> None:
    offs = torch.tensor(offsets, dtype=torch.int32, device="tpu")
    a, b = torch.ones(16, 8, device="tpu"), torch.ones(3, 8, 4, device="tpu")
    assert F.grouped_mm(a, b, offs=offs).cpu().isfinite().all()
    assert F.grouped_mm(a.t(), a, offs=offs).cpu().isfinite().all()


@pytest.mark.parametrize(
    ("a", "b", "offs"),
    [
        (torch.ones(16, 8), torch.ones(2, 4, 4), ends(8, 8)),
        (torch.ones(16, 8), torch.ones(3, 8, 4), ends(8, 8)),
        (torch.ones(16, 8), torch.ones(2, 8, 4), None),
        (torch.ones(2, 16, 8), torch.ones(2, 8, 4), ends(8, 8)),
        (torch.ones(2, 16, 8), torch.ones(4, 8, 4), None),
        (torch.ones(16, 8), torch.ones(2, 8, 4), ends(8, 8).long()),
        (torch.ones(16, 8), torch.ones(2, 8, 4), ends(8, 8)[None]),
        (torch.ones(16, 8).double(), torch.ones(2, 8, 4).double(), ends(8, 8)),
        (torch.ones(16, 8).bfloat16(), torch.ones(2, 8, 4), ends(8, 8)),
        (torch.ones(8), torch.ones(2, 8, 4), ends(8, 8)),
    ],
)
def test_errors(a: Tensor, b: Tensor, offs: Tensor | None) -> None:
    with pytest.raises(RuntimeError) as expected:
        F.grouped_mm(a, b, offs=offs)
    with pytest.raises(RuntimeError) as actual:
        F.grouped_mm(a.to("tpu"), b.to("tpu"), offs=None if offs is None else offs.to("tpu"))
    assert str(actual.value) == str(expected.value)
