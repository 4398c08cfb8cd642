"""The other ways to call an op: in place, into `out`, on unusual layouts, under functorch.

Each check returns how many calls it compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .compare import (
    DEVICE,
    UNDEFINED_VALUES,
    MismatchError,
    check_layout,
    check_values,
    tensors_of,
    tolerances_of,
)
from .op_checks import (
    OPS,
    Exact,
    SkipError,
    call,
    has_gradient,
    is_random,
    result_of,
    samples_of,
)


@contextmanager
def labelled(form: str) -> Iterator[None]:
    """Errors say in which form the op was called."""
    try:
        yield
    except MismatchError as error:
        raise MismatchError(f"{form}: {error}") from None
    except Exception as error:
        raise type(error)(f"{form}: {error}") from error


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
        if is_random(op, sample, expected):
            continue
        for form, variant in _variants(op, sample):
            try:
                cpu_in, want = call(variant, sample, "cpu")
            except Exception:
                continue
            with labelled(form):
                dev_in, got = call(variant, sample, DEVICE)
                meta = partial(result_of, variant, sample, "meta")
                check_layout(got, want, strides=form in ("strides", "out"), meta=meta)
                if values and form != "strides":
                    process = sample.output_process_fn_grad
                    exact = Exact(variant, sample, False).outputs
                    got, want = process(got), process(want)
                    check_values(tensors_of(got), tensors_of(want), rtol, atol, exact)
                    if form == "in-place":
                        check_values(dev_in[0], cpu_in[0], rtol, atol)
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
            with labelled(form):
                _, got = call(fn, sample, DEVICE)
                check_layout(got, want)
                if form == "vmap":
                    got, want = process(got), process(want)
                check_values(tensors_of(got), tensors_of(want), rtol, atol)
            compared += 1
    if compared == 0:
        raise SkipError("the CPU runs none of its samples")
    return compared
