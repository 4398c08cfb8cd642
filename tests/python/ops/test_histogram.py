"""Counting values: histc, histogram, bincount; repeat_interleave and one_hot."""

from __future__ import annotations

from typing import Any

import torch
from ops.harness import FLOAT, FLOATS, INTS, Case, cases


def small(make: Any, *shape: int) -> torch.Tensor:
    return make.index(5, *shape).to(make.dtype)


@cases(
    Case("bincount", torch.bincount, lambda make: (small(make, 9),), INTS, grad=False),
    Case("bincount-long", torch.bincount, lambda make: (make.index(90, 9), None, 100), grad=False),
    Case("bincount-empty", torch.bincount, lambda make: (make.index(9, 0), None, 3), grad=False),
    Case(
        "bincount-weights",
        torch.bincount,
        lambda make: (make.index(20, 9), make(9)),
        (torch.float32, torch.float64, torch.float16, torch.int64),
        grad=False,
    ),
    Case(
        "repeat_interleave",
        torch.repeat_interleave,
        lambda make: (small(make, 7),),
        (torch.int64, torch.int32),
        grad=False,
    ),
    Case(
        "repeat_interleave-rows",
        torch.repeat_interleave,
        lambda make: (make(4, 3), torch.tensor([0, 2, 0, 3]), 0),
        FLOATS,
    ),
    Case(
        "repeat_interleave-sized",
        torch.repeat_interleave,
        lambda make: (make(4, 3), torch.tensor([0, 2, 0, 3]), 0, {"output_size": 5}),
    ),
    Case("repeat_interleave-none", torch.repeat_interleave, lambda make: (make.index(1, 3),)),
    Case(
        "one_hot-wide",
        torch.nn.functional.one_hot,
        lambda make: (make.index(6, 3, 2), 9),
        grad=False,
    ),
    Case("one_hot", torch.nn.functional.one_hot, lambda make: (make.index(6, 3, 2),), grad=False),
)
def test_sized_by_data(case: Case, dtype: torch.dtype) -> None:
    case.check(dtype)


@cases(
    Case("histc", torch.histc, lambda make: (make(30), 7), (torch.float32, torch.float64)),
    Case("histc-range", torch.histc, lambda make: (make(30), 5, -1, 2), FLOAT, grad=False),
    Case(
        "histogram",
        torch.histogram,
        lambda make: (make(5, 7), 6),
        (torch.float32, torch.float64),
        grad=False,
    ),
    Case(
        "histogram-range",
        torch.histogram,
        lambda make: (make(30), 6, {"range": (-1.0, 2.0), "weight": make(30), "density": True}),
        grad=False,
    ),
    Case(
        "histogram-edges",
        torch.histogram,
        lambda make: (make(30), torch.tensor([-2.0, -1.0, 0.5, 3.0])),
        grad=False,
    ),
    Case("histogram-same", torch.histogram, lambda make: (torch.ones(4), 3), grad=False),
    Case("histogram-empty", torch.histogram, lambda make: (torch.ones(0), 3), grad=False),
    Case(
        "histogramdd",
        torch.histogramdd,
        lambda make: (make(40, 2), [3, 4]),
        grad=False,
    ),
    Case(
        "histogramdd-all",
        torch.histogramdd,
        lambda make: (
            make(40, 2),
            [3, 4],
            {"range": [-1.0, 1.0, -2.0, 2.5], "weight": make(40), "density": True},
        ),
        grad=False,
    ),
    Case(
        "histogramdd-edges",
        torch.histogramdd,
        lambda make: (make(20, 2), [torch.tensor([-1.0, 0, 1]), torch.tensor([-2.0, 0, 2, 3])]),
        grad=False,
    ),
)
def test_histogram(case: Case, dtype: torch.dtype) -> None:
    case.check(dtype)
