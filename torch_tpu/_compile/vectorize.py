"""Optimizers keep a step count per parameter, as 0-d tensors (on the CPU at first; Dynamo moves
them to the device when it compiles again), and do arithmetic on lists of them. Over one array
instead of a list, that is one kernel instead of hundreds."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def _numbers(value: Any) -> bool:
    """A list of 0-d tensors of one kind."""
    return (
        isinstance(value, (list, tuple))
        and len(value) > 1
        and all(isinstance(t, torch.Tensor) and t.dim() == 0 for t in value)
        and len({(t.dtype, t.device) for t in value}) == 1
    )


def _plain_op(target: Any) -> Any:
    """aten.add.Scalar for aten._foreach_add.Scalar, or None."""
    packet, _, overload = str(target).removeprefix("aten.").rpartition(".")
    name = packet.removeprefix("_foreach_")
    if name == packet or target.namespace != "aten" or target._schema.is_mutable:
        return None
    wanted = {
        "Scalar": "Tensor" if name == "div" else "Scalar",
        "List": "Tensor",
        "default": "default",
        "ScalarAndTensor": "Scalar",
    }.get(overload)
    if wanted is None or name not in _POINTWISE:
        return None
    if name == "pow" and overload == "Scalar":
        wanted = "Tensor_Scalar"
    return getattr(getattr(aten, name), wanted, None)


_POINTWISE = frozenset(
    {"add", "sub", "mul", "div", "pow", "neg", "reciprocal", "sqrt", "exp", "log"}
)


def vectorize(gm: fx.GraphModule) -> None:
    """Replaces foreach ops over lists of 0-d tensors by ops over one array, in place."""
    arrays: dict[tuple[fx.Node, ...], fx.Node] = {}  # by the list they hold
    graph = gm.graph
    changed = False

    def array_of(items: Any) -> fx.Node:
        key = tuple(items)
        if key not in arrays:
            arrays[key] = graph.call_function(aten.stack.default, (list(items),))
            first = items[0].meta["val"]
            arrays[key].meta["val"] = first.new_empty(len(items))
        return arrays[key]

    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        op = _plain_op(node.target)
        if op is None or node.kwargs or not _numbers(node.meta.get("val")):
            continue
        lists = [arg for arg in node.args if isinstance(arg, (list, tuple))]
        if not lists or not all(_numbers([n.meta.get("val") for n in items]) for items in lists):
            continue
        if any(user.target is not operator.getitem for user in node.users):
            continue
        with graph.inserting_before(node):
            args = [array_of(a) if isinstance(a, (list, tuple)) else a for a in node.args]
            array = graph.call_function(op, tuple(args))
            array.meta["val"] = node.meta["val"][0].new_empty(len(lists[0]))
            members = []
            for i, value in enumerate(node.meta["val"]):
                member = graph.call_function(aten.select.int, (array, 0, i))
                member.meta["val"] = value
                members.append(member)
        for user in list(node.users):
            user.replace_all_uses_with(members[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
        arrays[tuple(members)] = array
        changed = True
    if changed:
        graph.eliminate_dead_code()
        gm.recompile()
