"""Compares ops on the device with the CPU: forward, gradient, in-place and out= forms.

A family's test file lists its ops, one `Case` a line:

    @cases(
        Case("gather", torch.gather, lambda make: (make(3, 5), 1, make.index(5, 3, 2))),
        Case("add", torch.add, lambda make: (make(3, 1), make(4)), dtypes=ARITHMETIC),
    )
    def test_index(case, dtype):
        case.check(dtype)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map

import torch_tpu

FLOAT = (torch.float32,)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.uint8)
COMPLEX = (torch.complex64,)
ARITHMETIC = (torch.float32, torch.bfloat16, torch.int64)
ALL = (*FLOATS, *INTS, torch.bool, *COMPLEX)

# Half types: rounding once or twice is both right.
TOLERANCE = {torch.bfloat16: (1.6e-2, 1e-2), torch.float16: (2e-3, 1e-3)}


class Make:
    """Makes CPU inputs of the case's dtype, always the same ones."""

    def __init__(self, dtype: torch.dtype, grad: bool) -> None:
        self.dtype = dtype
        self.grad = grad
        self.generator = torch.Generator().manual_seed(0)

    def __call__(
        self,
        *shape: int,
        low: float = -3.0,
        high: float = 3.0,
        dtype: torch.dtype | None = None,
        grad: bool = True,
    ) -> torch.Tensor:
        """Uniform in [low, high); integers in that range too (unsigned: from 0)."""
        dtype = dtype or self.dtype
        if dtype == torch.bool:
            return torch.rand(shape, generator=self.generator) < 0.5
        if not dtype.is_floating_point and not dtype.is_complex:
            bottom = max(math.floor(low), torch.iinfo(dtype).min)
            top = max(bottom + 1, math.ceil(high))
            return torch.randint(bottom, top, shape, generator=self.generator).to(dtype)
        x = torch.rand(shape, generator=self.generator, dtype=torch.float64) * (high - low) + low
        if dtype.is_complex:
            imag = torch.rand(shape, generator=self.generator, dtype=torch.float64)
            x = torch.complex(x, imag * (high - low) + low)
        return x.to(dtype).requires_grad_(self.grad and grad)

    def index(self, size: int, *shape: int, low: int = 0) -> torch.Tensor:
        """Indices below `size`."""
        return torch.randint(low, size, shape, generator=self.generator)

    def permutation(self, size: int) -> torch.Tensor:
        return torch.randperm(size, generator=self.generator)

    def mask(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self.generator) < 0.5


def to_device(tree: Any) -> Any:
    def move(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return x.detach().to("tpu").requires_grad_(x.requires_grad)

    return tree_map(move, tree)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor)]


def untracked(tree: Any) -> Any:
    return tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, tree)


