"""torch.compile: what forward keeps for backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compile_check import compiled, fresh_graphs  # noqa: F401, used by each test
from torch import Tensor, nn

from torch_tpu._compile import partition


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


def test_reshapes_of_small_tensors_that_are_saved_as_one() -> None:
    """What is made again of a tensor in a pack comes after it is taken out."""
    torch.manual_seed(0)
    x = torch.randn(6, 3, device="tpu") @ torch.randn(3, 5, device="tpu")
    x.requires_grad_()

    def work(x: Tensor) -> Tensor:
        return torch.svd_lowrank(x, q=3, niter=2)[1].sum()

    (grad,) = torch.autograd.grad(compiled(work)(x), x)
    expected = torch.autograd.grad(torch.linalg.svdvals(x.cpu())[:3].sum(), x)[0]
    torch.testing.assert_close(grad, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("dynamic", [False, True])
def test_images_are_saved_as_the_compiler_has_them(dims: int, dynamic: bool) -> None:
    """With the channels innermost; not where PyTorch has no such order, or sizes vary."""
    torch.manual_seed(0)
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1]
    layers = [conv(4, 16, 3, padding=1), norm(16), nn.ReLU(), conv(16, 8, 3, stride=2), nn.Tanh()]
    model = nn.Sequential(*layers, transposed(8, 4, 3), nn.Sigmoid()).to("tpu")
    run = compiled(lambda x: model(x).square().sum(), dynamic=dynamic)
    order = {4: torch.channels_last, 5: torch.channels_last_3d}.get(dims + 2)
    for batch in (24, 20):
        x = torch.randn(batch, 4, *(7, 12, 9)[:dims], device="tpu")
        loss = run(x)
        saved = [t for t in loss.grad_fn.saved_tensors if t is not None and len(t) == batch]
        images = [t for t in saved if t.dim() == dims + 2 and t.shape[1] in (16, 8)]
        assert len(images) >= 2
        if order is not None and not dynamic:
            assert all(t.is_contiguous(memory_format=order) for t in images)
        expected = gradients(model, x, lambda x: model(x).square().sum())
        torch.testing.assert_close(gradients(model, x, run), expected, rtol=1e-3, atol=1e-3)
