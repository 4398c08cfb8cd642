"""The samples of an OpInfo entry under torch.compile: values, gradients and writes against the CPU.

The function is called twice, since the second call is the one that finds its program."""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.testing._internal import common_methods_invocations

from .compare import (
    DEVICE,
    UNDEFINED_VALUES,
    check_layout,
    check_values,
    tensors_of,
    tolerances_of,
)
from .op_checks import (
    OPS,
    TIES,
    Exact,
    SkipError,
    _other_order,
    call,
    cpu_results,
    differentiable,
    gradients,
    has_gradient,
    is_random,
    result_of,
    samples_of,
)

OP_BY_OP = "runs op by op instead of as one program. The reason: "


def check_compiled(name: str, dtype: torch.dtype, most: int, dynamic: bool = False) -> Any:
    """What was compared, how many graphs Dynamo made of it, and why any of them is no program."""
    counters = torch._dynamo.utils.counters
    counters.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        samples = _check(name, dtype, most, dynamic)
    found = [str(warning.message).partition(OP_BY_OP)[2] for warning in caught]
    breaks = counters["graph_break"]
    return {
        "samples": samples,
        "graphs": sum(counters["torch_tpu"].values()),
        "op_by_op": sorted({" ".join(reason.split())[:300] for reason in found if reason}),
        "breaks": [" ".join(reason.split())[:100] for reason in breaks],
    }


def _check(name: str, dtype: torch.dtype, most: int, dynamic: bool) -> int:
    op = OPS[name]
    compared = 0
    for sample, cpu_in, expected in cpu_results(op, dtype, most):
        with suppress(_NotForPyTorchError):
            _check_sample(op, sample, dtype, cpu_in, expected, dynamic)
            compared += 1
    if compared == 0:
        raise SkipError("PyTorch runs or compiles none of its samples on the CPU")
    if op.inplace_variant is not None:
        for sample in samples_of(op, dtype, 1, False):
            with suppress(_NotForPyTorchError):
                _check_in_place(op, sample, dtype, dynamic)
    return compared


def _compiled(op: Any, dynamic: bool, backend: str = "tpu") -> Any:
    """Nothing is left of the sample before."""
    torch._dynamo.reset()

    def function(x: Any, *args: Any, **kwargs: Any) -> Any:
        return op(x, *args, **kwargs)

    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    return partial(_named_call, op, compiled)


def _named_call(op: Any, compiled: Any, *args: Any, **kwargs: Any) -> Any:
    """`call` asks for the op's name."""
    del op
    return compiled(*args, **kwargs)


def _as_it_is(op: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of OpInfo's own seeding around a call, which no graph holds: Dynamo would give up
    the whole function and nothing would be checked."""
    return op(*args, **kwargs)


class _NotForPyTorchError(Exception):
    """AOTAutograd refuses the call on the CPU, too."""


def _call_compiled(op: Any, compiled: Any, sample: Any, dynamic: bool) -> tuple[Any, Any]:
    try:
        with mock.patch.object(common_methods_invocations, "wrapper_set_seed", _as_it_is):
            return call(compiled, sample, DEVICE)
    except Exception:
        try:
            call(_compiled(op, dynamic, "aot_eager"), sample, "cpu")
        except Exception as error:
            raise _NotForPyTorchError from error
        raise


def _check_sample(
    op: Any, sample: Any, dtype: torch.dtype, cpu_in: Any, expected: Any, dynamic: bool
) -> None:
    rtol, atol = tolerances_of(op, dtype)
    grad = has_gradient(op, dtype)
    compiled = _compiled(op, dynamic)
    for _ in range(2):
        dev_in, actual = _call_compiled(op, compiled, sample, dynamic)
        meta = partial(result_of, op, sample, "meta")
        check_layout(actual, expected, meta=meta)
        if op.name in UNDEFINED_VALUES or is_random(op, sample, expected):
            continue
        if op.name in TIES and _other_order(op, sample, actual, expected):
            continue
        exact = Exact(op, sample, grad)
        out, ref = differentiable(sample, actual), differentiable(sample, expected)
        check_values(out, ref, rtol, atol, exact.outputs)
        if not grad:
            continue
        theirs = gradients(cpu_in, ref)
        if theirs is None:
            continue
        ours = gradients(dev_in, out)
        check_values(ours, theirs, rtol, atol, exact.gradients, "gradient")
        cpu_in, expected = call(op, sample, "cpu")  # the graph of autograd is used up


def _check_in_place(op: Any, sample: Any, dtype: torch.dtype, dynamic: bool) -> None:
    if not isinstance(sample.input, torch.Tensor) or sample.broadcasts_input:
        return
    try:
        cpu_in, expected = call(op.inplace_variant, sample, "cpu")
    except Exception:
        return
    rtol, atol = tolerances_of(op, dtype)
    compiled = _compiled(op.inplace_variant, dynamic)
    dev_in, actual = _call_compiled(op.inplace_variant, compiled, sample, dynamic)
    check_layout(actual, expected, meta=partial(result_of, op.inplace_variant, sample, "meta"))
    if op.name in UNDEFINED_VALUES or is_random(op, sample, expected):
        return
    exact = Exact(op, sample, False).outputs
    check_values(tensors_of(actual), tensors_of(expected), rtol, atol, exact, "in place: result")
    check_values(dev_in[0], cpu_in[0], rtol, atol, exact, "in place: input")
