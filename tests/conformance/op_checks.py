"""What is checked of one OpInfo entry. Each check returns how many samples it compared."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map

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


def _result(fn: Any, sample: Any, device: str) -> Any:
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


def check_values_and_gradients(name: str, dtype: torch.dtype, most: int) -> int:
    op = OPS[name]
    grad = has_gradient(op, dtype)
    rtol, atol = tolerances_of(op, dtype)
    compared = 0
    for sample in samples_of(op, dtype, most, grad):
        try:
            cpu_in, expected = call(op, sample, "cpu")
        except Exception:  # not a sample the CPU can run
            continue
        dev_in, actual = call(op, sample, DEVICE)
        check_layout(actual, expected, meta=partial(_result, op, sample, "meta"))
        if op.name in UNDEFINED_VALUES or _is_random(op, sample, expected):
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


def _is_random(op: Any, sample: Any, expected: Any) -> bool:
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


# --- forms


def check_forms(name: str, dtype: torch.dtype, most: int) -> int:
    """In-place, out=, non-contiguous, expanded and inference-mode calls; layouts against meta."""
    op = OPS[name]
    rtol, atol = tolerances_of(op, dtype)
    values = op.name not in UNDEFINED_VALUES
    compared = 0
    for sample in samples_of(op, dtype, most, False):
        try:
            _, expected = call(op, sample, "cpu")
        except Exception:
            continue
        if _is_random(op, sample, expected):
            continue
        for form, variant in _variants(op, sample):
            try:
                cpu_in, want = call(variant, sample, "cpu")
            except Exception:
                continue
            try:
                dev_in, got = call(variant, sample, DEVICE)
                meta = partial(_result, variant, sample, "meta")
                check_layout(got, want, strides=form in ("strides", "out"), meta=meta)
                if values and form != "strides":
                    process = sample.output_process_fn_grad
                    exact = Exact(variant, sample, False).outputs
                    got, want = process(got), process(want)
                    check_values(tensors_of(got), tensors_of(want), rtol, atol, exact)
                    if form == "in-place":
                        check_values(dev_in[0], cpu_in[0], rtol, atol)
            except MismatchError as error:
                raise MismatchError(f"{form}: {error}") from None
            except Exception as error:
                raise type(error)(f"{form}: {error}") from error
            compared += 1
    if compared == 0:
        raise SkipError("the CPU runs none of its forms")
    return compared


def _variants(op: Any, sample: Any) -> list[tuple[str, Any]]:
    """The ways to call the op, by name."""
    found: list[tuple[str, Any]] = [
        ("strides", op),
        ("non-contiguous", partial(_with, op, _spaced)),
        ("expanded", partial(_with, op, _expanded)),
        ("channels_last", partial(_with, op, _channels_last)),
        ("neg bit", partial(_with, op, _negated)),
        ("conj bit", partial(_with, op, _conjugated)),
        ("inference_mode", partial(_inference, op)),
    ]
    tensors = tensors_of((sample.input, sample.args))
    if not any(x.dim() == 4 for x in tensors):
        found = [f for f in found if f[0] != "channels_last"]
    if not any(x.is_complex() for x in tensors):
        found = [f for f in found if f[0] != "conj bit"]
    if "batch_norm" in op.name:  # its running statistics are written: no expanded tensors
        found = [f for f in found if f[0] != "expanded"]
    own = isinstance(sample.input, torch.Tensor) and not sample.broadcasts_input
    if own and op.inplace_variant is not None:
        found.append(("in-place", op.inplace_variant))
    if op.supports_out and "out" not in sample.kwargs:
        found.append(("out", partial(_out, op)))
    return found


def _with(op: Any, change: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    def one(t: Any) -> Any:
        return change(t) if isinstance(t, torch.Tensor) and t.layout == torch.strided else t

    x, args, kwargs = tree_map(one, (x, args, kwargs))
    return op(x, *args, **kwargs)


def _spaced(t: torch.Tensor) -> torch.Tensor:
    if t.dim() == 0:
        return t
    wide = torch.empty(*t.shape[:-1], t.shape[-1] * 2, dtype=t.dtype, device=t.device)
    return wide[..., ::2].copy_(t)


def _expanded(t: torch.Tensor) -> torch.Tensor:
    return t[:1].expand(t.shape) if t.dim() > 0 and t.shape[0] > 1 else t


def _channels_last(t: torch.Tensor) -> torch.Tensor:
    return t.to(memory_format=torch.channels_last) if t.dim() == 4 else t


def _negated(t: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(-t) if t.is_floating_point() else t


def _conjugated(t: torch.Tensor) -> torch.Tensor:
    return t.conj() if t.is_complex() else t


def _inference(op: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.inference_mode():
        return op(x, *args, **kwargs)


def _out(op: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        first = op(x, *args, **kwargs)
        blank = tree_map(lambda t: torch.zeros_like(t) if isinstance(t, torch.Tensor) else t, first)
        target = blank if isinstance(blank, torch.Tensor) else tuple(blank)
        return op(x, *args, **kwargs, out=target)


# --- functorch


def check_transforms(name: str, dtype: torch.dtype, most: int) -> int:
    """vmap over the input, and jvp, on the device against the CPU."""
    op = OPS[name]
    rtol, atol = tolerances_of(op, dtype)
    if op.name in UNDEFINED_VALUES:
        raise SkipError("random")
    compared = 0
    for sample in samples_of(op, dtype, most, False):
        if not isinstance(sample.input, torch.Tensor) or sample.input.layout != torch.strided:
            continue

        def mapped(x: Any, *args: Any, **kwargs: Any) -> Any:
            stack = torch.stack([x, x])
            return torch.func.vmap(lambda t: op(t, *args, **kwargs))(stack)

        process = sample.output_process_fn_grad

        def gradient(x: Any, *args: Any, process: Any = process, **kwargs: Any) -> Any:
            def total(t: torch.Tensor) -> torch.Tensor:
                parts = tensors_of(process(op(t, *args, **kwargs)))
                return torch.stack([p.sum() for p in parts if p.is_floating_point()]).sum()

            return torch.func.grad(total)(x)

        def tangent(x: Any, *args: Any, **kwargs: Any) -> Any:
            return torch.func.jvp(lambda t: op(t, *args, **kwargs), (x,), (torch.ones_like(x),))

        forms: list[tuple[str, Any]] = [("vmap", mapped)]
        if op.supports_forward_ad and sample.input.is_floating_point():
            forms.append(("jvp", tangent))
        if has_gradient(op, dtype):
            forms.append(("grad", gradient))
        for form, fn in forms:
            try:
                _, want = call(fn, sample, "cpu")
            except Exception:
                continue
            try:
                _, got = call(fn, sample, DEVICE)
                check_layout(got, want)
                if form == "vmap":
                    got, want = process(got), process(want)
                check_values(tensors_of(got), tensors_of(want), rtol, atol)
            except MismatchError as error:
                raise MismatchError(f"{form}: {error}") from None
            except Exception as error:
                raise type(error)(f"{form}: {error}") from error
            compared += 1
    if compared == 0:
        raise SkipError("the CPU runs none of its samples")
    return compared


# --- errors


def check_errors(name: str) -> dict[str, int]:
    """How many error inputs raise what the CPU raises; the words too."""
    op = OPS[name]
    if op.error_inputs_func is None:
        raise SkipError("no error inputs")
    counts = {"inputs": 0, "same_type": 0, "same_message": 0}
    first = ""
    for error_input in op.error_inputs("cpu"):
        sample = error_input.sample_input
        want = _raised(op, sample, "cpu")
        if want is None:  # the CPU accepts it in this version
            continue
        got = _raised(op, sample, DEVICE)
        counts["inputs"] += 1
        if type(got) is type(want):
            counts["same_type"] += 1
            if _words(got) == _words(want):
                counts["same_message"] += 1
        elif not first:
            first = f"CPU: {_describe(want)}; device: {_describe(got)}"
    if first:
        raise MismatchError(
            f"{counts['same_type']}/{counts['inputs']}/{counts['same_message']} {first}"
        )
    return counts


def _raised(op: Any, sample: Any, device: str) -> Exception | None:
    try:
        _, result = call(op, sample, device)
        for x in tensors_of(result):
            x.cpu()
    except Exception as error:
        return error
    return None


def _words(error: Exception | None) -> str:
    text = str(error).split("\nException raised from")[0].strip()
    return text.replace("tpu:0", "cpu").replace("tpu", "cpu").replace("PrivateUse1", "CPU")


def _describe(error: Exception | None) -> str:
    return "nothing raised" if error is None else f"{type(error).__name__}: {str(error)[:120]}"
