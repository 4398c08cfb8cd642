"""Compiled graphs with custom ops that use tensors beside their arguments, as attention does that
finds its cache by a name: nothing is frozen at the first call, and no recorded value gets out."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

LENGTH, WIDTH = 8, 4
state: dict[str, Tensor] = {}


@torch.library.custom_op("torch_tpu_test::cached_attention", mutates_args=("out",))
def cached_attention(query: Tensor, out: Tensor, at: int) -> None:
    cache = state["cache"]
    cache[:, at : at + query.shape[0]].copy_(query.unsqueeze(0).expand(2, -1, -1))
    out.copy_((query @ cache[0].mT).softmax(-1) @ cache[1])


@torch.library.custom_op("torch_tpu_test::scaled", mutates_args=())
def scaled(x: Tensor) -> Tensor:
    return x * state["scale"]


@torch.library.custom_op("torch_tpu_test::shifted", mutates_args=())
def shifted(x: Tensor) -> Tensor:
    return x + torch.arange(WIDTH, dtype=x.dtype).to(x.device)  # made here, so its own


@scaled.register_fake
@shifted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def attend(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.ops.torch_tpu_test.cached_attention(x * 2, out, 3)
    return out + 1


def scale(x: Tensor) -> Tensor:
    out: Tensor = torch.ops.torch_tpu_test.scaled(x + 1)
    return out - 1


def fill(device: str, round: int, how: Callable[..., Tensor]) -> None:
    state["cache"] = how(2, LENGTH, WIDTH, device=device)
    state["cache"].fill_(round)
    state["scale"] = torch.full((WIDTH,), 2.0 + round, device=device)


@pytest.mark.parametrize("how", [torch.zeros, torch.empty])
@pytest.mark.parametrize("step", [attend, scale])
def test_tensors_that_are_no_arguments(
    step: Callable[[Tensor], Tensor], how: Callable[..., Tensor]
) -> None:
    torch.compiler.reset()
    compiled = torch.compile(step, backend="tpu", fullgraph=True)
    x = torch.linspace(-1, 1, 3 * WIDTH).reshape(3, WIDTH)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for round in range(3):  # another cache each time
            fill("cpu", round, how)
            expected, cache = step(x), state["cache"]
            fill("tpu", round, how)
            torch.testing.assert_close(compiled(x.to("tpu")).cpu(), expected)
            torch.testing.assert_close(state["cache"].cpu(), cache)
    (said,) = [str(w.message) for w in seen if "op by op" in str(w.message)]
    assert "torch_tpu_test" in said
    assert "none of its arguments" in said


def test_what_an_op_makes_itself_is_compiled() -> None:
    torch.compiler.reset()
    compiled = torch.compile(
        lambda x: torch.ops.torch_tpu_test.shifted(x * 2), backend="tpu", fullgraph=True
    )
    x = torch.ones(3, WIDTH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            torch.testing.assert_close(compiled(x.to("tpu")).cpu(), shifted(x * 2))
