"""Narrow types: float8 casts, scaled and integer products, packed weights, grouped products."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_tpu

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FLOAT8 = (E4M3, E5M2)


@pytest.fixture(autouse=True)
def no_fallback() -> Any:
    before = set(torch_tpu.coverage())
    yield
    assert not set(torch_tpu.coverage()) - before


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed)).to(dtype)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(
        actual.cpu().double(), expected.double(), rtol=0, atol=0, equal_nan=True
    )


# --- casts ----------------------------------------------------------------------------------------


def every(dtype: torch.dtype) -> torch.Tensor:
    """Every value of a type of one or two bytes."""
    if dtype.itemsize == 1:
        return torch.arange(256, dtype=torch.int16).to(torch.uint8).view(dtype)
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)


def spread(dtype: torch.dtype) -> torch.Tensor:
    """Random numbers of every magnitude, and those at the edges."""
    x = torch.cat([randn(1000, seed=k) * 10.0**k for k in range(-8, 6)])
    edges = [448, 464, 464.1, 480, 57344, 61439, 61440, 65536, 1e30, 0.0, 2**-9, 2**-10, 2**-17]
    edges += [-e for e in edges] + [float("inf"), -float("inf"), float("nan")]
    return torch.cat([x, torch.tensor(edges)]).to(dtype)


@pytest.mark.parametrize("to", FLOAT8)
@pytest.mark.parametrize("source", [torch.bfloat16, torch.float16])
def test_every_half_to_float8(source: torch.dtype, to: torch.dtype) -> None:
    same(every(source).to("tpu").to(to), every(source).to(to))


@pytest.mark.parametrize("to", FLOAT8)
@pytest.mark.parametrize("source", [torch.float32, torch.float64])
def test_float_to_float8(source: torch.dtype, to: torch.dtype) -> None:
    same(spread(source).to("tpu").to(to), spread(source).to(to))


@pytest.mark.parametrize("to", FLOAT8)
@pytest.mark.parametrize("source", [torch.int64, torch.int8, torch.uint8, torch.bool])
def test_integers_to_float8(source: torch.dtype, to: torch.dtype) -> None:
    x = torch.arange(-1000, 1000).to(source)
    same(x.to("tpu").to(to), x.to(to))


@pytest.mark.parametrize("source", FLOAT8)
@pytest.mark.parametrize(
    "to", [torch.float32, torch.float64, torch.bfloat16, torch.float16, *FLOAT8, torch.bool]
)
def test_every_float8_to(source: torch.dtype, to: torch.dtype) -> None:
    same(every(source).to("tpu").to(to), every(source).to(to))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_moves_and_views(dtype: torch.dtype) -> None:
    host = randn(6, 8).to(dtype)
    device = host.to("tpu")
    for view in (lambda x: x.t(), lambda x: x[1:, ::2], lambda x: x.reshape(3, 16)):
        same(view(device), view(host))
    same(device.view(torch.uint8), host.view(torch.uint8))
    same(torch.cat([device, device]), torch.cat([host, host]))
    same(device.clone().fill_(100.0), host.clone().fill_(100.0))
    same(device.float().mul(3).to(dtype), host.float().mul(3).to(dtype))
    index = torch.tensor([3, 0, 5])
    same(device[index.to("tpu")], host[index])


# --- products -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (17, 24, 8), (32, 64, 96), (33, 1000, 40), (8, 2500, 8)]
)
def test_int_mm(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a = torch.randint(-128, 128, (m, k), generator=generator(1), dtype=torch.int8)
    b = torch.randint(-128, 128, (k, n), generator=generator(2), dtype=torch.int8)
    a[0], b[:, 0] = -128, -128  # the largest sum
    expected = (a.long() @ b.long()).int()
    same(torch._int_mm(a.to("tpu"), b.to("tpu")), expected)
    columns = b.t().contiguous().t()
    same(torch._int_mm(a.to("tpu"), columns.to("tpu")), expected)
    out = torch.empty(m, n, dtype=torch.int32, device="tpu")
    torch._int_mm(a.to("tpu"), b.to("tpu"), out=out)
    same(out, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_dynamic_quantization(dtype: torch.dtype) -> None:
    """As quantized linear layers do it: a scale per row of both, an exact product, rescaled."""

    def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.abs().amax(1, keepdim=True).float().clamp(min=1e-12) / 127
        return (x / scale).round().clamp(-128, 127).to(torch.int8), scale

    def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        qx, sx = quantize(x)
        qw, sw = quantize(weight)
        return (torch._int_mm(qx, qw.t()) * sx * sw.t()).to(x.dtype) + bias

    args = (randn(33, 64).to(dtype), randn(48, 64, seed=1).to(dtype), randn(48, seed=2).to(dtype))
    got = layer(*(x.to("tpu") for x in args)).cpu()
    tolerance = {"rtol": 1e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(got, layer(*args), **tolerance)
    exact = args[0].float() @ args[1].float().t() + args[2].float()
    assert (got.float() - exact).abs().max() < 0.02 * exact.abs().max()


SCALED = [
    {},
    {"out_dtype": torch.float32},
    {"out_dtype": torch.bfloat16},
    {"out_dtype": E4M3, "scale_result": torch.tensor(0.25)},
    {"out_dtype": torch.float32, "scale_result": torch.tensor(0.25)},
    {"out_dtype": torch.float32, "bias": randn(24, seed=5)},
    {"out_dtype": torch.bfloat16, "bias": randn(24, seed=5).bfloat16()},
]


@pytest.mark.parametrize("row_wise", [False, True])
@pytest.mark.parametrize("options", SCALED, ids=lambda o: "-".join(o) or "plain")
def test_scaled_mm(options: dict[str, Any], row_wise: bool) -> None:
    a, b = randn(16, 32).to(E4M3), randn(24, 32, seed=1).to(E4M3).t()
    scales = (torch.tensor(0.5), torch.tensor(3.0))
    if row_wise:
        scales = (randn(16, 1).abs(), randn(1, 24, seed=1).abs())
    expected = torch._scaled_mm(a, b, *scales, **options)
    moved = {k: v.to("tpu") if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    got = torch._scaled_mm(*(x.to("tpu") for x in (a, b, *scales)), **moved)
    assert got.dtype == expected.dtype
    # A float8 result may round the other way.
    rtol = 0.13 if expected.dtype == E4M3 else 1e-2 if expected.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(got.cpu().float(), expected.float(), rtol=rtol, atol=1e-2)


@pytest.mark.parametrize("row_wise", [False, True])
def test_scaled_mm_by_recipe(row_wise: bool) -> None:
    a, b = randn(16, 32).to(E4M3), randn(24, 32, seed=1).to(E5M2).t()
    recipe = F.ScalingType.RowWise if row_wise else F.ScalingType.TensorWise
    sa = randn(16, 1).abs() if row_wise else torch.tensor(0.5)
    sb = randn(1, 24, seed=1).abs() if row_wise else torch.tensor(2.0)
    got = F.scaled_mm(
        *(x.to("tpu") for x in (a, b)),
        sa.to("tpu"),
        recipe,
        sb.to("tpu"),
        recipe,
        output_dtype=torch.float32,
    )
    expected = (a.float() * sa) @ (b.float() * sb)
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_scaled_mm_refuses_as_the_cpu_does() -> None:
    a, b = randn(16, 32).to(E4M3), randn(24, 32, seed=1).to(E4M3).t()
    one = torch.tensor(1.0)
    for args in ((a, b.t(), one, one), (a.float(), b, one, one), (a, b, torch.ones(16), one)):
        with pytest.raises((RuntimeError, ValueError)) as expected:
            torch._scaled_mm(*args)
        with pytest.raises(expected.type) as got:
            torch._scaled_mm(*(x.to("tpu") for x in args))
        assert str(got.value)[:60] == str(expected.value)[:60]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weight_int8pack_mm(dtype: torch.dtype) -> None:
    x = randn(5, 64, dtype=dtype)
    w = torch.randint(-128, 128, (32, 64), generator=generator(1), dtype=torch.int8)
    scales = randn(32, seed=2).abs().to(dtype) / 100
    got = torch._weight_int8pack_mm(*(t.to("tpu") for t in (x, w, scales)))
    expected = (x.float() @ w.float().t() * scales.float()).to(dtype)
    torch.testing.assert_close(got.cpu(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("group", [32, 64])
def test_weight_int4pack_mm(group: int) -> None:
    m, n, k = 5, 32, 128
    x = randn(m, k).bfloat16()
    q = torch.randint(0, 16, (n, k), generator=generator(1))
    scales = (randn(k // group, n, 2, seed=2) / 10).bfloat16()
    packed = torch._convert_weight_to_int4pack(
        (q[:, ::2] << 4 | q[:, 1::2]).to(torch.uint8).to("tpu"), 2
    )
    got = torch._weight_int4pack_mm(x.to("tpu"), packed, group, scales.to("tpu"))
    scale, zero = (scales[..., i].float().repeat_interleave(group, 0).t() for i in (0, 1))
    weight = ((q - 8) * scale + zero).bfloat16()
    torch.testing.assert_close(
        got.cpu().float(), x.float() @ weight.float().t(), rtol=2e-2, atol=5e-2
    )


# --- grouped --------------------------------------------------------------------------------------

GROUPS = [[8, 8, 40], [0, 0, 40], [40, 40, 40], [16, 24, 32], [1, 2, 40]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ends", GROUPS, ids=str)
def test_grouped_mm_of_rows(ends: list[int], dtype: torch.dtype) -> None:
    offs = torch.tensor(ends, dtype=torch.int32)
    x, w = randn(40, 16, dtype=dtype), randn(3, 16, 24, seed=1, dtype=dtype)
    got = F.grouped_mm(x.to("tpu"), w.to("tpu"), offs=offs.to("tpu")).cpu()
    expected = F.grouped_mm(x, w, offs=offs)
    rtol, atol = (1e-4, 1e-4) if dtype == torch.float32 else (2e-2, 5e-2)
    used = ends[-1]  # beyond the last group anything may stand
    torch.testing.assert_close(got[:used], expected[:used], rtol=rtol, atol=atol)


@pytest.mark.parametrize("ends", GROUPS[:3], ids=str)
def test_grouped_mm_of_other_forms(ends: list[int]) -> None:
    ends = [e // 8 * 8 for e in ends]
    offs = torch.tensor(ends, dtype=torch.int32)
    cases = [
        (randn(16, 40), randn(40, 24, seed=1), offs),  # along the contracted dimension
        (randn(3, 16, 8), randn(8, 40, seed=1), offs),  # along the columns
        (randn(3, 16, 8), randn(3, 8, 24, seed=1), None),
    ]
    for a, b, o in cases:
        expected = F.grouped_mm(a, b, offs=o)
        got = F.grouped_mm(a.to("tpu"), b.to("tpu"), offs=None if o is None else o.to("tpu"))
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_grouped_mm_keeps_bad_numbers_in_their_group() -> None:
    offs = torch.tensor([16, 40], dtype=torch.int32)
    a, b = randn(8, 40), randn(40, 8, seed=1)
    a[0, 3], b[20, 1] = float("nan"), float("inf")
    expected = F.grouped_mm(a, b, offs=offs)
    got = F.grouped_mm(a.to("tpu"), b.to("tpu"), offs=offs.to("tpu"))
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_grouped_mm_many_rows_one_program() -> None:
    x, w = randn(600, 32), randn(8, 32, 16, seed=1)
    device_x, device_w = x.to("tpu"), w.to("tpu")
    programs = set()
    for seed in range(3):
        cuts = torch.randint(0, 601, (7,), generator=generator(seed)).sort().values
        offs = torch.cat([cuts, torch.tensor([600])]).int()
        got = F.grouped_mm(device_x, device_w, offs=offs.to("tpu"))
        torch.testing.assert_close(got.cpu(), F.grouped_mm(x, w, offs=offs), rtol=1e-4, atol=1e-4)
        programs.add(torch_tpu._C._program_stats()["misses"])
    assert len(programs) == 1


def test_grouped_mm_gradient() -> None:
    offs = torch.tensor([8, 8, 40], dtype=torch.int32)

    def grads(device: str) -> list[torch.Tensor]:
        x = randn(40, 16).to(device).requires_grad_()
        w = randn(3, 16, 24, seed=1).to(device).requires_grad_()
        y = F.grouped_mm(x, w, offs=offs.to(device))
        (y * randn(40, 24, seed=2).to(device)).sum().backward()
        return [x.grad.cpu(), w.grad.cpu()]

    for got, expected in zip(grads("tpu"), grads("cpu"), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_scaled_grouped_mm() -> None:
    ends = [16, 16, 48]
    offs = torch.tensor(ends, dtype=torch.int32)
    x, w = randn(48, 32).to(E4M3), randn(3, 64, 32, seed=1).to(E4M3).transpose(1, 2)
    sx, sw = randn(48, seed=2).abs(), randn(3, 64, seed=3).abs()
    got = torch._scaled_grouped_mm(
        *(t.to("tpu") for t in (x, w, sx, sw)), offs=offs.to("tpu"), out_dtype=torch.bfloat16
    )
    start = 0
    for g, end in enumerate(ends):
        part = (x[start:end].float() * sx[start:end, None]) @ (w[g].float() * sw[g])
        torch.testing.assert_close(got[start:end].cpu().float(), part, rtol=2e-2, atol=5e-2)
        start = end
