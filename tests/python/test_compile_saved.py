"""torch.compile: what forward keeps for backward; nothing large is made for a small use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compile_check import compiled, fresh_graphs  # noqa: F401, used by each test
from torch import Tensor, nn

from torch_tpu._compile import partition
from torch_tpu._compile.graph import CompiledGraph


def test_cross_entropy_saves_the_logits_once() -> None:
    """Not its logarithms of probabilities beside them."""
    x = torch.randn(16, 8, device="tpu", requires_grad=True)
    weight = torch.randn(8, 100, device="tpu", requires_grad=True)
    target = torch.randint(0, 100, (16,), device="tpu")

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x @ weight, target)

    loss = torch.compile(loss_of, backend="tpu")(x)
    saved = [t for t in loss.grad_fn.saved_tensors if t.shape == (16, 100)]
    assert len(saved) == 1
    torch.testing.assert_close(saved[0], x @ weight)
    (grad,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(grad, torch.autograd.grad(loss_of(x), x)[0])


def test_transposed_views_are_saved_as_they_lie() -> None:
    """The view's memory order, not a transposed copy; what the caller sees keeps its own."""
    weight = torch.randn(8, 8, device="tpu", requires_grad=True)
    x = torch.randn(2, 5, 8, device="tpu", requires_grad=True)

    def work(x: torch.Tensor) -> torch.Tensor:
        heads = (x @ weight).view(2, 5, 4, 2).transpose(1, 2)
        return (heads.sin() @ heads.transpose(2, 3)).sum()

    loss = torch.compile(work, backend="tpu")(x)
    saved = [t for t in loss.grad_fn.saved_tensors if t.shape == (2, 4, 5, 2)]
    assert saved
    assert all(t.stride() == (40, 2, 8, 1) for t in saved)
    grads = torch.autograd.grad(loss, [x, weight])
    expected = torch.autograd.grad(work(x), [x, weight])
    torch.testing.assert_close(grads, expected)


class Mixing(nn.Module):
    """Attention whose result is saved by attention itself and, reshaped, by the product after."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.view(2, 6, 4, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(2, 6, 16)).square().sum()


def gradients(model: nn.Module, x: Tensor, run: Any = None) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    loss = (model if run is None else run)(x)
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()]


def test_attention_saves_its_result_once_and_no_random_state() -> None:
    torch.manual_seed(0)
    model = Mixing().to("tpu")
    x = torch.randn(2, 6, 16, device="tpu")
    run = compiled(model)
    loss = run(x)
    saved = [t for t in loss.grad_fn.saved_tensors if t is not None]
    assert not [t for t in saved if t.dtype == torch.int64]
    # Of the model's width the input and the result; of attention q, k, v and its own result.
    assert sum(t.shape == (2, 6, 16) for t in saved) == 2
    assert sum(t.shape == (2, 4, 6, 4) for t in saved) == 4
    torch.testing.assert_close(gradients(model, x, run), gradients(model, x))


def test_attention_with_dropout_keeps_its_random_state() -> None:
    x = torch.randn(2, 2, 8, 4, device="tpu", requires_grad=True)

    def work(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5).sum()

    run = compiled(work)
    torch.manual_seed(1)
    loss = run(x)
    (grad,) = torch.autograd.grad(loss, x)
    torch.manual_seed(1)
    expected = work(x)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(grad, torch.autograd.grad(expected, x)[0])


@pytest.mark.parametrize("small", [1 << 12, 1 << 20])
def test_small_tensors_are_saved_as_one(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "_small", lambda: small)
    torch.manual_seed(0)
    layers = [m for _ in range(4) for m in (nn.LayerNorm(64), nn.Linear(64, 64), nn.Tanh())]
    model = nn.Sequential(*layers).to("tpu")
    x = torch.randn(32, 64, device="tpu")
    run = compiled(lambda x: model(x).square().mean())
    inner = [p.shape for p in model.parameters()]
    loss = run(x)
    saved = [t for t in loss.grad_fn.saved_tensors if t is not None and t.shape not in inner]
    stats = [t for t in saved if t.shape == (32, 1)]
    assert not stats
    # Means and deviations of 4 norms; with the larger bound, results of 8 KB travel with them.
    sizes = [t.numel() for t in saved if t.dim() == 1]
    assert len(sizes) == 1
    assert sizes[0] >= 8 * 32
    assert (sizes[0] > 8 * 32) == (small > 1 << 13)
    eager = lambda x: model(x).square().mean()  # noqa: E731
    torch.testing.assert_close(gradients(model, x, run), gradients(model, x, eager))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loss_makes_no_probabilities(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gathers the logits of its targets; all logarithms would be as large again."""
    graphs: list[str] = []
    plain = CompiledGraph.function

    def function(self: CompiledGraph) -> object:
        graphs.append(self._gm.code)
        return plain(self)

    monkeypatch.setattr(CompiledGraph, "function", function)
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
