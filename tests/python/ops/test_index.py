"""Reading by index: index, index_select, gather, take, and their error messages."""

from __future__ import annotations

import pytest
import torch
from ops.harness import Case, cases

MOVED = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


def at(*index):
    """x[index] with tensors in the index moved to where x is."""

    def get(x, *tensors):
        it = iter(tensors)
        return x[tuple(next(it) if i == "t" else i for i in index)]

    return get


@cases(
    Case("first", at("t"), lambda make: (make(4, 3), make.index(4, 5, low=-4)), dtypes=MOVED),
    Case("matrix_index", at("t"), lambda make: (make(4, 3), make.index(4, 2, 3))),
    Case("int32", at("t"), lambda make: (make(4, 3), make.index(4, 5).int())),
    Case("second", at(slice(None), "t"), lambda make: (make(4, 3), make.index(3, 5, low=-3))),
    Case("both", at("t", "t"), lambda make: (make(4, 3), make.index(4, 5), make.index(3, 5))),
    Case(
        "broadcast", at("t", "t"), lambda make: (make(4, 3), make.index(4, 5, 1), make.index(3, 2))
    ),
    Case(
        "adjacent",
        at(slice(None), "t", "t"),
        lambda make: (make(2, 4, 3, 2), make.index(4, 5), make.index(3, 5)),
    ),
    Case(
        "apart",
        at("t", slice(None), "t"),
        lambda make: (make(4, 2, 3, 2), make.index(4, 5), make.index(3, 5)),
    ),
    Case("with_slice", at(slice(1, 3), "t"), lambda make: (make(4, 3, 2), make.index(3, 2, 2))),
    Case("with_int", at(1, slice(None), "t"), lambda make: (make(4, 3, 2), make.index(2, 5))),
    Case("scalar_index", at("t"), lambda make: (make(4, 3), make.index(4))),
    Case("empty_index", at("t"), lambda make: (make(4, 3), make.index(4, 0))),
    Case("empty_self", at("t"), lambda make: (make(0, 3), make.index(1, 0))),
    Case("mask", at("t"), lambda make: (make(4, 3), make.mask(4, 3))),
    Case("row_mask", at("t"), lambda make: (make(4, 3), make.mask(4))),
    Case("mask_and_index", at(slice(None), "t"), lambda make: (make(4, 3), make.mask(3))),
    Case("byte_mask", at("t"), lambda make: (make(4, 3), make.mask(4).to(torch.uint8))),
)
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_index(case, dtype):
    case.check(dtype)


@cases(
    Case(
        "index_select",
        torch.index_select,
        lambda make: (make(4, 3, 2), 1, make.index(3, 5)),
        dtypes=MOVED,
    ),
    Case("index_select_0d", torch.index_select, lambda make: (make(), 0, make.index(1, 1))),
    Case("index_select_none", torch.index_select, lambda make: (make(4, 3), -1, make.index(3, 0))),
    Case("gather", torch.gather, lambda make: (make(4, 3), 1, make.index(3, 4, 5)), dtypes=MOVED),
    Case("gather_smaller", torch.gather, lambda make: (make(4, 3, 5), 1, make.index(3, 2, 7, 4))),
    Case("gather_first", torch.gather, lambda make: (make(4, 3), 0, make.index(4, 5, 2))),
    Case("gather_0d", torch.gather, lambda make: (make(), 0, make.index(1))),
    Case("gather_0d_1d", torch.gather, lambda make: (make(), 0, make.index(1, 3))),
    Case("gather_empty", torch.gather, lambda make: (make(4, 3), 0, make.index(4, 0, 2))),
    Case(
        "take", torch.take, lambda make: (make(4, 3), make.index(12, 2, 5, low=-12)), dtypes=MOVED
    ),
    Case("take_none", torch.take, lambda make: (make(0, 3), make.index(1, 0))),
    Case(
        "nonzero_static",
        torch.nonzero_static,
        lambda make: (make.mask(3, 4, 2),),
        kwargs={"size": 9},
    ),
    Case(
        "nonzero_static_more",
        torch.nonzero_static,
        lambda make: (make.mask(4),),
        kwargs={"size": 7, "fill_value": -5},
    ),
    Case(
        "nonzero_static_0d",
        torch.nonzero_static,
        lambda make: (make.mask(),),
        kwargs={"size": 2},
    ),
    Case(
        "take_along_dim",
        torch.take_along_dim,
        lambda make: (make(4, 3), make.index(3, 4, 2)),
        kwargs={"dim": 1},
    ),
)
def test_select(case, dtype):
    case.check(dtype)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, i: x[i], "index 7 is out of bounds for dimension 0 with size 3"),
        (lambda x, i: x[:, -i], "index -7 is out of bounds for dimension 0 with size 4"),
        (lambda x, i: x[i - i, i], "index 7 is out of bounds for dimension 1 with size 4"),
        (
            lambda x, i: x.gather(1, i.view(1, 1)),
            "index 7 is out of bounds for dimension 1 with size 4",
        ),
        (lambda x, i: x.index_select(0, i), "index out of range in self"),
        (
            lambda x, i: x.take(i * 10),
            "out of range: tried to access index 70 on a tensor of 12 elements",
        ),
        (lambda x, i: torch.nn.functional.embedding(i, x), "index out of range in self"),
        (
            lambda x, i: x.scatter(1, i.view(1, 1), 1.0),
            "index 7 is out of bounds for dimension 1 with size 4",
        ),
        (
            lambda x, i: x.index_put((i,), torch.ones(4, device=x.device)),
            "index 7 is out of bounds for dimension 0 with size 3",
        ),
        (
            lambda x, i: x.index_copy(0, i, x[:1]),
            r"index_copy_\(\): index 7 is out of bounds for dimension 0 with size 3",
        ),
    ],
)
def test_out_of_range(call, message):
    # The type of the error is the CPU's too: IndexError for some ops, RuntimeError for others.
    with pytest.raises((IndexError, RuntimeError)) as expected:
        call(torch.zeros(3, 4), torch.tensor([7]))
    x = torch.zeros(3, 4, device="tpu")
    i = torch.tensor([7], device="tpu")
    with pytest.raises(expected.type, match=message):
        call(x, i).cpu()
