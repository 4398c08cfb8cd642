"""In Fused Eager many ops wait in one trace, those of all threads. When one finds no memory, who
reads its result is told, not who happens to launch it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from threads import in_threads
from torch import Tensor

import torch_tpu

LIMIT = 64 << 20


@pytest.fixture(params=["first", "second", "never"], autouse=True)
def _little_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    with torch_tpu.mode("fused"), torch_tpu.fused.compile_when(request.param):
        torch.tpu.synchronize()
        _, total = torch.tpu.mem_get_info()
        torch.tpu.set_per_process_memory_fraction((torch.tpu.memory_allocated() + LIMIT) / total)
        try:
            yield
        finally:
            torch.tpu.set_per_process_memory_fraction(1.0)


def too_large() -> Tensor:
    """A quarter of a gigabyte, when it runs."""
    return torch.ones(1 << 13, device="tpu").expand(1 << 13, 1 << 13) * 2


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


def test_an_unrelated_value_is_read_first() -> None:
    mine = torch.ones(4, device="tpu")
    before = mine * 5
    large = too_large()
    after = mine * 7
    assert before.tolist() == [5.0] * 4
    assert after.tolist() == [7.0] * 4
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match="TPU out of memory"):
            large.cpu()
    assert (before + after).tolist() == [12.0] * 4


@pytest.mark.parametrize("launch", LAUNCHES)
def test_another_thread_launches(launch: str) -> None:
    mine = torch.ones(4, device="tpu")
    add_one(mine)
    before = mine * 5
    large: list[Tensor] = []
    in_threads([lambda: large.append(too_large())])
    assert LAUNCHES[launch](mine)
    assert before.tolist() == [5.0] * 4

    def read() -> None:
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError, match="TPU out of memory"):
                large[0].cpu()

    in_threads([read])
    large.clear()
    assert (mine + before).tolist() == [6.0] * 4


def test_threads_with_and_without_enough() -> None:
    shared = torch.ones(4, device="tpu")

    def greedy() -> None:
        for _ in range(15):
            large = too_large()
            with pytest.raises(torch.OutOfMemoryError):
                large.cpu()
            del large
            assert (shared * 2).sum().item() == 8.0

    def modest(i: int) -> None:
        x = torch.zeros(4, device="tpu")
        for turn in range(100):
            x += i
            if turn % 5 == 0:
                assert x.tolist() == [i * (turn + 1.0)] * 4

    in_threads([greedy, lambda: modest(1), lambda: modest(2)])
