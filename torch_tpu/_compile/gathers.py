"""A few elements of a large pointwise result: taken from its operands instead, so that the large
one need not be. The loss of a cross entropy picks one logarithm of a row's probabilities."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from torch_tpu._compile.rewrite import call, replace, row_of, shape_of

aten = torch.ops.aten

_ONE = frozenset({aten._to_copy.default, aten.neg.default})
_TWO = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor})


def _shape(value: Any) -> tuple[Any, ...] | None:
    return shape_of(value) if isinstance(value, fx.Node) else ()  # a number


def _operands(node: fx.Node) -> list[Any]:
    return list(node.args[:2]) if node.target in _TWO else [node.args[0]]


def _pushes(source: Any, dim: int, index: fx.Node) -> bool:
    """Whether gather(source) is the same op over gathers of its operands."""
    if not isinstance(source, fx.Node) or source.target not in _ONE | _TWO:
        return False
    if set(source.kwargs) - {"dtype", "alpha"}:
        return False
    whole, rows = _shape(source), _shape(index)
    if not whole or rows is None or len(rows) != len(whole):
        return False
    if row_of(rows, dim) != row_of(whole, dim) or not all(isinstance(n, int) for n in whole):
        return False
    return all(_shape(x) in (whole, row_of(whole, dim), ()) for x in _operands(source))


def take_first(gm: fx.GraphModule) -> None:
    """Rewrites gathers of pointwise results, in place."""
    graph = gm.graph
    waiting = [node for node in graph.nodes if node.target is aten.gather.default]
    changed = False
    while waiting:
        node = waiting.pop()
        source, dim, index = node.args[:3]
        if not isinstance(dim, int) or not isinstance(index, fx.Node):
            continue
        dim %= max(1, len(_shape(index) or ()))
        if not _pushes(source, dim, index):
            continue
        assert isinstance(source, fx.Node)
        whole = _shape(source)
        args = list(source.args)
        with graph.inserting_before(node):
            for i, operand in enumerate(_operands(source)):
                if _shape(operand) != whole:
                    continue
                like, dtype = node.meta["val"], operand.meta["val"].dtype
                taken = call(graph, like, aten.gather.default, operand, dim, index, dtype=dtype)
                args[i] = taken
                waiting.append(taken)
            done = graph.call_function(source.target, tuple(args), dict(source.kwargs))  # type: ignore[arg-type]
        replace(node, done)
        changed = True
    if changed:
        graph.eliminate_dead_code()
        gm.recompile()
