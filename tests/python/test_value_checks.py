"""A value that came of an index out of range raises IndexError whenever it is read, and so does all
that was computed from it; nothing else does, in no thread. A tensor written in place from such a
value keeps its old contents, as on the CPU, where the op raises before it writes.

The error may come from the op itself (where its flag is ready at once, as XLA:CPU's often is) or
from the read, but it never stays away."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from bad_values import (
    EITHER,
    READS,
    SETTINGS,
    TABLE,
    applied,
    assert_raises,
    made,
    on_device,
    table,
)
from threads import in_threads
from torch import Tensor


@pytest.fixture(params=SETTINGS, autouse=True)
def _setting(request: pytest.FixtureRequest) -> Iterator[None]:
    with applied(request.param):
        yield


@pytest.mark.parametrize("read", READS)
def test_each_read_of_each_bad_value_raises(read: str) -> None:
    t = table()
    other = t * 3
    x = made(lambda: t[on_device(7)], "index 7 is out of bounds")
    y = made(lambda: t[on_device(9)], "index 9 is out of bounds")
    for _ in range(2):
        assert_raises(x, "index 7 is out of bounds", read)
        assert_raises(y, "index 9 is out of bounds", read)
        assert t.tolist() == TABLE
        assert other.tolist() == [3.0, 6.0, 12.0, 24.0]
    assert t[on_device(3)].tolist() == [8.0]


def test_good_values_are_read_while_a_bad_one_waits() -> None:
    t = table()
    before = t + 1
    x = made(lambda: t[on_device(7)])
    after = t * 2
    assert t.tolist() == TABLE
    assert after.tolist() == [2.0, 4.0, 8.0, 16.0]
    assert before.tolist() == [2.0, 3.0, 5.0, 9.0]
    assert t[on_device(0, -1)].tolist() == [1.0, 8.0]
    assert_raises(x)
    assert (before + after).tolist() == [4.0, 7.0, 13.0, 25.0]


LOOKUPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index": lambda t, i: t[i],
    "index_select": lambda t, i: t.index_select(0, i),
    "gather": lambda t, i: t.gather(0, i),
    "take": lambda t, i: t.take(i),
    "embedding": lambda t, i: F.embedding(i, t.view(4, 1)).flatten(),
    "scatter": lambda t, i: t.scatter(0, i, 5.0),
    "index_add": lambda t, i: t.index_add(0, i, torch.ones_like(i, dtype=t.dtype)),
    "index_fill": lambda t, i: t.index_fill(0, i, 5.0),
    "index_put": lambda t, i: t.index_put((i,), torch.ones_like(i, dtype=t.dtype)),
    "nll_loss": lambda t, i: F.nll_loss(t.expand(len(i), 4), i),
}


@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize("index", [4, -5, 1 << 40])
def test_lookups(lookup: str, index: int) -> None:
    t = table()
    call = LOOKUPS[lookup]
    with pytest.raises(EITHER):
        call(t.cpu(), torch.tensor([1, index]))
    kind = EITHER if lookup in ("gather", "scatter", "index_add") else IndexError
    bad = made(lambda: call(t, on_device(1, index)), kind=kind)
    good = call(t, on_device(1, 3))
    assert_raises(bad, kind=kind)
    assert good.tolist() == call(t.cpu(), torch.tensor([1, 3])).tolist()
    assert t.tolist() == TABLE


DERIVED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "double": lambda x, good: x * 2,
    "sum": lambda x, good: x.sum(),
    "stack": lambda x, good: torch.stack([good, x]),
    "cat": lambda x, good: torch.cat([good, x])[:1],
    "view": lambda x, good: x.view(1, 1)[0],
    "clone": lambda x, good: x.clone(),
    "in place": lambda x, good: x.mul_(2),
    "added": lambda x, good: good + x,
    "where": lambda x, good: torch.where(x > 0, good, x),
    "written": lambda x, good: torch.zeros(3, device="tpu").index_put((on_device(1),), x),
    "cast": lambda x, good: x.to(torch.int64),
    "chain": lambda x, good: (x * 2 + good).relu().sum().sqrt(),
    "foreach": lambda x, good: torch._foreach_add([good, x], 1.0)[1],
    "matmul": lambda x, good: x.view(1, 1) @ good.view(1, 1),
}


@pytest.mark.parametrize("derive", DERIVED)
def test_what_was_computed_from_a_bad_value_raises_too(derive: str) -> None:
    t = table()
    good = t[:1] * 4
    x = made(lambda: t[on_device(7)])
    if x is None:
        return
    y = made(lambda: DERIVED[derive](x, good))
    for _ in range(2):
        assert_raises(y)
        assert_raises(x)
        assert good.tolist() == [4.0]
    z = made(lambda: DERIVED[derive](x, good))  # also after it was said
    assert_raises(z)
    assert t.tolist() == TABLE


def test_the_other_results_of_a_list_are_right_or_raise() -> None:
    t = table()
    x = made(lambda: t[on_device(7)])
    if x is None:
        return
    made_of_both = torch._foreach_mul([t, x], 2.0)
    with contextlib.suppress(IndexError):
        assert made_of_both[0].tolist() == [2.0, 4.0, 8.0, 16.0]
    assert_raises(made_of_both[1])


@pytest.mark.parametrize("derive", ["double", "chain", "added"])
def test_a_bad_value_that_was_launched_long_ago(derive: str) -> None:
    t = table()
    x = made(lambda: t[on_device(7)])
    for n in range(100):  # launches that it waits through
        assert (t + n).sum().item() == 15.0 + 4 * n
    if x is not None:
        assert_raises(made(lambda: DERIVED[derive](x, t[:1])))
    assert_raises(x)


def test_many_bad_values() -> None:
    t = table()
    values = [made(lambda n=n: t[on_device(4 + n)] + n) for n in range(40)]
    goods = [t + n for n in range(40)]
    for n in reversed(range(40)):
        assert goods[n].sum().item() == 15.0 + 4 * n
        assert_raises(values[n], rf"index {4 + n} is out of bounds")


def test_a_bad_value_that_nobody_reads() -> None:
    t = table()
    made(lambda: t[on_device(7)])
    with contextlib.suppress(IndexError):
        torch.tpu.synchronize()
    for _ in range(3):
        assert (t * 2).tolist() == [2.0, 4.0, 8.0, 16.0]
        torch.tpu.synchronize()


# Compiled


def look_up(t: Tensor, index: Tensor) -> Tensor:
    return t[index] * 2 + 1


def test_compiled_lookup() -> None:
    t = table()
    compiled = torch.compile(look_up, backend="tpu")
    assert compiled(t, on_device(3)).tolist() == [17.0]
    x = made(lambda: compiled(t, on_device(7)))
    y = made(lambda: compiled(t, on_device(9)))
    for _ in range(2):
        assert_raises(x)
        assert_raises(y)
        assert t.tolist() == TABLE
        assert compiled(t, on_device(2)).tolist() == [9.0]
    if x is not None:
        assert_raises(made(lambda: x + 1))
        assert_raises(made(lambda: compiled(x, on_device(0))))


def test_a_compiled_function_with_good_and_bad_results() -> None:
    """On the CPU a call that raises returns nothing: so all of its results may raise."""
    compiled = torch.compile(lambda t, i: (t * 2, t[i]), backend="tpu")
    t = table()
    good, same = compiled(t, on_device(1))
    assert (good.tolist(), same.tolist()) == ([2.0, 4.0, 8.0, 16.0], [2.0])
    with pytest.raises(IndexError, match="out of bounds"):
        [value.tolist() for value in compiled(t, on_device(7))]
    assert good.tolist() == [2.0, 4.0, 8.0, 16.0]


# synchronize


def test_synchronize_raises_what_waits() -> None:
    t = table()
    x = made(lambda: t[on_device(7)])
    if x is not None:
        with pytest.raises(IndexError, match="index 7 is out of bounds"):
            torch.tpu.synchronize()
    assert_raises(x)
    torch.tpu.synchronize()  # said before
    assert t.tolist() == TABLE


def test_synchronize_is_silent_after_the_error_was_raised() -> None:
    t = table()
    x = made(lambda: t[on_device(7)])
    assert_raises(x)
    torch.tpu.synchronize()
    assert (t + 1).tolist() == [2.0, 3.0, 5.0, 9.0]


# Threads


def test_another_threads_bad_index_is_not_ours() -> None:
    t = table()
    bad: list[Tensor | None] = []

    def break_it() -> None:
        bad.append(made(lambda: t[on_device(7)]))

    for _ in range(20):
        mine = t * 3
        in_threads([break_it])
        later = t + mine
        assert mine.tolist() == [3.0, 6.0, 12.0, 24.0]
        assert later.sum().item() == 60.0
    for value in bad:
        in_threads([lambda value=value: assert_raises(value)])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_threads_with_and_without_bad_indices(compiled: bool) -> None:
    t = table()
    call = torch.compile(look_up, backend="tpu") if compiled else look_up
    call(t, on_device(0)).tolist()
    stop = threading.Event()

    def breaking() -> None:
        try:
            for n in range(30):
                assert_raises(made(lambda n=n: call(t, on_device(4 + n))), f"index {4 + n} is")
                assert call(t, on_device(n % 4)).tolist() == [TABLE[n % 4] * 2 + 1]
        finally:
            stop.set()

    def working(i: int) -> None:
        w = torch.zeros(4, device="tpu")
        turns = 0
        while not stop.is_set():
            w.add_(t)
            turns += 1
            assert call(t, on_device(i)).tolist() == [TABLE[i] * 2 + 1]
            assert w.tolist() == [value * turns for value in TABLE]
            w.fill_(0.0) if turns > 1000 else None
            turns = 0 if turns > 1000 else turns

    in_threads([breaking, lambda: working(1), lambda: working(2)])
