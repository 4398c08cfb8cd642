"""The autograd function of a kernel, for calls that need a gradient.

torch.library has one, too, but torch.func refuses it, and it takes lists that hold None for no
tensors at all. This one records a single level: a dispatcher kernel is called once per level of
torch.func's transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import _C
from torch.autograd.function import _SingleLevelFunction

if TYPE_CHECKING:
    from torch_tpu.pallas._op import Definition


def tensors_of(values: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among the arguments, those in lists included."""
    out: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            out.append(value)
        elif isinstance(value, (list, tuple)):
            out.extend(v for v in value if isinstance(v, torch.Tensor))
    return out


_HERE = object()  # stands for a tensor


def _without_tensors(values: Sequence[Any]) -> list[Any]:
    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return _HERE
        if isinstance(value, (list, tuple)):
            return [_HERE if isinstance(v, torch.Tensor) else v for v in value]
        return value

    return [one(value) for value in values]


def _with_tensors(plan: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
    left = iter(tensors)

    def one(value: Any) -> Any:
        if isinstance(value, list):
            return [next(left) if v is _HERE else v for v in value]
        return next(left) if value is _HERE else value

    return [one(value) for value in plan]


def differentiated(definition: Definition, op: Any) -> Callable[..., Any]:
    """A function (keys, *args, **kwargs) that calls the op below autograd and records it."""
    parameters = definition.parameters
    positional = sum(not p.keyword_only for p in parameters)
    keywords = [p.name for p in parameters if p.keyword_only]

    def forward(ctx: Any, keys: Any, plan: list[Any], *tensors: torch.Tensor) -> Any:
        values = _with_tensors(plan, tensors)
        named = dict(zip(keywords, values[positional:], strict=True))
        with _C._AutoDispatchBelowAutograd():
            below = keys & _C._after_autograd_keyset
            result = op.redispatch(below, *values[:positional], **named)
        outputs = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        ctx.set_materialize_grads(False)
        ctx.plan = plan
        ctx.count = len(tensors)
        ctx.save_for_backward(*tensors, *(outputs if definition.backward else ()))
        return outputs

    def backward(ctx: Any, *grads: Any) -> Any:
        tensors = list(ctx.saved_tensors[: ctx.count])
        outputs = list(ctx.saved_tensors[ctx.count :])
        found: list[Any] = [None] * ctx.count
        wanted = [i for i in range(ctx.count) if ctx.needs_input_grad[2 + i]]
        if wanted and any(grad is not None for grad in grads):
            values = _with_tensors(ctx.plan, tensors)
            results = definition.gradient().overload(*values, outputs, list(grads), wanted)
            for i, grad in zip(wanted, results, strict=True):
                found[i] = grad
        return (None, None, *found)

    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    made: Any = type(op._opname, (_SingleLevelFunction,), body)

    def apply(*args: Any) -> Any:
        outputs = made.apply(*args)
        if definition.num_results is None:
            return list(outputs)
        return outputs[0] if definition.num_results == 1 else outputs

    def call(keys: Any, *args: Any, **named: Any) -> Any:
        values = definition.bind(args, named)
        given = (keys, _without_tensors(values), *tensors_of(values))
        if not _C._are_functorch_transforms_active():
            return apply(*given)
        from torch._functorch.utils import enable_single_level_autograd_function

        with enable_single_level_autograd_function():
            return apply(*given)

    return call
