"""Ops whose result sizes depend on the data, and masks as indices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.harness import ALL, ARITHMETIC, FLOATS, INTS, Case, cases

import torch_tpu

REAL = (*FLOATS, *INTS, torch.bool)


def few(make: Any, *shape: int) -> torch.Tensor:
    """Values that repeat."""
    if make.dtype == torch.bool:
        return make(*shape)
    return make(*shape, low=-2.0, high=2.0, grad=False).round().to(make.dtype)


def small(make: Any, *shape: int) -> torch.Tensor:
    return make.index(5, *shape).to(make.dtype)


@cases(
    Case("nonzero", torch.nonzero, lambda make: (small(make, 3, 4),), ALL, grad=False),
    Case("nonzero-1d", torch.nonzero, lambda make: (small(make, 7),), grad=False),
    Case("nonzero-0d", torch.nonzero, lambda make: (torch.tensor(2.0),), grad=False),
    Case("nonzero-none", torch.nonzero, lambda make: (torch.zeros(2, 3),), grad=False),
    Case("nonzero-empty", torch.nonzero, lambda make: (torch.zeros(0, 3),), grad=False),
    Case("nonzero-3d", torch.nonzero, lambda make: (make.mask(2, 3, 4).mT,), grad=False),
    Case(
        "nonzero-tuple",
        lambda x: torch.nonzero(x, as_tuple=True),
        lambda make: (make.mask(3, 4),),
        grad=False,
    ),
    Case("argwhere", torch.argwhere, lambda make: (make.mask(3, 4),), grad=False),
    Case("where", lambda x: torch.where(x), lambda make: (make.mask(3, 4),), grad=False),
    Case("count_nonzero", torch.count_nonzero, lambda make: (make.mask(3, 4),), grad=False),
    Case(
        "nonzero_static",
        lambda x: torch.nonzero_static(x, size=5, fill_value=-7),
        lambda make: (make.mask(3, 4),),
        grad=False,
    ),
)
def test_nonzero(case: Case, dtype: torch.dtype) -> None:
    case.check(dtype)


@cases(
    Case("masked_select", torch.masked_select, lambda make: (make(3, 4), make.mask(3, 4)), ALL),
    Case("masked_select-spread", torch.masked_select, lambda make: (make(4), make.mask(3, 1))),
    Case("masked_select-none", torch.masked_select, lambda make: (make(4), torch.zeros(4).bool())),
    Case("masked_select-empty", torch.masked_select, lambda make: (make(0), torch.zeros(0).bool())),
    Case(
        "masked_scatter",
        torch.masked_scatter,
        lambda make: (make(3, 4), make.mask(3, 4), make(12)),
        ARITHMETIC,
    ),
    Case("combinations", torch.combinations, lambda make: (make(5),), grad=True),
)
def test_masked(case: Case, dtype: torch.dtype) -> None:
    case.check(dtype)


@cases(
    Case("mask", lambda x, m: x[m], lambda make: (make(3, 4), make.mask(3, 4)), ALL),
    Case("mask-rows", lambda x, m: x[m], lambda make: (make(5, 2, 3), make.mask(5)), ARITHMETIC),
    Case("mask-2d", lambda x, m: x[m], lambda make: (make(3, 4, 2), make.mask(3, 4))),
    Case("mask-all", lambda x, m: x[m], lambda make: (make(3, 4), torch.ones(3, 4).bool())),
    Case("mask-none", lambda x, m: x[m], lambda make: (make(3, 4), torch.zeros(3).bool())),
    Case("mask-columns", lambda x, m: x[:, m], lambda make: (make(3, 4, 2), make.mask(4))),
    Case("mask-last", lambda x, m: x[..., m], lambda make: (make(3, 4), make.mask(4))),
    Case("mask-view", lambda x, m: x.mT[m], lambda make: (make(3, 4), make.mask(4))),
    Case("mask-view-2d", lambda x, m: x.mT[m], lambda make: (make(3, 4), make.mask(4, 3))),
    Case("mask-0d", lambda x, m: x[m], lambda make: (make(3), torch.tensor(True))),
    Case(
        "mask-index",
        lambda x, m, i: x[m, i],
        lambda make: (make(4, 5), torch.tensor([True, False, True, True]), make.index(5, 3)),
    ),
    Case(
        "mask-two",
        lambda x, m, n: x[m, :, n],
        lambda make: (
            make(3, 2, 4),
            torch.tensor([True, False, True]),
            torch.tensor([False, True, False, True]),
        ),
    ),
)
def test_index_by_mask(case: Case, dtype: torch.dtype) -> None:
    case.check(dtype)


def put(x: torch.Tensor, index: Any, value: torch.Tensor, accumulate: bool) -> torch.Tensor:
    return torch.ops.aten.index_put(x, list(index), value, accumulate)


MASK = torch.tensor([True, False, True, True])


@pytest.mark.parametrize("accumulate", [False, True])
@cases(
    Case("number", put, lambda make: (make(4, 2), (MASK,), make()), ARITHMETIC),
    Case("row", put, lambda make: (make(4, 2), (MASK,), make(2)), ARITHMETIC),
    Case("each", put, lambda make: (make(4, 2), (MASK,), make(3, 2)), ARITHMETIC),
    Case("each-one", put, lambda make: (make(4, 2), (MASK,), make(3, 1))),
    Case("one-row", put, lambda make: (make(4, 2), (MASK,), make(1, 2))),
    Case("columns", put, lambda make: (make(2, 4, 3), (None, MASK), make(2, 3, 3))),
    Case("columns-spread", put, lambda make: (make(2, 4, 3), (None, MASK), make(3, 1))),
    Case("matrix", put, lambda make: (make(4, 4), (MASK.outer(MASK),), make(9))),
    Case("index", put, lambda make: (make(4, 5), (MASK, make.index(5, 3)), make(3))),
    Case("nothing", put, lambda make: (make(4), (MASK & False,), make(0))),
)
def test_index_put_by_mask(case: Case, dtype: torch.dtype, accumulate: bool) -> None:
    case.kwargs["accumulate"] = accumulate
    case.check(dtype)


def test_setitem_by_mask() -> None:
    x, y = torch.arange(12.0).view(3, 4), torch.arange(12.0, device="tpu").view(3, 4)
    for t in (x, y):
        t[t > 5] = torch.arange(6.0, device=t.device)
        t[:, t[0] > 1] *= 2
        t[t < 3] = -1
    torch.testing.assert_close(y.cpu(), x)


def test_setitem_by_mask_of_another_size() -> None:
    def write(device: str) -> torch.Tensor:
        x = torch.zeros(3, 2, device=device)
        mask = torch.tensor([True, True, False], device=device)
        with pytest.raises(RuntimeError) as caught:
            x.index_put_((mask,), torch.ones(3, 2, device=device)).cpu()
        messages.append(str(caught.value).splitlines()[0])
        return x

    messages: list[str] = []
    torch.testing.assert_close(write("tpu").cpu(), write("cpu"))
    assert messages[0] == messages[1]


@cases(
    Case("unique", torch.unique, lambda make: (few(make, 3, 5),), REAL, grad=False),
    Case(
        "unique-all",
        torch.unique,
        lambda make: (few(make, 4, 5), {"return_inverse": True, "return_counts": True}),
        REAL,
        grad=False,
    ),
    Case(
        "unique-inverse",
        torch.unique,
        lambda make: (few(make, 9), {"return_inverse": True, "sorted": False}),
        grad=False,
    ),
    Case("unique-0d", torch.unique, lambda make: (torch.tensor(3.0),), grad=False),
    Case("unique-empty", torch.unique, lambda make: (torch.zeros(0, 2),), grad=False),
    Case(
        "unique-nan",
        torch.unique,
        lambda make: (
            torch.tensor([3.0, torch.nan, 0.0, torch.nan, -0.0, 3.0, -torch.inf]),
            {"return_inverse": True, "return_counts": True},
        ),
        grad=False,
    ),
    *(
        Case(
            f"unique-dim{dim}",
            torch.unique,
            lambda make, dim=dim: (
                (few(make, 4, 3, 5) > 0).to(make.dtype),
                {"dim": dim, "return_inverse": True, "return_counts": True},
            ),
            (torch.float32, torch.int64, torch.bool),
            grad=False,
        )
        for dim in range(3)
    ),
    Case(
        "unique-rows", torch.unique, lambda make: (few(make, 40, 2), {"dim": 0}), REAL, grad=False
    ),
    Case("unique-no-rows", torch.unique, lambda make: (few(make, 0, 2), {"dim": 0}), grad=False),
    Case(
        "consecutive",
        torch.unique_consecutive,
        lambda make: (few(make, 3, 7), {"return_inverse": True, "return_counts": True}),
        REAL,
        grad=False,
    ),
    Case("consecutive-plain", torch.unique_consecutive, lambda make: (few(make, 9),), grad=False),
    Case(
        "consecutive-dim",
        torch.unique_consecutive,
        lambda make: (
            torch.tensor([[1, 1, 2, 2, 1], [0, 0, 3, 3, 0]]),
            {"dim": 1, "return_inverse": True, "return_counts": True},
        ),
        grad=False,
    ),
)
def test_unique(case: Case, dtype: torch.dtype) -> None:
    case.check(dtype)


# --- layouts and counts ---------------------------------------------------------------------------

LAYOUTS = {
    "nonzero": lambda x: torch.nonzero(x > 0),
    "nonzero-none": lambda x: torch.nonzero(x > 9),
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "mask": lambda x: x[x[:, 0, 0] > 0],
    "mask-transposed": lambda x: x.mT[x[:, 0, 0] > 0],
    "mask-columns": lambda x: x[:, x[0, :, 0] > 0],
    "unique": lambda x: torch.unique(x),
    "unique-dim": lambda x: torch.unique(x, dim=1),
    "unique-last": lambda x: torch.unique(x, dim=2),
    "bincount": lambda x: torch.bincount((x > 0).flatten().long()),
    "repeat_interleave": lambda x: torch.repeat_interleave((x > 0).flatten().long()),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_is_that_of_the_cpu(name: str) -> None:
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    expected, actual = LAYOUTS[name](x), LAYOUTS[name](x.to("tpu"))
    assert (actual.shape, actual.stride()) == (expected.shape, expected.stride())
    assert actual.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
    assert actual.storage_offset() == 0
    torch.testing.assert_close(actual.cpu(), expected)
    torch.testing.assert_close(
        actual.untyped_storage().cpu().tolist(), expected.untyped_storage().tolist()
    )


def test_a_result_behaves_like_any_tensor(tmp_path: Any) -> None:
    x = torch.arange(10.0, device="tpu")
    y = x[x > 6]
    assert y.is_contiguous()
    assert y.clone().tolist() == [7, 8, 9]
    y += 1
    assert y.tolist() == [8, 9, 10]
    assert x.tolist() == list(range(10))
    y[0] = 0
    assert y.view(3, 1).tolist() == [[0], [9], [10]]
    torch.save(y, tmp_path / "y")
    assert torch.load(tmp_path / "y").tolist() == [0, 9, 10]
    y.resize_(5)
    assert y[:3].tolist() == [0, 9, 10]
    y.resize_(2).copy_(torch.ones(2))
    assert y.tolist() == [1, 1]
    assert y.as_strided((2, 2), (0, 1)).tolist() == [[1, 1], [1, 1]]
    assert torch.cat([x[x > 7], x[x < 1]]).tolist() == [8, 9, 0]


@pytest.mark.parametrize(
    "name", ["nonzero", "masked_select", "mask", "unique", "unique-dim", "repeat_interleave"]
)
def test_a_new_count_compiles_nothing(name: str) -> None:
    def of(count: int) -> torch.Tensor:
        x = torch.full((3, 4, 5), -1.0)
        x.view(-1)[: count * 20 : 20] = torch.arange(count).add(1.0)
        return x.to("tpu")

    LAYOUTS[name](of(1)).cpu()
    before = torch_tpu.stats()["misses"]
    for count in (0, 2, 3):
        LAYOUTS[name](of(count)).cpu()
    assert torch_tpu.stats()["misses"] == before


def test_padding_is_given_back() -> None:
    x = torch.zeros(1 << 18, device="tpu")
    x[5] = 1
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    hits = x.nonzero()
    assert hits.tolist() == [[5]]
    assert torch.tpu.memory_allocated() - before < 1 << 12


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch.masked_select(torch.ones(3, device=d), torch.ones(3, device=d)),
        lambda d: torch.masked_select(torch.ones(3, device=d), torch.ones(2, device=d).bool()),
        lambda d: torch.unique(torch.zeros(0, 3, device=d), dim=1),
        lambda d: torch.unique(torch.tensor([1j], device=d)),
        lambda d: torch.nonzero(torch.ones(3, device=d), out=torch.ones(1, device=d)),
        lambda d: torch.bincount(torch.tensor([1, -1], device=d)),
        lambda d: torch.bincount(torch.tensor([1.5], device=d)),
        lambda d: torch.bincount(torch.tensor([[1]], device=d)),
        lambda d: torch.bincount(torch.tensor([1], device=d), torch.ones(2, device=d)),
        lambda d: torch.bincount(torch.tensor([1], device=d), minlength=-1),
        lambda d: torch.repeat_interleave(torch.tensor([1, -1], device=d)),
        lambda d: torch.repeat_interleave(torch.tensor([[1]], device=d)),
        lambda d: torch.repeat_interleave(torch.tensor([1, 2], device=d), output_size=4).cpu(),
        lambda d: torch.ones(3, device=d)[torch.ones(2, device=d).bool()],
        lambda d: torch.nn.functional.one_hot(torch.tensor([1, -1], device=d)),
        lambda d: torch.nn.functional.one_hot(torch.tensor([1, 2], device=d), 2).cpu(),
        lambda d: torch.nn.functional.one_hot(torch.tensor([1, -2], device=d), 2).cpu(),
        lambda d: torch.nn.functional.one_hot(torch.ones(0, device=d).long()),
        lambda d: torch.histogram(torch.ones(3, device=d), 0),
        lambda d: torch.histogram(torch.ones(3, device=d), 3, weight=torch.ones(2, device=d)),
        lambda d: torch.segment_reduce(torch.ones(3, device=d), "sum").cpu(),
        lambda d: torch.segment_reduce(
            torch.ones(3, device=d), "some", lengths=torch.tensor([3], device=d)
        ),
        lambda d: torch.segment_reduce(
            torch.ones(3, device=d), "sum", lengths=torch.tensor([1, 1], device=d)
        ).cpu(),
    ],
)
def test_errors_are_those_of_the_cpu(call: Any) -> None:
    with pytest.raises((RuntimeError, IndexError)) as expected:
        call("cpu")
    with pytest.raises(type(expected.value)) as actual:
        call("tpu")
    assert str(actual.value).splitlines()[0] == str(expected.value).splitlines()[0]
