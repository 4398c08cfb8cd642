"""Graphs over jagged tensors. Their ragged size, the same for all that have the same offsets, comes
in as an argument without a value and goes out again: no tensor of the graph has it as a size. So do
tensors on the CPU whose sizes are the shortest and longest length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from torch_tpu._compile.plan import DEVICE, Plan, tensors_of

Function = Callable[[list[Any]], list[Any]]

# What the programs see in its place: always the same number, so that no other program is made.
_STAND_IN = 2


def pass_ragged_sizes(plan: Plan, function: Function) -> Function:
    """`function`, which never sees a ragged size; results that are one come straight from the
    arguments."""
    numbers = [node for node in plan.placeholders if isinstance(node.meta.get("val"), torch.SymInt)]
    return _pass(plan, numbers, torch.SymInt, function)


def pass_host_tensors(plan: Plan, function: Function) -> Function:
    """The same for tensors on the CPU, of a plan that computes nothing there."""
    on_cpu = [
        node
        for node in plan.placeholders
        if any(tensor.device.type != DEVICE for tensor in tensors_of(node.meta.get("val")))
    ]
    return _pass(plan, on_cpu, torch.Tensor, function)


def _pass(plan: Plan, nodes: list[fx.Node], kind: type, function: Function) -> Function:
    if not nodes:
        return function
    places = {node: i for i, node in enumerate(plan.placeholders) if node in nodes}
    assert plan.output is not None
    flat: Any = plan.output.args[0]
    passed = [
        (at, places[node])
        for at, node in enumerate(flat)
        if isinstance(node, fx.Node) and node in places
    ]

    def run(args: list[Any]) -> list[Any]:
        kept = {i: args[i] for i in places.values() if isinstance(args[i], kind)}
        for i in kept:
            args[i] = _STAND_IN
        results = function(args)
        for at, i in passed:
            if i in kept:
                results[at] = kept[i]
        return results

    return run
