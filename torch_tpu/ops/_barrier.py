"""A fence for the compiler: what is computed from its results is not moved before it, nor merged
with what its arguments were computed by. The values are the arguments'."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, cast, overload

import torch

from torch_tpu.pallas import _jax
from torch_tpu.pallas._op import Definition, Described
from torch_tpu.pallas._signature import Parameter


class _Barrier(Definition):
    """Its StableHLO is one op, so JAX is not asked for it."""

    def result_types(self, described: Sequence[Described]) -> list[_jax.TypeText]:
        ((_, types),) = described
        return [(kind, tuple(dims)) for kind, dims in types]

    def _lower(self, described: list[Described], platform: str, precision: str) -> Any:
        types = self.result_types(described)
        texts = ["tensor<" + "".join(f"{d}x" for d in dims) + f"{kind}>" for kind, dims in types]
        names = [f"%arg{i}" for i in range(len(texts))]
        listed = ", ".join(texts)
        symbol = "optimization_barrier_" + hashlib.sha256(listed.encode()).hexdigest()[:16]
        given = ", ".join(f"{n}: {t}" for n, t in zip(names, texts, strict=True))
        results = [f"%0#{i}" for i in range(len(texts))] if len(texts) > 1 else ["%0"]
        pack = f"%0:{len(texts)}" if len(texts) > 1 else "%0"
        text = (
            f"func.func private @{symbol}({given}) -> ({listed}) {{\n"
            f"  {pack} = stablehlo.optimization_barrier {', '.join(names)} : {listed}\n"
            f"  return {', '.join(results)} : {listed}\n"
            "}"
        )
        return symbol, text, types, types


def _no_run(_: dict[str, Any]) -> Sequence[Any]:
    raise AssertionError("the barrier has a lowering of its own")


_op = _Barrier(
    "torch_tpu::optimization_barrier",
    [Parameter("tensors", "Tensor[]")],
    _no_run,
    None,
    differentiable=False,
    x64=True,
)


class _Fence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ops.torch_tpu.optimization_barrier(list(tensors)))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        there = [grad for grad in grads if grad is not None]
        fenced = iter(torch.ops.torch_tpu.optimization_barrier(there) if there else ())
        return tuple(None if grad is None else next(fenced) for grad in grads)


@overload
def optimization_barrier(tensors: torch.Tensor, /) -> torch.Tensor: ...
@overload
def optimization_barrier(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]: ...
@overload
def optimization_barrier(tensors: Sequence[torch.Tensor], /) -> tuple[torch.Tensor, ...]: ...


def optimization_barrier(*tensors: Any) -> Any:
    """The same tensors behind a fence for the compiler, one or several at once. Gradients pass a
    fence of their own.

    >>> import torch
    >>> x = torch.ones(2, device="tpu")
    >>> a, b = torch.tpu.ops.optimization_barrier(x, x + 1)
    >>> a
    tensor([1., 1.], device='tpu:0')
    """
    several = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    if not several or not all(
        isinstance(t, torch.Tensor) and t.device.type == "tpu" for t in several
    ):
        raise TypeError(f"[optimization_barrier] expected tensors on 'tpu', got {several!r}")
    results = cast(tuple[torch.Tensor, ...], _Fence.apply(*several))
    single = len(tensors) == 1 and several is tensors
    return results[0] if single else results
