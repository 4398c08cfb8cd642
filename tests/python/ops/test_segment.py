"""Runs of rows: segment_reduce; and the CTC loss, whose sequences have lengths too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.harness import Case, cases

import torch_tpu


def segment_reduce(data: torch.Tensor, reduce: str, **kwargs: Any) -> torch.Tensor:
    return torch.segment_reduce(data, reduce, **kwargs)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@cases(
    Case(
        "lengths",
        segment_reduce,
        lambda make: (make(7, 2), {"lengths": torch.tensor([2, 0, 3, 1, 1])}),
        (torch.float32, torch.float64),
    ),
    Case(
        "offsets",
        segment_reduce,
        lambda make: (make(6), {"offsets": torch.tensor([0, 2, 2, 6])}),
    ),
    Case(
        "initial",
        segment_reduce,
        lambda make: (make(6, 2), {"lengths": torch.tensor([4, 0, 2]), "initial": 2.0}),
    ),
    Case(
        "axis",
        segment_reduce,
        lambda make: (make(2, 5, 3), {"lengths": torch.tensor([[2, 3, 0], [0, 1, 4]]), "axis": 1}),
    ),
    Case(
        "unsafe",
        segment_reduce,
        lambda make: (make(6), {"lengths": torch.tensor([2, 1]), "unsafe": True}),
    ),
    Case(
        "zeros",
        segment_reduce,
        lambda make: (
            make(6).mul(torch.tensor([1, 0, 1, 0, 0, 1.0])),
            {"lengths": torch.tensor([3, 3])},
        ),
    ),
)
def test_segment_reduce(case: Case, dtype: torch.dtype, reduce: str) -> None:
    inputs = case.inputs
    Case(case.name, case.fn, lambda make: (inputs(make)[0], reduce, inputs(make)[1])).check(dtype)


def ctc(log_probs: torch.Tensor, targets: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.nn.functional.ctc_loss(log_probs.log_softmax(-1), targets, *args, **kwargs)


@cases(
    Case(
        "matrix",
        ctc,
        lambda make: (
            make(9, 3, 5),
            torch.tensor([[1, 2, 2], [3, 1, 1], [4, 0, 0]]),
            [9, 7, 3],
            [3, 2, 1],
        ),
        (torch.float32, torch.float64),
    ),
    Case(
        "joined",
        ctc,
        lambda make: (
            make(8, 3, 4),
            torch.tensor([1, 2, 1, 3]),
            [8, 8, 5],
            [2, 0, 2],
            {"reduction": "sum"},
        ),
    ),
    Case(
        "impossible",
        ctc,
        lambda make: (
            make(3, 2, 4),
            torch.tensor([[1, 1, 1], [1, 2, 3]]),
            [3, 3],
            [3, 3],
            {"reduction": "none", "zero_infinity": True},
        ),
    ),
    Case(
        "infinite",
        ctc,
        lambda make: (
            make(3, 2, 4),
            torch.tensor([[1, 1, 1], [1, 2, 3]]),
            [3, 3],
            [3, 3],
            {"reduction": "none", "blank": 0},
        ),
    ),
)
def test_ctc_loss(case: Case, dtype: torch.dtype) -> None:
    case.check(dtype)


def test_ctc_lengths_are_no_part_of_the_program() -> None:
    x = torch.randn(8, 2, 5, device="tpu").log_softmax(-1)
    targets = torch.tensor([[1, 2, 3], [2, 2, 1]], device="tpu")
    torch.nn.functional.ctc_loss(x, targets, [8, 8], [3, 3])
    before = torch_tpu.stats()["misses"]
    torch.nn.functional.ctc_loss(x, targets, [7, 8], [3, 1])
    assert torch_tpu.stats()["misses"] == before
