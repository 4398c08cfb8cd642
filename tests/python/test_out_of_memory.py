"""Fused Eager and the limit on memory: the op that is past it says so where it is called. Where it
shows only at a launch, who issued the call or reads its result is told, not who happens to launch
it; and once there is room, the call runs after all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from threads import in_threads
from torch import Tensor

import torch_tpu

MIB = 1 << 20
LIMIT = 64 * MIB


_limit = 0  # by the fixture: asking what is in use, or what there is, would launch what is pending


def set_limit(on: bool) -> None:
    torch_tpu._C._set_memory_limit(_limit if on else 0)


@pytest.fixture(params=["first", "second", "never"], autouse=True)
def _little_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    with torch_tpu.mode("fused"), torch_tpu.fused.compile_when(request.param):
        global _limit
        torch.tpu.synchronize()
        _limit = torch.tpu.memory_allocated() + LIMIT
        set_limit(True)
        try:
            yield
        finally:
            set_limit(False)


def too_large() -> Tensor:
    """A quarter of a gigabyte."""
    return torch.ones(1 << 13, device="tpu").expand(1 << 13, 1 << 13) * 2


def assert_too_large(call: Callable[[], object]) -> None:
    with pytest.raises(torch.OutOfMemoryError, match="TPU out of memory"):
        call()


def issued_before_the_limit() -> Tensor:
    """The result of a call that finds no room when it is launched."""
    set_limit(False)
    large = too_large()
    set_limit(True)
    return large


def assert_told_once() -> None:
    """The next call of the thread that issued it launches what is pending; later ones go on."""
    assert_too_large(lambda: torch.ones(4, device="tpu") * 1)
    assert (torch.ones(4, device="tpu") * 1).tolist() == [1.0] * 4


def test_the_op_says_so() -> None:
    mine = torch.ones(4, device="tpu")
    before = mine * 5
    assert_too_large(too_large)
    after = mine * 7
    assert before.tolist() == [5.0] * 4
    assert (before + after).tolist() == [12.0] * 4
    torch.tpu.synchronize()  # nothing is left to tell


def test_all_that_fit_can_be_read() -> None:
    kept: list[Tensor] = []

    def fill_up() -> None:
        for n in range(60):
            kept.append(torch.full((512, 1024), float(n), device="tpu") + 1)  # 2 MiB

    assert_too_large(fill_up)
    assert 20 <= len(kept) < 60
    assert [int(x[0, 0].item()) for x in kept] == [n + 1 for n in range(len(kept))]
    del kept[: len(kept) // 2]
    more = [torch.full((512, 1024), 3.0, device="tpu") for _ in range(5)]
    assert [x.sum().item() for x in more] == [3.0 * 512 * 1024] * 5


def test_what_found_no_room_runs_once_there_is_some() -> None:
    mine = torch.ones(4, device="tpu")
    large = issued_before_the_limit()
    assert_told_once()
    derived = large[0, :4] + mine
    assert (mine * 3).tolist() == [3.0] * 4
    for _ in range(2):
        assert_too_large(large.cpu)
        assert_too_large(derived.tolist)
    set_limit(False)
    assert derived.tolist() == [3.0] * 4
    assert large[5, 7].item() == 2.0


def test_what_nobody_needs_is_dropped() -> None:
    large = issued_before_the_limit()
    assert_told_once()
    mine = torch.ones(4, device="tpu") * 3
    del large
    assert (mine + 1).tolist() == [4.0] * 4
    assert torch.tpu.memory_allocated() < 1 << 28


def test_a_weight_survives_an_update_without_room() -> None:
    weight = torch.ones(1 << 12, device="tpu")
    assert weight.sum().item() == 1 << 12
    set_limit(False)
    large = too_large()
    weight.add_(large[0, : 1 << 12])
    set_limit(True)
    assert_told_once()
    assert_too_large(weight.tolist)
    set_limit(False)
    assert weight.tolist() == [3.0] * (1 << 12)


def test_the_limit_holds_inside_programs() -> None:
    """What a program needs for a while counts, too."""

    def step(x: Tensor) -> Tensor:
        return ((x[:, None] - x[None, :]).sort(dim=0).values.cumsum(1)).amax()

    x = torch.arange(3072, dtype=torch.float32, device="tpu")  # the square has 36 MiB
    assert_too_large(lambda: [step(x).item() for _ in range(3)])
    compiled = torch.compile(step, backend="tpu")
    assert_too_large(lambda: compiled(x).item())
    set_limit(False)
    assert step(x).item() == compiled(x).item()


add_one = torch.compile(lambda x: x + 1, backend="tpu")

# Each launches what is pending.
LAUNCHES: dict[str, Callable[[Tensor], object]] = {
    "read": lambda x: (x * 3).sum().item() == 12.0,
    "copy": lambda x: x.cpu().tolist() == [1.0] * 4,
    "compiled": lambda x: add_one(x).tolist() == [2.0] * 4,
    "memory": lambda _: torch.tpu.memory_allocated() < 1 << 28,
    "upload": lambda _: torch.arange(3).to("tpu").tolist() == [0, 1, 2],
    "nonzero": lambda x: len(x.nonzero()) == 4,
    "event": lambda _: torch.Event("tpu").record() is None,
    "mode": lambda _: torch_tpu.mode("strict").__enter__().__exit__(None, None, None) is None,
}


@pytest.mark.parametrize("launch", LAUNCHES)
def test_another_thread_launches(launch: str) -> None:
    mine = torch.ones(4, device="tpu")
    add_one(mine)
    before = mine * 5
    large: list[Tensor] = []
    in_threads([lambda: large.append(issued_before_the_limit())])
    assert LAUNCHES[launch](mine)
    assert before.tolist() == [5.0] * 4

    def read() -> None:
        for _ in range(2):
            assert_too_large(large[0].cpu)

    in_threads([read])
    large.clear()
    assert (mine + before).tolist() == [6.0] * 4


def test_threads_with_and_without_enough() -> None:
    shared = torch.ones(4, device="tpu")

    def greedy() -> None:
        for _ in range(15):
            assert_too_large(too_large)
            assert (shared * 2).sum().item() == 8.0

    def modest(i: int) -> None:
        x = torch.zeros(4, device="tpu")
        for turn in range(100):
            x += i
            if turn % 5 == 0:
                assert x.tolist() == [i * (turn + 1.0)] * 4

    in_threads([greedy, lambda: modest(1), lambda: modest(2)])
