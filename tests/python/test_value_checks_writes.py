"""A tensor written in place from a value that came of an index out of range keeps its old contents,
as on the CPU, where the op raises before it writes. Reading it raises once, if nobody was told."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import pytest
import torch
from bad_values import (
    EITHER,
    OUT_OF_RANGE,
    SETTINGS,
    TABLE,
    applied,
    assert_raises,
    made,
    on_device,
    table,
)
from torch import Tensor


@pytest.fixture(params=SETTINGS, autouse=True)
def _setting(request: pytest.FixtureRequest) -> Iterator[None]:
    with applied(request.param):
        yield


def add_looked_up(w: Tensor, t: Tensor, index: Tensor) -> None:
    w.add_(t[index])


compiled_add_looked_up = torch.compile(add_looked_up, backend="tpu")

# Each writes w, [0, 1, 2, 3], from a bad index into t.
WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "add_": lambda w, t: w.add_(t[on_device(7)]),
    "copy_": lambda w, t: w.copy_(t[on_device(7)]),
    "view": lambda w, t: w[1:3].add_(t[on_device(7, 1)]),
    "element": lambda w, t: w.__setitem__(2, t[on_device(7)][0]),
    "strided": lambda w, t: w.view(2, 2).t()[1].mul_(t[on_device(7)]),
    "masked": lambda w, t: w.__setitem__(w > 1, t[on_device(7)][0]),
    "out": lambda w, t: torch.add(t, t[on_device(7)], out=w),
    "foreach": lambda w, t: torch._foreach_add_([w], [t[on_device(7)]]),
    "compiled": lambda w, t: compiled_add_looked_up(w, t, on_device(7)),
    "index_add_": lambda w, t: w.index_add_(0, on_device(7), t[:1]),
    "index_put_": lambda w, t: w.__setitem__(on_device(7), t[:1]),
    "scatter_": lambda w, t: w.scatter_(0, on_device(7), t[:1]),
    "index_fill_": lambda w, t: w.index_fill_(0, on_device(7), 5.0),
    "chain": lambda w, t: w.mul_(2).add_(t[on_device(7)] * 3).relu_(),
}
CHAINS = {"chain": [0.0, 2.0, 4.0, 6.0]}  # of several writes, those before the bad one count


def write(name: str, w: Tensor, t: Tensor) -> bool:
    """Whether the call itself raised."""
    try:
        WRITES[name](w, t)
    except EITHER as error:
        if not re.search(OUT_OF_RANGE, str(error)):
            raise
        return True
    return False


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("held", [False, True], ids=["alone", "held"])
def test_a_write_from_a_bad_value_is_undone(name: str, held: bool) -> None:
    w, t = torch.arange(4.0).to("tpu"), table()
    if name == "compiled":
        compiled_add_looked_up(w, t, on_device(0))
        w.sub_(1)
        assert w.tolist() == [0.0, 1.0, 2.0, 3.0]
    before = w.clone() if held else None  # else the memory of w may be donated
    if not write(name, w, t):
        with pytest.raises(EITHER, match=OUT_OF_RANGE):
            w.tolist()
    left = w.tolist()
    assert left in ([0.0, 1.0, 2.0, 3.0], CHAINS.get(name))
    w.add_(1)
    assert w.tolist() == [value + 1 for value in left]
    assert t.tolist() == TABLE
    if before is not None:
        assert before.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("name", WRITES)
def test_a_write_whose_error_another_read_raises(name: str) -> None:
    """By a value computed from the written one, or by synchronize: then w is as it was."""
    for raising in ("derived", "synchronize"):
        w, t = torch.arange(4.0).to("tpu"), table()
        if not write(name, w, t):
            derived = made(lambda: w * 2, kind=EITHER)  # noqa: B023
            if derived is not None:
                read = torch.tpu.synchronize if raising == "synchronize" else derived.tolist
                with pytest.raises(EITHER, match=OUT_OF_RANGE):
                    read()
        # Who was told has w as it was. Who was told of another value may be told of this one, once.
        with contextlib.suppress(*EITHER):
            w.tolist()
        assert w.tolist() in ([0.0, 1.0, 2.0, 3.0], CHAINS.get(name))


def test_a_write_from_a_bad_value_that_was_read_before() -> None:
    w, t = torch.arange(4.0).to("tpu"), table()
    x = made(lambda: t[on_device(7)])
    assert_raises(x)
    if x is None:
        return
    with contextlib.suppress(IndexError):
        w.add_(x)
        w.tolist()
    assert w.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert_raises(x)


def test_a_bad_value_that_is_written_over_is_good() -> None:
    t = table()
    for write_over in (
        lambda x: x.fill_(3.0),
        lambda x: x.copy_(t[3:]),
        lambda x: x.zero_().add_(3.0),
        lambda x: torch.mul(t[:1], 3.0, out=x),
    ):
        x = made(lambda: t[on_device(7)])
        if x is None:
            return
        assert_raises(x)
        write_over(x)
        assert x.tolist() in ([3.0], [8.0])
