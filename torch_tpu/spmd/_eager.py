"""Ops on tensors of a mesh outside a compiled function: each is a program of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from torch_tpu.spmd._program import Argument, Program
from torch_tpu.spmd._tensor import ShardedTensor, gather
from torch_tpu.spmd._trace import Trace

_aten = torch.ops.aten
_ALIASES = {_aten.detach.default, _aten.alias.default}
_programs: dict[Any, tuple[Program, list[int | None]]] = {}


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One op."""
    if func in _ALIASES:
        return _alias(args[0])
    if func is _aten._local_scalar_dense.default:
        return gather(args[0]).item()
    if func is _aten._to_copy.default and _leaves(kwargs.get("device")):
        return func(gather(args[0]), **kwargs)
    if func is _aten.copy_.default and not isinstance(args[0], ShardedTensor):
        return args[0].copy_(gather(args[1]))
    if func is _aten.equal.default:
        return torch.equal(*(gather(a) if isinstance(a, ShardedTensor) else a for a in args[:2]))
    return _run_alone(func, args, kwargs)


def _leaves(device: Any) -> bool:
    return device is not None and torch.device(device).type != "tpu"


def _alias(tensor: ShardedTensor) -> ShardedTensor:
    made = ShardedTensor(tensor.mesh, tensor.placements, tensor, tensor._parts)
    made._slot = tensor._slot
    return made


def _run_alone(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    trace = Trace()
    out = trace.call(func, args, kwargs)
    flat, _ = tree_flatten(out)
    fresh = [t for t in flat if isinstance(t, ShardedTensor) and t._parts is None]
    key = _key(trace, func, args, kwargs)
    if key not in _programs:
        _programs[key] = (trace.program([t._slot for t in fresh], "spmd_op"), [])
    program, _ = _programs[key]
    assign(fresh, program.results, program.run([t.parts for t in trace.inputs]))
    return out


def assign(
    tensors: list[ShardedTensor], how: list[Argument], parts: list[list[torch.Tensor]]
) -> None:
    """Gives tensors of a trace their elements."""
    for tensor, result, held in zip(tensors, how, parts, strict=True):
        tensor._parts = held
        tensor._placements = result.placements
        tensor._slot = -1


def _key(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    order = {id(t._parts): i for i, t in enumerate(trace.inputs)}

    def describe(value: Any) -> Any:
        if isinstance(value, ShardedTensor):
            return (order[id(value._parts)], value.shape, value.dtype, value.placements)
        return (type(value), value)

    flat, spec = tree_flatten((tree_map(describe, args), tree_map(describe, kwargs)))
    return (func, str(spec), repr(flat), trace.mesh)
