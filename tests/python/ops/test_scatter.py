"""Writing by index: scatter, index_put, index_add and the like, and views written out of place."""

from __future__ import annotations

import pytest
import torch
from ops.harness import FLOATS, Case, cases

MOVED = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
SUMS = (*FLOATS, torch.int64, torch.complex64)


@cases(
    Case(
        "scatter",
        torch.scatter,
        lambda make: (make(4, 3), 0, make.index(4, 1, 3), make(1, 3)),
        dtypes=MOVED,
    ),
    Case(
        "scatter_smaller",
        torch.scatter,
        lambda make: (
            make(4, 5, 3),
            1,
            make.permutation(5)[:2].view(1, 2, 1),
            make(2, 3, 4, grad=False),
        ),
    ),
    Case("scatter_value", torch.scatter, lambda make: (make(4, 3), 1, make.index(3, 4, 2), 2.5)),
    Case(
        "scatter_int_value",
        torch.scatter,
        lambda make: (make(4, 3), 1, make.index(3, 4, 2), 2),
        dtypes=(torch.int64, torch.bool),
    ),
    Case("scatter_0d", torch.scatter, lambda make: (make(), 0, make.index(1), make())),
    Case(
        "scatter_none", torch.scatter, lambda make: (make(4, 3), 0, make.index(4, 0, 3), make(1, 3))
    ),
    *(
        Case(
            f"scatter_{how}",
            torch.scatter,
            lambda make: (make(4, 3), 1, make.index(3, 4, 5), make(4, 5, grad=False)),
            kwargs={"reduce": how},
            grad=False,
        )
        for how in ("add", "multiply")
    ),
    Case(
        "scatter_value_add",
        torch.scatter,
        lambda make: (make(4, 3), 1, make.index(3, 4, 5), 2.5),
        kwargs={"reduce": "add"},
        grad=False,
    ),
    Case(
        "scatter_add",
        torch.scatter_add,
        lambda make: (make(4, 3), 1, make.index(3, 4, 5), make(4, 5)),
        dtypes=SUMS,
    ),
    Case(
        "scatter_add_smaller",
        torch.scatter_add,
        lambda make: (make(4, 3), 0, make.index(4, 5, 2), make(6, 3, grad=False)),
    ),
    *(
        Case(
            f"scatter_reduce_{how}_{include}",
            torch.scatter_reduce,
            lambda make: (make(4, 3), 1, make.index(3, 4, 5), make(4, 5)),
            kwargs={"reduce": how, "include_self": include},
            dtypes=(torch.float32, torch.bfloat16, torch.int64),
        )
        for how in ("sum", "prod", "mean", "amax", "amin")
        for include in (True, False)
    ),
)
@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
def test_scatter(case, dtype):
    case.check(dtype)


@cases(
    Case(
        "index_add",
        torch.index_add,
        lambda make: (make(4, 3), 1, make.index(3, 5), make(4, 5)),
        dtypes=SUMS,
    ),
    Case(
        "index_add_alpha",
        torch.index_add,
        lambda make: (make(4, 3), 0, make.index(4, 2), make(2, 3)),
        kwargs={"alpha": 2.5},
    ),
    Case("index_add_0d", torch.index_add, lambda make: (make(), 0, make.index(1), make())),
    Case(
        "index_copy",
        torch.index_copy,
        lambda make: (make(4, 3), 0, make.permutation(4)[:2], make(2, 3)),
        dtypes=MOVED,
    ),
    Case(
        "index_fill",
        torch.index_fill,
        lambda make: (make(4, 3), 1, make.index(3, 2, low=-3), 2),
        dtypes=MOVED,
    ),
    Case(
        "index_fill_tensor",
        torch.index_fill,
        lambda make: (make(4, 3), 1, make.index(3, 2), make(grad=False)),
    ),
    *(
        Case(
            f"index_reduce_{how}_{include}",
            torch.index_reduce,
            lambda make: (make(4, 3), 0, make.index(4, 5), make(5, 3)),
            kwargs={"reduce": how, "include_self": include},
        )
        for how in ("prod", "mean", "amax", "amin")
        for include in (True, False)
    ),
    Case("put", torch.Tensor.put, lambda make: (make(4, 3), make.permutation(12)[:5], make(5))),
    Case(
        "put_accumulate",
        torch.Tensor.put,
        lambda make: (make(4, 3), make.index(12, 2, 5, low=-12), make(10), True),
    ),
)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_rows(case, dtype):
    case.check(dtype)


def index_put(self, values, *indices, accumulate=False):
    return self.index_put(indices, values, accumulate)


