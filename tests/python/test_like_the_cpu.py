"""What PyTorch's own tests found: the same values, errors and warnings as on the CPU.

Each case is a function of a device. A value that only the device can check raises when it is
read."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.deterministic import fill_uninitialized_memory

Case = Callable[[str], Any]
aten = torch.ops.aten

ERRORS: dict[str, Case] = {
    "max of nothing": lambda d: torch.max(torch.ones(0, device=d)),
    "max along nothing": lambda d: torch.max(torch.ones(2, 0, device=d), 1),
    "integer // 0": lambda d: torch.tensor([4, -3], device=d) // 0,
    "integer // tensor": lambda d: torch.tensor([4], device=d) // torch.tensor([0], device=d),
    "integer % 0": lambda d: torch.tensor([4, -3], device=d) % 0,
    "fmod by 0": lambda d: torch.fmod(torch.tensor([4], device=d), torch.tensor([0], device=d)),
    "truncated by 0": lambda d: torch.div(torch.tensor([4], device=d), 0, rounding_mode="trunc"),
    "number % tensor": lambda d: torch.remainder(7, torch.tensor([3, 0], device=d)),
    "no probability": lambda d: F.binary_cross_entropy(
        torch.tensor([1.5], device=d), torch.ones(1, device=d)
    ),
    "int32 targets": lambda d: F.cross_entropy(
        torch.zeros(2, 3, device=d), torch.ones(2, dtype=torch.int32, device=d)
    ),
    "byte mask of another size": lambda d: torch.zeros(2, device=d).__setitem__(
        torch.ones(3, dtype=torch.uint8, device=d), 9.0
    ),
    "byte mask of one value": lambda d: torch.zeros(2, device=d).__setitem__(
        torch.ones(2, dtype=torch.uint8, device=d), 9.0
    ),
    "upsampled integers": lambda d: F.interpolate(
        torch.ones(1, 1, 4, dtype=torch.int32, device=d), scale_factor=2
    ),
    "upsampled without a batch": lambda d: aten.upsample_bilinear2d(
        torch.ones(1, 2, 3, device=d), [4, 4], False
    ),
    "convolution of two dtypes": lambda d: F.conv2d(
        torch.ones(1, 1, 4, 4, device=d), torch.ones(1, 1, 2, 2, dtype=torch.float64, device=d)
    ),
    "bias of another dtype": lambda d: F.conv2d(
        torch.ones(1, 1, 4, 4, device=d),
        torch.ones(1, 1, 2, 2, device=d),
        torch.ones(1, dtype=torch.float64, device=d),
    ),
    "complex index_fill": lambda d: torch.ones(3, device=d).index_fill_(
        0, torch.tensor([0], device=d), 1 + 1j
    ),
    "index into nothing": lambda d: torch.ones(2, 0, device=d)[:, [0, 1]],
    "nonzero into floats": lambda d: torch.nonzero(
        torch.ones(3, device=d), out=torch.empty(0, device=d)
    ),
    "eigh of NaN": lambda d: torch.linalg.eigh(torch.full((3, 3), math.nan, device=d)),
    "indices of other sizes than gradients": lambda d: aten.adaptive_max_pool2d_backward(
        torch.ones(1, 2, 7, 7, device=d),
        torch.ones(1, 2, 7, 7, device=d),
        torch.ones(1, 2, 3, 3, dtype=torch.long, device=d),
    ),
    "indices of fewer dimensions": lambda d: aten.adaptive_max_pool3d_backward(
        torch.ones(1, 2, 7, 7, 7, device=d),
        torch.ones(1, 2, 3, 3, 3, device=d),
        torch.ones(1, 2, 3, 3, dtype=torch.long, device=d),
    ),
    "gradients of fewer dimensions": lambda d: aten._adaptive_avg_pool2d_backward(
        torch.ones(1, 2, 7, device=d), torch.ones(1, 2, 3, 3, device=d)
    ),
    "too many dimensions to pad": lambda d: aten.reflection_pad1d(
        torch.ones(3, 3, 10, 10, device=d), [2, 2]
    ),
    "adaptive maximum of integers": lambda d: F.adaptive_max_pool2d(
        torch.ones(1, 2, 7, 7, dtype=torch.long, device=d), 2
    ),
    "weights of another dtype": lambda d: F.nll_loss(
        torch.zeros(0, 4, device=d),
        torch.zeros(0, dtype=torch.long, device=d),
        torch.ones(4, dtype=torch.float64, device=d),
    ),
    "complex value of addcmul": lambda d: torch.addcmul(*[torch.ones(2, device=d)] * 3, value=1j),
    "complex weight of lerp": lambda d: torch.lerp(*[torch.ones(2, device=d)] * 2, 1j),
    "bools clamped": lambda d: torch.ones(2, dtype=torch.bool, device=d).clamp(True),
    "foreach: bools clamped": lambda d: torch._foreach_clamp_min(
        [torch.ones(2, dtype=torch.bool, device=d)], True
    ),
    "foreach: a bool subtracted": lambda d: torch._foreach_sub([torch.ones(2, device=d)], True),
    "foreach: alpha is a bool": lambda d: torch._foreach_add(
        [torch.ones(2, device=d)], [torch.ones(2, device=d)], alpha=True
    ),
}


def backward_in_place(activation: Callable[[Tensor], Tensor], device: str) -> None:
    x = torch.tensor([-1.0, 1.0], device=device, requires_grad=True)
    activation(x.clone()).sum().backward()


for function, numbers in ((F.leaky_relu_, (-2,)), (F.rrelu_, (-5.0, 1.0)), (F.elu_, (-1.0,))):
    ERRORS[f"backward after {function.__name__} of a negative slope"] = partial(
        backward_in_place, lambda x, f=function, n=numbers: f(x, *n)
    )


def raised(case: Case, device: str) -> tuple[type, str]:
    try:
        result = case(device)
        for part in result if isinstance(result, (tuple, list)) else (result,):
            part.cpu()
    except Exception as error:
        return type(error), str(error).splitlines()[0]
    return type(None), ""


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    expected = raised(ERRORS[name], "cpu")
    assert expected[0] is not type(None)
    assert raised(ERRORS[name], "tpu") == expected


def infinities(dtype: torch.dtype) -> Tensor:
    parts = (math.inf, -math.inf, math.nan, 0.0, 1.0)
    return torch.tensor([complex(a, b) for a in parts for b in parts], dtype=dtype)


def out_of_a_view(make: Callable[..., Tensor], device: str) -> Tensor:
    x = torch.zeros(2, 3, device=device)
    make(0, 3, 4, out=x.narrow(1, 1, 2))
    return x


VALUES: dict[str, Case] = {
    "linspace of integers": lambda d: torch.linspace(1, 255, 11, dtype=torch.int64, device=d),
    "linspace of bytes": lambda d: torch.linspace(-1, 1, 7, dtype=torch.uint8, device=d),
    "linspace into a view": lambda d: out_of_a_view(torch.linspace, d),
    "logspace into a view": lambda d: out_of_a_view(torch.logspace, d),
    "eigh of a small NaN": lambda d: torch.linalg.eigh(torch.full((2, 2), math.nan, device=d))[0],
    "int64 of what is too large": lambda d: torch.tensor([3e38, -3e38, math.nan, 2.5], device=d).to(
        torch.int64
    ),
    "int32 of what is too large": lambda d: torch.tensor(
        [3e38, -3e38, math.nan, -2.5], device=d
    ).to(torch.int32),
    "log of infinities": lambda d: torch.view_as_real(infinities(torch.complex128).to(d).log()),
    "log10 of infinities": lambda d: torch.view_as_real(infinities(torch.complex64).to(d).log10()),
    "fill of repeated elements": lambda d: torch.zeros(1, 3, device=d).expand(4, 3).fill_(2),
    "threshold of repeated elements": lambda d: F.threshold(
        torch.tensor([[0.0, 1.0, 2.0]], device=d).expand(4, 3), 1.0, 5.0, inplace=True
    ),
    "fill of overlapping elements": lambda d: torch.empty_strided((2, 3), (1, 1), device=d).fill_(
        2
    ),
    "copysign of a CPU number": lambda d: torch.copysign(
        torch.tensor(1.0), torch.tensor([-2.0, 3.0], device=d)
    ),
    "foreach of CPU numbers": lambda d: torch._foreach_mul(
        [torch.ones(2, device=d)], [torch.tensor(3.0)]
    )[0],
    "sum of 14 dimensions": lambda d: torch.ones((2,) * 12 + (3, 5), device=d).sum(-1),
    "sum of every other of 14": lambda d: torch.ones((2,) * 14, device=d).sum(
        tuple(range(0, 14, 2))
    ),
    "index_reduce of half": lambda d: torch.full(
        (2,), 1.1, dtype=torch.float16, device=d
    ).index_reduce(
        0,
        torch.tensor([0, 0, 0, 1], device=d),
        torch.tensor([1.3, 1.7, 1.9, 0.3], dtype=torch.float16, device=d),
        "prod",
    ),
    "no integers drawn": lambda d: torch.randn(0, 3, dtype=torch.int16, device=d),
    "margin of one row": lambda d: F.multi_margin_loss(
        torch.ones(4, device=d), torch.tensor(3, device=d), reduction="none"
    ),
    "labels of one row": lambda d: F.multilabel_margin_loss(
        torch.ones(4, device=d), torch.tensor([3, 0, -1, 1], device=d), reduction="none"
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = VALUES[name]("cpu")
        torch.testing.assert_close(VALUES[name]("tpu").cpu(), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz])
def test_float8_without_negative_zero(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -1.5, 300.0, -1e6, math.inf, -math.inf, math.nan, 0.001])
    there = x.to("tpu").to(dtype)
    assert torch.equal(there.cpu().view(torch.uint8), x.to(dtype).view(torch.uint8))
    torch.testing.assert_close(there.float().cpu(), x.to(dtype).float(), equal_nan=True)
    assert torch.full((2,), 2.5, dtype=dtype, device="tpu").tolist() == [2.5, 2.5]


WARNINGS: dict[str, Case] = {
    "byte mask": lambda d: torch.arange(4.0, device=d)[
        torch.tensor([1, 0, 1, 0], dtype=torch.uint8, device=d)
    ],
    "byte mask written": lambda d: torch.arange(4.0, device=d).__setitem__(
        torch.tensor([1, 0, 1, 0], dtype=torch.uint8, device=d), torch.ones(2, device=d)
    ),
    "resized output": lambda d: torch.add(torch.ones(3, device=d), 1, out=torch.ones(5, device=d)),
    "random beyond precision": lambda d: torch.empty(3, dtype=torch.float16, device=d).random_(
        -3000, 5
    ),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_warnings(name: str) -> None:
    def said(device: str) -> set[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            WARNINGS[name](device)
        return {str(w.message)[:40] for w in caught}

    expected = said("cpu")
    assert expected
    assert said("tpu") == expected
    if name != "random beyond precision":  # said when its program is made
        assert said("tpu") == expected


LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "convolution": lambda: torch.nn.Conv2d(3, 4, 3),
    "transposed": lambda: torch.nn.ConvTranspose2d(3, 4, 3),
    "convolution 3d": lambda: torch.nn.Conv3d(3, 4, 3),
    "reflected": lambda: torch.nn.ReflectionPad2d(1),
    "replicated 3d": lambda: torch.nn.ReplicationPad3d(1),
    "pooled 3d": lambda: torch.nn.MaxPool3d(2),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("last", [False, True])
def test_channels_last_goes_through(name: str, last: bool) -> None:
    volume = name.endswith("3d")
    format = torch.channels_last_3d if volume else torch.channels_last

    def strides(device: str) -> list[tuple[int, ...]]:
        x = torch.ones(2, 3, *[8] * (3 if volume else 2)).to(device)
        x = x.to(memory_format=format if last else torch.contiguous_format).requires_grad_()
        layer = LAYERS[name]().to(device)
        y = layer(x)
        grads = torch.autograd.grad(y, [x, *layer.parameters()], torch.ones_like(y))
        return [t.stride() for t in (y, *grads)]

    assert strides("tpu") == strides("cpu")


def test_channels_of_one_volume_come_last() -> None:
    x = torch.randn(1, 3, 6, 6, 6, device="tpu").to(memory_format=torch.channels_last_3d)[0]
    y, index = F.max_pool3d(x, 2, return_indices=True)
    assert y.stride() == index.stride() == (1, 27, 9, 3)
    torch.testing.assert_close(y.cpu(), F.max_pool3d(x.cpu(), 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.uint8, torch.bool])
def test_unwritten_memory_with_deterministic_algorithms(dtype: torch.dtype) -> None:
    def is_known(x: Tensor) -> bool:
        if dtype.is_floating_point:
            return bool(x.isnan().all())
        return bool((x == (True if dtype == torch.bool else torch.iinfo(dtype).max)).all())

    before = fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    try:
        assert before
        assert is_known(torch.empty(10, 9, dtype=dtype, device="tpu"))
        assert is_known(torch.empty_strided((10, 9), (1, 5), dtype=dtype, device="tpu"))
        grown = torch.zeros(4, dtype=dtype, device="tpu").resize_(9)
        assert is_known(grown[4:])
        assert not grown[:4].any()
    finally:
        torch.use_deterministic_algorithms(False)


def test_lazy_clones_are_copied_on_write() -> None:
    is_cow, address = torch._C._is_cow_tensor, torch._C._data_address
    x = torch.arange(4.0, device="tpu")
    where = address(x)
    clone = x._lazy_clone()
    assert is_cow(x)
    assert is_cow(clone)
    assert address(clone) == where
    x.view(2, 2)[0] += 1
    assert not is_cow(x)
    assert address(x) != where
    assert is_cow(clone)
    assert clone.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert x.tolist() == [1.0, 2.0, 2.0, 3.0]
    clone.mul_(2)  # the last one keeps the address
    assert not is_cow(clone)
    assert address(clone) == where
    assert clone.tolist() == [0.0, 2.0, 4.0, 6.0]
    # Its end, and that of a clone of a clone.
    third = clone._lazy_clone()._lazy_clone()
    del clone
    assert third.tolist() == [0.0, 2.0, 4.0, 6.0]
