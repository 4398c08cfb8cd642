"""Ops on tensors of a mesh outside a compiled function: each is a program of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from torch_tpu.spmd._program import Argument, Program
from torch_tpu.spmd._tensor import ShardedTensor, gather, shard
from torch_tpu.spmd._trace import Trace

_aten = torch.ops.aten
_ALIASES = {_aten.detach.default, _aten.alias.default}
_programs: dict[Any, Program] = {}


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
    if func is _aten.copy_.default and not isinstance(args[1], ShardedTensor):  # load_state_dict
        target, source = args[:2]
        whole = source.detach().cpu().expand(target.shape)
        args = (target, shard(whole, target.mesh, target.placements))
    if func is _aten.equal.default:
        return torch.equal(*(gather(a) if isinstance(a, ShardedTensor) else a for a in args[:2]))
    if func._schema.is_mutable:
        _refuse_copies(func, args, kwargs)
    out = _run_alone(func, args, kwargs)
    if _makes_view(func):
        for tensor in tree_flatten(out)[0]:
            tensor._copied_at = args[0]._version
    return out


def _makes_view(func: Any) -> bool:
    return not func._schema.is_mutable and any(
        argument.alias_info is not None for argument in func._schema.arguments
    )


def _refuse_copies(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = args[place] if place < len(args) else kwargs.get(argument.name)
        if any(getattr(tensor, "_copied_at", -1) >= 0 for tensor in tree_flatten(given)[0]):
            raise RuntimeError(
                f"[spmd] {func} writes to a view, which outside a compiled function is a copy. "
                "Write inside a function that torch_tpu.spmd.compile made."
            )


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
    program = _programs.get(key)
    if program is None:
        program = _programs[key] = trace.program([t._slot for t in fresh], "spmd_op")
    parts = program.run([t.parts for t in trace.inputs])
    for tensor, how, held in zip(fresh, program.results, parts, strict=True):
        assign(tensor, how, held)
    return out


def assign(tensor: ShardedTensor, how: Argument, parts: list[torch.Tensor]) -> None:
    """Gives a tensor of a trace its elements."""
    tensor._parts = parts
    tensor._placements = how.placements
    tensor._slot = -1


def _key(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    order = {id(t._parts): i for i, t in enumerate(trace.inputs)}

    def describe(value: Any) -> Any:
        if isinstance(value, ShardedTensor):
            return (order[id(value._parts)], value.shape, value.dtype, value.placements)
        return (type(value), value)

    flat, spec = tree_flatten((tree_map(describe, args), tree_map(describe, kwargs)))
    return (func, str(spec), repr(flat), trace.mesh)
