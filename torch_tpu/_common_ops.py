"""Standard ops over common shapes and dtypes: what `torch-tpu precompile --common` compiles.

A list, not a guess at anybody's model: sizes that models are made of, forward and backward. What a
real program uses beyond it is packed from the program itself.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

FLOATS = ("float32", "bfloat16")
DTYPES = (*FLOATS, "int64")

SHAPES: tuple[tuple[int, ...], ...] = (
    *((), (1,), (16,), (128,), (1024,)),
    *((64, 64), (128, 128), (256, 256), (512, 512), (1024, 1024)),
    *((8, 64, 256), (8, 128, 768), (32, 3, 32, 32)),
)
SQUARES = (64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Case:
    """One call, with what it takes to make its arguments."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    call: Callable[[Tensor], object]

    def run(self) -> None:
        """Compiles the programs of the call by making it."""
        self.call(torch.ones(self.shape, dtype=getattr(torch, self.dtype), device="tpu"))


def _backward(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], object]:
    def call(x: Tensor) -> None:
        x.requires_grad_()
        function(x).sum().backward()

    return call


def _with_copy(function: Callable[[Tensor, Tensor], object]) -> Callable[[Tensor], object]:
    return lambda x: function(x, x.clone())


def _to(dtype: torch.dtype) -> Callable[[Tensor], object]:
    return lambda x: x.to(dtype)


UNARY: dict[str, Callable[[Tensor], object]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "clone": lambda x: x.clone(memory_format=torch.contiguous_format),
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(3),
}
UNARY_FLOAT: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "silu": F.silu,
    "gelu": F.gelu,
}
BINARY: dict[str, Callable[[Tensor, Tensor], object]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "eq": torch.eq,
    "lt": torch.lt,
    "gt": torch.gt,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "add_": lambda x, y: x.add_(y),
    "mul_": lambda x, y: x.mul_(y),
    "copy_": lambda x, y: x.copy_(y),
}
WITH_NUMBER: dict[str, Callable[[Tensor], object]] = {
    "add.number": lambda x: x + 3,
    "sub.number": lambda x: x - 3,
    "rsub.number": lambda x: 3 - x,
    "mul.number": lambda x: x * 3,
    "mul_.number": lambda x: x.mul_(3),
    "eq.number": lambda x: x == 3,
    "lt.number": lambda x: x < 3,
    "gt.number": lambda x: x > 3,
}
WITH_NUMBER_FLOAT: dict[str, Callable[[Tensor], object]] = {
    "div.number": lambda x: x / 3,
    "pow.number": lambda x: x**2,
    "clamp": lambda x: x.clamp(-3, 3),
}
REDUCE: dict[str, Callable[[Tensor], object]] = {
    "sum": torch.sum,
    "amax": torch.amax,
    "amin": torch.amin,
}
REDUCE_LAST: dict[str, Callable[[Tensor], object]] = {
    "sum.last": lambda x: x.sum(-1),
    "sum.last_kept": lambda x: x.sum(-1, keepdim=True),
    "argmax.last": lambda x: x.argmax(-1),
    "max.last": lambda x: x.max(-1),
}
REDUCE_FLOAT: dict[str, Callable[[Tensor], object]] = {
    "mean": torch.mean,
    "softmax": _backward(lambda x: F.softmax(x, -1)),
    "log_softmax": _backward(lambda x: F.log_softmax(x, -1)),
    "layer_norm": _backward(lambda x: F.layer_norm(x, x.shape[-1:])),
    "rms_norm": _backward(lambda x: F.rms_norm(x, x.shape[-1:])),
}


def _elementwise() -> Iterator[Case]:
    for dtype in DTYPES:
        for shape in SHAPES:
            unary = {**UNARY, **WITH_NUMBER, **REDUCE, **(REDUCE_LAST if shape else {})}
            for name, call in unary.items():
                yield Case(name, dtype, shape, call)
            for name, binary in BINARY.items():
                yield Case(name, dtype, shape, _with_copy(binary))
    for dtype in FLOATS:
        for shape in SHAPES:
            floats = {**WITH_NUMBER_FLOAT, **(REDUCE_FLOAT if shape else {})}
            for name, call in floats.items():
                yield Case(name, dtype, shape, call)
            for name, forward in UNARY_FLOAT.items():
                yield Case(name, dtype, shape, _backward(forward))
            yield Case("div", dtype, shape, lambda x: x / x.clone())
            yield Case("dropout", dtype, shape, _backward(lambda x: F.dropout(x, 0.1)))


def _matmul() -> Iterator[Case]:
    for dtype in FLOATS:
        for n in SQUARES:
            yield Case("mm", dtype, (n, n), _backward(lambda x: x @ x.detach().clone()))
            yield Case("linear", dtype, (n, n), _linear)
            yield Case("bmm", dtype, (8, n, 64), lambda x: x @ x.transpose(1, 2))


def _linear(x: Tensor) -> None:
    layer = torch.nn.Linear(x.shape[-1], x.shape[-1], device="tpu", dtype=x.dtype)
    layer(x.requires_grad_()).sum().backward()


def _types() -> Iterator[Case]:
    kinds = (*DTYPES, "float16", "int32", "bool", "uint8")
    for source in kinds:
        for target in kinds:
            if source == target:
                continue
            for shape in SHAPES:
                yield Case("to", source, shape, _to(getattr(torch, target)))


def cases() -> list[Case]:
    """All of them."""
    return [*_elementwise(), *_matmul(), *_types()]


def select(pattern: str = "*", dtypes: Sequence[str] | None = None) -> list[Case]:
    """Those whose name matches the glob, of these dtypes.

    >>> len(select("softmax", ["float32"]))
    12
    """
    known = {case.dtype for case in cases()}
    for dtype in dtypes or ():
        if dtype not in known:
            raise ValueError(f"unknown dtype {dtype!r}; there are {', '.join(sorted(known))}")
    return [
        case
        for case in cases()
        if fnmatch.fnmatchcase(case.name, pattern) and (dtypes is None or case.dtype in dtypes)
    ]
