"""torch.compile: nothing large is made for a small use, and what a loss gives stays the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compile_check import compiled, fresh_graphs  # noqa: F401, used by each test
from torch import Tensor

from torch_tpu._compile.graph import CompiledGraph


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The code of what is compiled, as it is lowered."""
    codes: list[str] = []
    plain = CompiledGraph.function

    def function(self: CompiledGraph) -> object:
        codes.append(self._gm.code)
        return plain(self)

    monkeypatch.setattr(CompiledGraph, "function", function)
    return codes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_gradient(dtype: torch.dtype, reduction: str, weighted: bool) -> None:
    """With ignored rows; a class's weight belongs to each element of a row."""
    logits = torch.randn(6, 9).to(dtype)
    target = torch.tensor([0, 8, 3, -100, 5, -100])
    weight = torch.rand(9).to(dtype) if weighted else None
    grads = []
    for device in ("cpu", "tpu"):
        x = logits.clone().to(device).detach().requires_grad_()
        arguments = (target.to(device), weight if weight is None else weight.to(device))

        def loss_of(x: Tensor, a: tuple[Any, ...] = arguments) -> Tensor:
            return F.cross_entropy(x, a[0], a[1], reduction=reduction)

        f = loss_of if device == "cpu" else torch.compile(loss_of, backend="tpu", fullgraph=True)
        f(x).sum().backward()
        assert x.grad is not None
        grads.append(x.grad.cpu())
    off = {"rtol": 2e-2, "atol": 4e-3} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(*grads, **off)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loss_makes_no_probabilities(dtype: torch.dtype, graphs: list[str]) -> None:
    """It gathers the logits of its targets; all logarithms would be as large again."""
    logits = torch.randn(6, 11, device="tpu", dtype=dtype, requires_grad=True)
    target = torch.tensor([0, 3, -100, 10, 5, 5], device="tpu")
    run = compiled(lambda x: F.cross_entropy(x, target, label_smoothing=0.0))
    loss = run(logits)
    (grad,) = torch.autograd.grad(loss, logits)
    gathered = [line for line in graphs[0].splitlines() if "gather.default" in line]
    assert [line for line in gathered if "gather.default(primals_1," in line] == gathered[:1]
    host = logits.detach().cpu().float().requires_grad_()
    expected = F.cross_entropy(host, target.cpu())
    off = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 1e-3}
    torch.testing.assert_close(loss.float().cpu(), expected, **off)
    torch.testing.assert_close(grad.float().cpu(), torch.autograd.grad(expected, host)[0], **off)


def test_gathers_of_what_does_not_lie_along_them_stay() -> None:
    """Fewer rows than the values have, and an operand that varies along the dim."""
    x, y = torch.randn(5, 7, device="tpu"), torch.randn(1, 7, device="tpu")
    index = torch.randint(0, 7, (3, 2), device="tpu")

    def work(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        few = (x * 2 - y).gather(1, index)
        all_rows = (x - x.amax(1, keepdim=True)).gather(1, index.repeat(2, 1)[:5])
        down = (x - x.amax(0, keepdim=True)).neg().gather(0, index[:1, :1].expand(1, 7) % 5)
        return few, all_rows, down

    torch.testing.assert_close(compiled(work)(x, y), work(x, y))


def test_sum_of_one_hot_rows_is_no_sum(graphs: list[str]) -> None:
    rows = torch.tensor([[0], [4], [-1], [7], [2]], device="tpu")
    values = torch.rand(5, 1, device="tpu")
    classes = torch.arange(5, device="tpu")

    def hot(rows: Tensor, values: Tensor, rest: float = 0.0) -> Tensor:
        return torch.where(torch.arange(5, device="tpu") == rows, values, rest)

    def sums(f: Callable[..., Tensor], *args: Tensor) -> int:
        graphs.clear()
        torch.testing.assert_close(compiled(f)(*args), f(*args))
        return sum(code.count("aten.sum.") for code in graphs)

    assert sums(lambda r, v: hot(r, v).sum(1, keepdim=True), rows, values) == 0
    assert sums(lambda r, v: hot(r, v).half().sum(-1, keepdim=True), rows, values) == 0
    # Values of their own for each class, another dimension, another rest, fractions, sums that are
    # wider, classes in any order.
    assert sums(lambda r, v: hot(r, v).sum(1, keepdim=True), rows, values.expand(5, 5) * 2) == 1
    assert sums(lambda r, v: hot(r, v).sum(0, keepdim=True), rows, values) == 1
    assert sums(lambda r, v: hot(r, v, 1.0).sum(1, keepdim=True), rows, values) == 1
    assert sums(lambda r, v: hot(r, v).sum(1, keepdim=True), rows + 0.5, values) == 1
    assert sums(lambda r, v: hot(r, v, 0).sum(1, keepdim=True), rows, rows.int()) == 1
    assert sums(lambda r, c: torch.where(c == r, 3.0, 0.0).sum(1, True), rows, classes) == 1
