"""Softmax, log-softmax and the masked form, with gradients."""

from __future__ import annotations

import math

import pytest
import torch
from ops.harness import FLOATS, Case, cases


@cases(
    *(
        case
        for fn in (torch.softmax, torch.log_softmax)
        for case in (
            Case(fn.__name__, fn, lambda make: (make(3, 4, 5), 1), dtypes=FLOATS),
            Case(f"{fn.__name__}_last", fn, lambda make: (make(3, 5), -1)),
            Case(f"{fn.__name__}_0d", fn, lambda make: (make(), 0)),
            Case(f"{fn.__name__}_empty", fn, lambda make: (make(0, 3), 1)),
            Case(
                f"{fn.__name__}_dtype",
                fn,
                lambda make: (make(3, 5), 1),
                dtypes=(torch.bfloat16,),
                kwargs={"dtype": torch.float32},
            ),
        )
    ),
)
def test_softmax(case, dtype):
    case.check(dtype)


def test_a_row_of_minus_infinity_is_nan():
    x = torch.tensor([[-math.inf, -math.inf], [0.0, -math.inf]])
    assert torch.softmax(x.to("tpu"), 1)[0].isnan().all()
    torch.testing.assert_close(torch.softmax(x.to("tpu"), 1)[1].cpu(), torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize(("mask_type", "shape"), [(0, (4, 4)), (1, (2, 4)), (2, (2, 3, 4, 4))])
def test_masked_softmax(mask_type, shape):
    case = Case(
        "_masked_softmax",
        lambda x, mask: torch._masked_softmax(x, mask, 3, mask_type),
        lambda make: (make(2, 3, 4, 4), make.mask(*shape)),
        grad=mask_type == 2,
    )
    case.check(torch.float32)
