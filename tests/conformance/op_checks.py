"""The samples of an OpInfo entry, and their values and gradients against the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.testing._internal.common_methods_invocations import op_db

from .compare import (
    DEVICE,
    UNDEFINED_VALUES,
    MismatchError,
    check_layout,
    check_values,
    move,
    tensors_of,
    tolerances_of,
    widen,
)

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "complex64": torch.complex64,
}
# Their tensors of indices belong on the CPU, whatever device the input is on.
CPU_ARGUMENTS = ("tensor_split",)


# Which of several equal elements they name is left open.
TIES = ("topk", "sort", "msort", "argsort", "kthvalue")


class SkipError(Exception):
    """Nothing to check here, and why."""


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


OPS = {full_name(op): op for op in op_db}


def dtypes_of(op: Any) -> list[str]:
    return [name for name, dtype in DTYPES.items() if dtype in op.dtypes]


def spread(samples: Iterable[Any], most: int) -> list[Any]:
    """The first few samples and then others from all over the list."""
    found = list(itertools.islice(samples, 400))
    if len(found) <= most:
        return found
    head = most // 2
    step = (len(found) - head) / (most - head)
    return found[:head] + [found[head + int(i * step)] for i in range(most - head)]


def samples_of(op: Any, dtype: torch.dtype, most: int, grad: bool) -> list[Any]:
    torch.manual_seed(0)
    return spread(op.sample_inputs("cpu", dtype, requires_grad=grad), most)


def has_gradient(op: Any, dtype: torch.dtype) -> bool:
    floating = dtype.is_floating_point or dtype.is_complex
    return floating and bool(op.supports_autograd) and dtype in op.backward_dtypes


def call(fn: Any, sample: Any, device: str) -> tuple[Any, Any]:
    """The sample's tensors on that device, and what `fn` gives for them."""
    inputs = move((sample.input, tuple(sample.args), dict(sample.kwargs)), device)
    op = fn.args[0] if isinstance(fn, partial) else fn
    if getattr(op, "name", "") in CPU_ARGUMENTS:
        inputs = (inputs[0], tuple(sample.args), dict(sample.kwargs))
    torch.manual_seed(0)
    return inputs, fn(inputs[0], *inputs[1], **inputs[2])


def result_of(fn: Any, sample: Any, device: str) -> Any:
    return call(fn, sample, device)[1]


def gradients(inputs: Any, outputs: list[torch.Tensor]) -> Any:
    """Of all differentiable outputs with fixed cotangents, for all inputs that want one."""
    leaves = [x for x in tensors_of(inputs) if x.requires_grad]
    roots = [x for x in outputs if x.requires_grad]
    if not leaves or not roots:
        return None
    generator = torch.Generator().manual_seed(1)
    cotangents = [
        torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype).to(x.device)
        for x in roots
    ]
    return torch.autograd.grad(roots, leaves, cotangents, allow_unused=True)


def differentiable(sample: Any, result: Any) -> list[torch.Tensor]:
    """The sample says which function of the result is well defined (signs of eigenvectors…)."""
    return tensors_of(sample.output_process_fn_grad(result))


def cpu_results(op: Any, dtype: torch.dtype, most: int) -> Iterator[tuple[Any, Any, Any]]:
    """Samples that the CPU can run, with their inputs and results there."""
    for sample in samples_of(op, dtype, most, has_gradient(op, dtype)):
        try:
            inputs, results = call(op, sample, "cpu")
        except Exception:  # not a sample for it
            continue
        yield sample, inputs, results


def check_values_and_gradients(name: str, dtype: torch.dtype, most: int) -> int:
    op = OPS[name]
    grad = has_gradient(op, dtype)
    rtol, atol = tolerances_of(op, dtype)
    compared = 0
    for sample, cpu_in, expected in cpu_results(op, dtype, most):
        dev_in, actual = call(op, sample, DEVICE)
        check_layout(actual, expected, meta=partial(result_of, op, sample, "meta"))
        if op.name in UNDEFINED_VALUES or is_random(op, sample, expected):
            compared += 1
            continue
        if op.name in TIES and _other_order(op, sample, actual, expected):
            compared += 1
            continue
        exact = Exact(op, sample, grad)
        out, ref = differentiable(sample, actual), differentiable(sample, expected)
        check_values(out, ref, rtol, atol, exact.outputs)
        if grad:
            theirs = gradients(cpu_in, ref)
            if theirs is not None:
                ours = gradients(dev_in, out)
                check_values(ours, theirs, rtol, atol, exact.gradients, "gradient")
        compared += 1
    if compared == 0:
        raise SkipError("the CPU runs none of its samples")
    return compared


def is_random(op: Any, sample: Any, expected: Any) -> bool:
    """Draws numbers with these arguments (dropout in training): another seed, another result."""
    if not any(key in repr(sample.kwargs) + op.name for key in ("training", "dropout")):
        return False
    inputs = move((sample.input, tuple(sample.args), dict(sample.kwargs)), "cpu")
    plain = torch.manual_seed
    for seed in range(1, 9):  # a few bits may well come out the same
        plain(seed)
        # Some OpInfos set a seed of their own before each call.
        with mock.patch("torch.manual_seed", lambda _, seed=seed: plain(seed)):
            again = op(inputs[0], *inputs[1], **inputs[2])
        pairs = zip(tensors_of(again), tensors_of(expected), strict=True)
        if not all(torch.equal(a, b) for a, b in pairs):
            return True
    return False


def _other_order(op: Any, sample: Any, actual: Any, expected: Any) -> bool:
    """Which of several equal elements comes first is left open: the values must be right."""
    ours, theirs = tensors_of(actual)[-1].cpu(), tensors_of(expected)[-1]
    if op.name == "msort":  # no indices, but its gradient goes by them
        ties = theirs.dim() > 0 and bool((theirs.diff(dim=0) == 0).any())
        return ties and torch.equal(ours, theirs)
    if ours.dtype != torch.int64 or torch.equal(ours, theirs):
        return False
    given = 1 if op.name in ("topk", "kthvalue") else 0
    dim = sample.kwargs.get("dim", -1)
    if len(sample.args) > given and "dim" not in sample.kwargs:
        dim = sample.args[given]
    source = sample.input.detach()
    if ours.dim() < source.dim():  # kthvalue without keepdim
        ours, theirs = ours.unsqueeze(dim), theirs.unsqueeze(dim)
    values = [torch.gather(source, dim, index) for index in (ours, theirs)]
    if not torch.equal(*values):
        raise MismatchError("the indices name other values than the CPU's")
    return True


class Exact:
    """The same sample in double precision on the CPU, computed when first needed."""

    def __init__(self, op: Any, sample: Any, grad: bool) -> None:
        self._run = lambda: _in_double(op, sample, grad)
        self._found: tuple[Any, Any] | None = None

    def _get(self) -> tuple[Any, Any]:
        if self._found is None:
            try:
                self._found = self._run()
            except Exception:  # the op has no double precision
                self._found = (None, None)
        return self._found

    def outputs(self) -> Any:
        return self._get()[0]

    def gradients(self) -> Any:
        return self._get()[1]


def _in_double(op: Any, sample: Any, grad: bool) -> tuple[Any, Any]:
    inputs = widen((sample.input, tuple(sample.args), dict(sample.kwargs)))
    torch.manual_seed(0)
    outputs = differentiable(sample, op(inputs[0], *inputs[1], **inputs[2]))
    return outputs, gradients(inputs, outputs) if grad else None
