"""complex32: stored as two float16, computed as complex64, against the same on the CPU."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

# On the CPU complex32 has few kernels: the expected results come from complex64.
WIDE = torch.complex64
TINY = {"rtol": 2e-3, "atol": 2e-3}


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=WIDE, generator=generator).to(torch.complex32)


def same(on_device: torch.Tensor, expected: torch.Tensor) -> None:
    assert on_device.device.type == "tpu"
    assert on_device.dtype == expected.dtype
    host = on_device.cpu()
    if host.dtype == torch.complex32:
        host, expected = host.to(WIDE), expected.to(WIDE)
    torch.testing.assert_close(host, expected, **TINY)


def test_there_and_back() -> None:
    x = numbers(3, 5)
    moved = x.to("tpu")
    assert moved.dtype == torch.complex32
    assert torch.equal(torch.view_as_real(moved.cpu()), torch.view_as_real(x))
    assert moved.untyped_storage().nbytes() == 15 * 4
    for part in (x[1:, ::2], x.t(), x[0], x[:, 2]):
        again = part.to("tpu")
        assert torch.equal(torch.view_as_real(again.cpu()), torch.view_as_real(part.clone()))
    assert moved[1, 2].item() == x[1, 2].item()
    assert "complex32" in repr(moved)
    assert "device='tpu:0'" in repr(moved)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    ],
)
def test_casts(dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 8).to(dtype)
    same(x.to("tpu").chalf(), x.chalf())
    if dtype.is_complex:
        assert torch.equal(numbers(8).to("tpu").to(dtype).cpu(), numbers(8).to(dtype))


def test_factories() -> None:
    for make in (torch.zeros, torch.ones, torch.empty):
        x = make(2, 3, dtype=torch.complex32, device="tpu")
        assert (x.dtype, x.shape, x.element_size()) == (torch.complex32, (2, 3), 4)
    same(
        torch.full((2,), 1 - 2j, dtype=torch.complex32, device="tpu"),
        torch.full((2,), 1 - 2j, dtype=torch.complex32),
    )
    same(
        torch.tensor([1 + 1j, 2.5], dtype=torch.complex32, device="tpu"),
        torch.tensor([1 + 1j, 2.5], dtype=torch.complex32),
    )
    same(torch.zeros_like(numbers(3).to("tpu")), torch.zeros(3, dtype=torch.complex32))
    x = torch.randn(64, dtype=torch.complex32, device="tpu")
    assert 0.2 < x.to(WIDE).abs().square().mean().item() < 4


def test_views_share_their_memory() -> None:
    x = numbers(4, 3).to("tpu")
    pairs = torch.view_as_real(x)
    assert (pairs.dtype, pairs.shape) == (torch.float16, (4, 3, 2))
    pairs[1, :, 1] = 7
    assert torch.equal(x.imag[1].cpu(), torch.full((3,), 7.0, dtype=torch.float16))
    x.real[2] = -1
    assert torch.equal(pairs[2, :, 0].cpu(), torch.full((3,), -1.0, dtype=torch.float16))
    halves = torch.randn(5, 2, dtype=torch.float16)
    seen = torch.view_as_complex(halves.to("tpu"))
    same(seen, torch.view_as_complex(halves))
    same(torch.complex(halves[:, 0].to("tpu"), halves[:, 1].to("tpu")), seen.cpu())
    same(x.view(torch.float16), torch.view_as_real(x.cpu()).view(4, 6))
    same(x.conj().resolve_conj(), x.cpu().to(WIDE).conj().resolve_conj().to(torch.complex32))


BINARY: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "add_number": lambda x, _: x + (1 - 2j),
    "mul_real": lambda x, _: x * 3,
    "rsub": lambda x, _: 1 - x,
    "matmul": lambda x, y: x @ y.t(),
    "where": lambda x, y: torch.where(x.real > 0, x, y),
    "cat": lambda x, y: torch.cat([x, y]),
    "index": lambda x, y: x[torch.tensor([2, 0], device=x.device)] + y[:2],
}
UNARY: dict[str, Callable[[Any], torch.Tensor]] = {
    "neg": torch.neg,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "sin": torch.sin,
    "tanh": torch.tanh,
    "reciprocal": torch.reciprocal,
    "square": torch.square,
    "sum": lambda x: x.sum(0),
    "mean": torch.mean,
    "conj_physical": torch.conj_physical,
    "transpose": lambda x: x.t().contiguous(),
    "flip": lambda x: x.flip(0),
}


@pytest.mark.parametrize("name", BINARY)
def test_two_operands(name: str) -> None:
    x, y = numbers(4, 3), numbers(4, 3, seed=1)
    expected = BINARY[name](x.to(WIDE), y.to(WIDE)).to(torch.complex32)
    same(BINARY[name](x.to("tpu"), y.to("tpu")), expected)


@pytest.mark.parametrize("name", UNARY)
def test_one_operand(name: str) -> None:
    x = numbers(4, 3)
    expected = UNARY[name](x.to(WIDE)).to(torch.complex32)
    same(UNARY[name](x.to("tpu")), expected)


def test_magnitude_and_comparison_are_not_complex() -> None:
    x = numbers(4, 3)
    same(x.to("tpu").abs(), x.to(WIDE).abs().half())
    assert (x.to("tpu") == x.to("tpu")).all().item()
    assert not (x.to("tpu") != x.to("tpu")).any().item()
    assert torch.isfinite(x.to("tpu")).all().item()


def test_promotion() -> None:
    x = numbers(3).to("tpu")
    for dtype, result in (
        (torch.float16, torch.complex32),
        (torch.int64, torch.complex32),
        (torch.float32, torch.complex64),
        (torch.float64, torch.complex128),
        (torch.complex64, torch.complex64),
    ):
        other = torch.ones(3, dtype=dtype, device="tpu")
        assert (x + other).dtype == result
        torch.testing.assert_close((x + other).cpu().to(WIDE), x.cpu().to(WIDE) + 1, **TINY)


def test_in_place_and_through_views() -> None:
    x = numbers(4, 3)
    on_device, wide = x.to("tpu"), x.to(WIDE)
    for t in (on_device, wide):
        t[1:3, ::2] *= 2j
        t[:, 1] = t[:, 0]
        t += 1
        t.t()[2].zero_()
        t.fill_diagonal_(1j)
    same(on_device, wide.to(torch.complex32))


def test_gradients() -> None:
    x = numbers(4, 3)
    grads = []
    for leaf in (x.to("tpu").requires_grad_(), x.to(WIDE).requires_grad_()):
        loss = torch.view_as_real(leaf * leaf * (1 + 1j)).sum()
        loss.backward()
        assert leaf.grad is not None
        grads.append(leaf.grad)
    same(grads[0], grads[1].to(torch.complex32))


def test_save_and_load() -> None:
    x = numbers(3).to("tpu")
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded.device.type == "tpu"
    assert loaded.dtype == torch.complex32
    assert torch.equal(torch.view_as_real(loaded.cpu()), torch.view_as_real(x.cpu()))


def test_compiled() -> None:
    @torch.compile(fullgraph=True)
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y + 1

    x, y = numbers(5), numbers(5, seed=1)
    expected = (x.to(WIDE) * y.to(WIDE) + 1).to(torch.complex32)
    same(f(x.to("tpu"), y.to("tpu")), expected)
