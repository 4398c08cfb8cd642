"""A quick pass over everything that matters, on whatever plugin TORCH_TPU_PLUGIN names."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_tpu


def close(actual: Tensor, expected: Tensor, tol: float = 2e-4) -> None:
    torch.testing.assert_close(actual.cpu(), expected, rtol=tol, atol=tol)


def test_elementwise_reduce_matmul() -> None:
    x, y = torch.randn(33, 17), torch.randn(17, 5)
    a, b = x.to("tpu"), y.to("tpu")
    close(torch.sin(a) * 0.5 + a.relu(), torch.sin(x) * 0.5 + x.relu())
    close(a @ b, x @ y)
    close(a.sum(0), x.sum(0))
    close(a.softmax(-1), x.softmax(-1))
    close(a.t()[1:4].contiguous(), x.t()[1:4].contiguous())


def test_in_place_views_and_scalars() -> None:
    x = torch.randn(6, 8)
    a = x.to("tpu")
    for scale in (0.5, 2.0):
        a[1:3, ::2].mul_(scale).add_(1)
        x[1:3, ::2].mul_(scale).add_(1)
    close(a, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_forward_backward(dtype: torch.dtype) -> None:
    tol = 3e-2 if dtype == torch.bfloat16 else 2e-4
    cpu = [torch.randn(2, 3, 16, 8, dtype=dtype, requires_grad=True) for _ in range(3)]
    tpu = [t.detach().to("tpu").requires_grad_() for t in cpu]
    expected = F.scaled_dot_product_attention(*cpu, is_causal=True)
    actual = F.scaled_dot_product_attention(*tpu, is_causal=True)
    close(actual.detach(), expected.detach(), tol)
    expected.sum().backward()
    actual.sum().backward()
    for a, b in zip(tpu, cpu, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        close(a.grad, b.grad, tol)


def test_training_steps() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8 * 4 * 4, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4),
    )  # fmt: skip
    twin = copy.deepcopy(model).to("tpu")
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-4) for m in (model, twin)]
    for step in range(4):
        x = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(step))
        y = torch.arange(5) % 4
        losses = []
        for m, optimizer, device in zip((model, twin), optimizers, ("cpu", "tpu"), strict=True):
            loss = F.cross_entropy(m(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[1] == pytest.approx(losses[0], rel=5e-3)


def test_random_numbers_and_seed() -> None:
    torch.tpu.manual_seed(3)
    first = torch.randn(1000, device="tpu")
    torch.tpu.manual_seed(3)
    assert torch.equal(first.cpu(), torch.randn(1000, device="tpu").cpu())
    assert abs(first.mean().item()) < 0.2


def test_errors_leave_the_process_usable() -> None:
    a = torch.ones(2, 3, device="tpu")
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        a + torch.ones(4, device="tpu")
    with pytest.raises(IndexError, match="index out of range in self"):
        F.embedding(torch.tensor([7], device="tpu"), a).cpu()
    close(a + 1, torch.full((2, 3), 2.0))


def test_modes_agree() -> None:
    x = torch.randn(8, 8, device="tpu")
    results = []
    for mode in ("debug", "strict", "fused"):
        with torch_tpu.mode(mode):
            results.append((x @ x).relu().sum().item())
    assert results == pytest.approx([results[0]] * 3, rel=1e-5)


def test_events_time_real_work() -> None:
    start, end = (torch.Event("tpu", enable_timing=True) for _ in range(2))
    x = torch.randn(256, 256, device="tpu")
    x @ x
    start.record()
    for _ in range(10):
        x = (x @ x) * 1e-3
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) > 0
