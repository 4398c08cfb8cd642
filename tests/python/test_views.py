"""Views by strides: chains of random views read, write and copy as on the CPU."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

View = Callable[[Tensor], Tensor]


def random_view(t: Tensor, rng: random.Random) -> View:
    """A view op that fits `t`; overlapping windows are left out, since writes to them differ."""
    if t.dim() == 0:
        return lambda x: x.unsqueeze(0)
    d = rng.randrange(t.dim())
    size = t.size(d)
    kind = rng.randrange(8)
    if kind == 0:
        e = rng.randrange(t.dim())
        return lambda x: x.transpose(d, e)
    if kind == 1 and size > 1:
        start = rng.randrange(size)
        stop = rng.randint(start + 1, size)
        step = rng.choice([1, 1, 2, 3])
        return lambda x: x[(slice(None),) * d + (slice(start, stop, step),)]
    if kind == 2 and size > 0:
        index = rng.randrange(size)
        return lambda x: x.select(d, index)
    if kind == 3:
        return lambda x: x.unsqueeze(d)
    if kind == 4 and t.is_contiguous():
        return lambda x: x.view(-1)
    if kind == 5 and t.dim() >= 2:
        return lambda x: x.diagonal(0, 0, 1)
    if kind == 6 and size > 0 and size % 2 == 0:
        return lambda x: x.unflatten(d, (2, -1))
    if kind == 7:
        return lambda x: x.unsqueeze(0).expand(2, *x.shape)
    return lambda x: x


def random_base(rng: random.Random, generator: torch.Generator) -> Tensor:
    shape = [rng.randint(1, 4) for _ in range(rng.randint(1, 4))]
    base = torch.randn(shape, generator=generator)
    if len(shape) == 4 and rng.random() < 0.4:
        base = base.to(memory_format=torch.channels_last)
    if rng.random() < 0.3:
        base = base.permute(rng.sample(range(base.dim()), base.dim()))
    return base


@pytest.mark.parametrize("seed", range(6))
def test_random_chains(seed: int) -> None:
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(20):
        cpu_base = random_base(rng, generator)
        tpu_base = cpu_base.to("tpu")
        cpu, tpu = cpu_base, tpu_base
        for _ in range(rng.randint(1, 4)):
            view = random_view(cpu, rng)
            cpu, tpu = view(cpu), view(tpu)
        assert tpu.shape == cpu.shape
        assert tpu.stride() == cpu.stride()
        assert torch.equal(tpu.cpu(), cpu)
        torch.testing.assert_close((tpu + 1).cpu(), cpu + 1)
        expected_error = None
        try:
            cpu.mul_(2)
        except RuntimeError as error:
            expected_error = str(error)
        if expected_error is not None:
            with pytest.raises(RuntimeError) as caught:
                tpu.mul_(2)
            assert str(caught.value) == expected_error
            continue
        tpu.mul_(2)
        torch.testing.assert_close(tpu_base.cpu(), cpu_base)
        update = torch.randn(cpu.shape, generator=generator)
        cpu.copy_(update)
        tpu.copy_(update)
        torch.testing.assert_close(tpu_base.cpu(), cpu_base)
        if cpu.dim() > 0:
            cpu[0] = 7.0
            tpu[0] = 7.0
            torch.testing.assert_close(tpu_base.cpu(), cpu_base)


def test_unfold_reads_overlapping_windows() -> None:
    x = torch.arange(24.0).view(4, 6)
    expected = x.unfold(1, 3, 2) * 2
    torch.testing.assert_close((x.to("tpu").unfold(1, 3, 2) * 2).cpu(), expected)


@pytest.mark.parametrize(
    ("dtype", "other"),
    [
        (torch.float32, torch.int32),
        (torch.float32, torch.float16),
        (torch.int16, torch.int64),
        (torch.uint8, torch.bool),
        (torch.complex64, torch.float32),
        (torch.float32, torch.complex64),
    ],
)
def test_dtype_views(dtype: torch.dtype, other: torch.dtype) -> None:
    base = torch.arange(16).to(dtype).view(2, 8)
    if other == torch.bool:
        base = base % 2
    twin = base.to("tpu")
    cpu, tpu = base.view(other), twin.view(other)
    assert tpu.shape == cpu.shape
    assert torch.equal(tpu.cpu(), cpu)
    assert torch.equal(tpu.clone().cpu(), cpu)
    cpu[1], tpu[1] = cpu[0].clone(), tpu[0].clone()
    assert torch.equal(twin.cpu(), base)


def test_views_of_complex() -> None:
    z = torch.randn(3, 4, dtype=torch.complex64)
    t = z.to("tpu")
    torch.testing.assert_close(torch.view_as_real(t).cpu(), torch.view_as_real(z))
    torch.testing.assert_close((t.real * 2).cpu(), z.real * 2)
    torch.testing.assert_close(t.imag.clone().cpu(), z.imag.clone())
    t.real.fill_(1.0)
    z.real.fill_(1.0)
    torch.testing.assert_close(t.cpu(), z)
    torch.testing.assert_close(t.conj().cpu(), z.conj())
    torch.testing.assert_close((t.conj() * t).cpu(), z.conj() * z)
    torch.testing.assert_close(t.conj().clone().cpu(), z.conj().clone())
    torch.testing.assert_close(t.conj().imag.cpu(), z.conj().imag)


def test_the_old_value_stays_where_it_is_shared() -> None:
    x = torch.randn(4, 4, device="tpu")
    before = x.cpu()
    copy = x.clone()
    x.add_(1)
    x[1].zero_()
    assert torch.equal(copy.cpu(), before)
    copy.mul_(3)
    expected = before + 1
    expected[1] = 0
    assert torch.equal(x.cpu(), expected)


def test_one_call_writes_several_views_of_one_storage() -> None:
    flat = torch.zeros(12, device="tpu")
    parts = list(flat.split(4))
    torch._foreach_add_(parts, [torch.full((4,), float(i), device="tpu") for i in range(3)])
    assert torch.equal(flat.cpu(), torch.arange(3.0).repeat_interleave(4))


def test_an_argument_may_be_read_and_written() -> None:
    x = torch.randn(8, 8)
    t = x.to("tpu")
    x.mul_(x)
    t.mul_(t)
    x[0].add_(x[1])
    t[0].add_(t[1])
    torch.testing.assert_close(t.cpu(), x)


def test_in_place_reuses_the_memory() -> None:
    x = torch.randn(256, 256, device="tpu")
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.memory_allocated()
    x.add_(1.5)
    torch.tpu.synchronize()
    assert torch.tpu.max_memory_allocated() - before < x.nbytes


def test_reading_back_every_layout():
    """Into a new tensor, into one that lies alike, and into one that does not."""
    base = torch.randn(2, 4, 6, 8, generator=torch.Generator().manual_seed(0))
    complex_base = torch.randn(3, 5, dtype=torch.complex64)
    views = [
        lambda x: x,
        lambda x: x[1],
        lambda x: x[1, 2, 3],
        lambda x: x[1, 2, 3, 4],
        lambda x: x[:, 1:3],
        lambda x: x[..., ::2],
        lambda x: x.transpose(0, 3),
        lambda x: x[:1].expand(5, 4, 6, 8),
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.to(memory_format=torch.channels_last)[:, 1],
        lambda x: x.view(torch.int32),
        lambda x: x.view(torch.uint8)[0],
        lambda x: x[:0],
    ]
    cases = [(view, base) for view in views]
    cases += [(f, complex_base) for f in (torch.conj, lambda x: x.conj().imag, torch.t)]
    for view, host in cases:
        expected, device = view(host), view(host.to("tpu"))
        torch.testing.assert_close(device.cpu(), expected, rtol=0, atol=0)
        assert device.cpu().stride() == expected.cpu().clone().stride()
        alike = torch.empty_like(expected).copy_(device)
        other = torch.empty(expected.shape[::-1], dtype=expected.dtype)
        other = other.permute(tuple(range(other.dim() - 1, -1, -1))).copy_(device)
        for got in (alike, other):
            torch.testing.assert_close(got, expected, rtol=0, atol=0)
        if expected.numel() == 1:
            assert device.item() == expected.item()
        assert device.tolist() == expected.tolist()
