"""Values that came of an index out of range: making them, and seeing that they raise."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import torch_tpu

Make = Callable[[], Tensor]
SETTINGS = ("strict", "debug", "fused-first", "fused-second", "fused-never")


@contextlib.contextmanager
def applied(setting: str) -> Iterator[None]:
    """A mode, and when Fused Eager compiles; no error is left for later."""
    mode, _, when = setting.partition("-")
    with torch_tpu.mode(mode), torch_tpu.fused.compile_when(when or "second"):  # type: ignore[arg-type]
        yield
    torch_tpu.fused.wait()
    with contextlib.suppress(*EITHER):  # a test that failed may have left one
        torch.tpu.synchronize()


def on_device(*numbers: int) -> Tensor:
    return torch.tensor(numbers).to("tpu")


def table() -> Tensor:
    return torch.tensor([1.0, 2.0, 4.0, 8.0]).to("tpu")


TABLE = [1.0, 2.0, 4.0, 8.0]
OUT_OF_RANGE = r"out of (bounds|range)"
# gather, scatter and index_add raise RuntimeError, as PyTorch does.
EITHER = (IndexError, RuntimeError)
Kind = type[Exception] | tuple[type[Exception], ...]


def made(make: Make, words: str = OUT_OF_RANGE, kind: Kind = IndexError) -> Tensor | None:
    """The value, or None where the op itself raised."""
    try:
        return make()
    except kind as error:
        if not re.search(words, str(error)):
            raise
        return None


READS: dict[str, Callable[[Tensor], object]] = {
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "item": lambda x: x.flatten()[0].item(),
    "sum": lambda x: x.sum().item(),
    "repr": repr,
    "bool": lambda x: bool((x == x).all()),
    "numpy": lambda x: x.cpu().numpy(),
    "copy_": lambda x: torch.empty(x.shape).copy_(x),
}


def assert_raises(
    value: Tensor | None, words: str = OUT_OF_RANGE, read: str = "tolist", kind: Kind = IndexError
) -> None:
    """Reading it does, not only the first time."""
    if value is None:
        return
    for _ in range(3):
        with pytest.raises(kind, match=words):
            READS[read](value)