@dataclass(frozen=True)
class Case:
    """One op with one set of inputs.

    `inputs` gets a `Make` and returns the positional arguments, or a tuple of them and a dict of
    keyword arguments as its last element. In-place and out= forms are tested when the op has them
    (CPU tells); `inplace` and `out` switch that off. `check_values=False` compares only dtypes and
    shapes, for ops that draw random numbers or leave something undefined.
    """

    name: str
    fn: Callable[..., Any]
    inputs: Callable[[Make], tuple[Any, ...]]
    dtypes: tuple[torch.dtype, ...] = FLOAT
    grad: bool = True
    inplace: bool = True
    out: bool = True
    check_values: bool = True
    may_fall_back: bool = False
    rtol: float | None = None
    atol: float | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)

    def make(self, dtype: torch.dtype) -> tuple[list[Any], dict[str, Any]]:
        args = list(self.inputs(Make(dtype, self.grad)))
        kwargs = dict(self.kwargs)
        if args and isinstance(args[-1], dict):
            kwargs.update(args.pop())
        return args, kwargs

    def compare(self, actual: Any, expected: Any, dtype: torch.dtype, what: str) -> None:
        actual, expected = tensors_of(actual), tensors_of(expected)
        assert len(actual) == len(expected), f"{what}: number of results"
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            where = f"{self.name} {what}, result {i}"
            assert a.device.type == "tpu", where
            assert (a.dtype, a.shape) == (e.dtype, e.shape), where
            if not self.check_values:
                continue
            rtol, atol = self.rtol, self.atol
            if rtol is None and atol is None:
                rtol, atol = TOLERANCE.get(dtype, (None, None))
            a = a.detach().cpu()
            torch.testing.assert_close(
                a,
                e.detach(),
                rtol=rtol,
                atol=atol,
                equal_nan=True,
                msg=lambda text, where=where: f"{where}: {text}",
            )

    def check(self, dtype: torch.dtype) -> None:
        before = set(torch_tpu.coverage())
        args, kwargs = self.make(dtype)
        device_args, device_kwargs = to_device((args, kwargs))
        expected = self.fn(*args, **kwargs)
        actual = self.fn(*device_args, **device_kwargs)
        self.compare(actual, expected, dtype, "forward")
        self.check_gradient(args, kwargs, device_args, device_kwargs, expected, actual, dtype)
        args, kwargs = untracked((args, kwargs))
        if self.inplace:
            self.check_inplace(args, kwargs, dtype)
        if self.out:
            self.check_out(args, kwargs, untracked(expected), dtype)
        if not self.may_fall_back:
            fell_back = set(torch_tpu.coverage()) - before
            assert not fell_back, f"{self.name} ran on the CPU: {sorted(fell_back)}"

    def check_gradient(
        self,
        args: list[Any],
        kwargs: dict[str, Any],
        device_args: list[Any],
        device_kwargs: dict[str, Any],
        expected: Any,
        actual: Any,
        dtype: torch.dtype,
    ) -> None:
        outputs = [
            (e, a)
            for e, a in zip(tensors_of(expected), tensors_of(actual), strict=True)
            if e.requires_grad
        ]
        inputs = [x for x in tensors_of((args, kwargs)) if x.requires_grad]
        if not self.grad or not outputs or not inputs:
            return
        generator = torch.Generator().manual_seed(1)
        weights = [
            torch.rand(e.shape, generator=generator, dtype=torch.float64).to(e.dtype)
            for e, _ in outputs
        ]
        device_inputs = [
            d
            for x, d in zip(
                tensors_of((args, kwargs)), tensors_of((device_args, device_kwargs)), strict=True
            )
            if x.requires_grad
        ]
        wanted = torch.autograd.grad([e for e, _ in outputs], inputs, weights, allow_unused=True)
        got = torch.autograd.grad(
            [a for _, a in outputs], device_inputs, to_device(weights), allow_unused=True
        )
        assert [g is None for g in got] == [w is None for w in wanted], f"{self.name} gradients"
        self.compare(list(got), list(wanted), dtype, "gradient")

    def check_inplace(self, args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> None:
        method = getattr(torch.Tensor, getattr(self.fn, "__name__", "") + "_", None)
        if method is None or not args or not isinstance(args[0], torch.Tensor):
            return
        device_args, device_kwargs = to_device(untracked((args, kwargs)))
        args, kwargs = untracked((args, kwargs))
        try:
            expected = method(*args, **kwargs)
        except (IndexError, RuntimeError, TypeError):
            return  # e.g. an integer tensor cannot take a float result
        actual = method(*device_args, **device_kwargs)
        assert actual is device_args[0]
        self.compare(actual, expected, dtype, "in place")

    def check_out(
        self, args: list[Any], kwargs: dict[str, Any], expected: Any, dtype: torch.dtype
    ) -> None:
        if isinstance(expected, torch.Tensor):
            host_out: Any = torch.empty_like(expected)
        else:
            host_out = tuple(torch.empty_like(e) for e in tensors_of(expected))
        try:
            self.fn(*args, **kwargs, out=host_out)
        except (RuntimeError, TypeError):
            return
        device_args, device_kwargs = to_device((args, kwargs))
        out = tree_map(lambda x: torch.empty(0, dtype=x.dtype, device="tpu"), host_out)
        self.fn(*device_args, **device_kwargs, out=out)
        self.compare(out, expected, dtype, "out=")


def cases(*all_cases: Case) -> Any:
    """Parametrizes a test by case and dtype."""
    params = [
        pytest.param(case, dtype, id=f"{case.name}-{str(dtype).removeprefix('torch.')}")
        for case in all_cases
        for dtype in case.dtypes
    ]
    return pytest.mark.parametrize(("case", "dtype"), params)