def put_at_second(self, values, index):
    self = self.clone()
    self[:, index] = values
    return self


@cases(
    Case(
        "rows",
        index_put,
        lambda make: (make(4, 3), make(2, 3), make.permutation(4)[:2]),
        dtypes=MOVED,
    ),
    Case("scalar", index_put, lambda make: (make(4, 3), make(), make.index(4, 5))),
    Case(
        "points",
        index_put,
        lambda make: (make(4, 3), make(5), make.index(4, 5, low=-4), make.index(3, 5, low=-3)),
        kwargs={"accumulate": True},
        dtypes=SUMS,
    ),
    Case(
        "broadcast",
        index_put,
        lambda make: (make(4, 3, 2), make(2), make.index(4, 5, 1), make.index(3, 2)),
        kwargs={"accumulate": True},
    ),
    Case("none", index_put, lambda make: (make(4, 3), make(0, 3), make.index(4, 0))),
    Case("mask", index_put, lambda make: (make(4, 3), make(), make.mask(4, 3)), dtypes=MOVED),
    Case(
        "mask_accumulate",
        index_put,
        lambda make: (make(4, 3), make(), make.mask(4, 3)),
        kwargs={"accumulate": True},
    ),
    Case("row_mask", index_put, lambda make: (make(4, 3), make(3), make.mask(4))),
    Case("row_mask_1", index_put, lambda make: (make(4, 3), make(1, 3), make.mask(4))),
    Case(
        "mask_values",
        index_put,
        lambda make: (
            make(2, 3),
            make(4),
            torch.tensor([[True, False, True], [True, True, False]]),
        ),
    ),
    Case("second", put_at_second, lambda make: (make(4, 3), make(4, 2), make.permutation(3)[:2])),
    Case("second_mask", put_at_second, lambda make: (make(4, 3), make(4, 1), make.mask(3))),
)
def test_index_put(case, dtype):
    case.check(dtype)


def test_setitem_with_numbers():
    for device in ("cpu", "tpu"):
        x = torch.arange(12.0, device=device).reshape(3, 4)
        x[x > 5] = -1.0
        x[torch.tensor([0, 2], device=device), 1] = 9
        x[:, torch.tensor([True, False, False, True], device=device)] += 0.5
        if device == "cpu":
            expected = x
    torch.testing.assert_close(x.cpu(), expected)


@cases(
    Case(
        "masked_scatter",
        torch.masked_scatter,
        lambda make: (make(4, 3), make.mask(4, 3), make(13)),
        dtypes=MOVED,
    ),
    Case(
        "masked_scatter_broadcast",
        torch.masked_scatter,
        lambda make: (make(4, 3), make.mask(3), make(4, 3)),
    ),
    Case("select_scatter", torch.select_scatter, lambda make: (make(4, 3), make(4), 1, -1)),
    Case("slice_scatter", torch.slice_scatter, lambda make: (make(4, 7), make(4, 2), 1, 1, 5, 2)),
    Case("slice_scatter_all", torch.slice_scatter, lambda make: (make(4, 7), make(4, 7), -1)),
    Case(
        "diagonal_scatter",
        torch.diagonal_scatter,
        lambda make: (make(4, 5, 3), make(5, 3), 0, 0, 2),
    ),
    Case(
        "diagonal_scatter_below",
        torch.diagonal_scatter,
        lambda make: (make(4, 5), make(3), -1),
        dtypes=MOVED,
    ),
    Case("diag_embed", torch.diag_embed, lambda make: (make(2, 3), 1), dtypes=MOVED),
    Case("diag_embed_dims", torch.diag_embed, lambda make: (make(2, 3), -1, 2, 0)),
    Case("select", torch.select, lambda make: (make(4, 3, 2), 1, -1)),
    Case("slice", lambda x: x[:, 1:6:2], lambda make: (make(4, 7),)),
    Case("slice_past_end", lambda x: x[2:9], lambda make: (make(4, 7),)),
    Case("diagonal", torch.diagonal, lambda make: (make(4, 3, 2), -2, 0, 1)),
    Case("diagonal_outside", torch.diagonal, lambda make: (make(4, 3), 5)),
    Case(
        "as_strided_scatter",
        torch.as_strided_scatter,
        lambda make: (make(12), make(3, 2), (3, 2), (4, 1), 1),
    ),
)
def test_views(case, dtype):
    case.check(dtype)


def test_masked_scatter_needs_enough_elements():
    x = torch.zeros(3, device="tpu")
    with pytest.raises(RuntimeError, match="Number of elements of source < number of ones in mask"):
        x.masked_scatter(x == 0, x[:2]).cpu()
