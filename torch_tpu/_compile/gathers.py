"""A few elements of a large pointwise result: taken from its operands instead, so that the large
one need not be. The loss of a cross entropy picks one logarithm of a row's probabilities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten

_ONE = frozenset({aten._to_copy.default, aten.neg.default})
_TWO = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor})


def _shape(value: Any) -> tuple[Any, ...] | None:
    if not isinstance(value, fx.Node):
        return ()  # a number
    val = value.meta.get("val")
    return tuple(val.shape) if isinstance(val, Tensor) else None


def _operands(node: fx.Node) -> list[Any]:
    return list(node.args[:2]) if node.target in _TWO else [node.args[0]]


def _row_of(shape: tuple[Any, ...], dim: int) -> tuple[Any, ...]:
    return (*shape[:dim], 1, *shape[dim + 1 :])


def _pushes(source: Any, dim: int, index: fx.Node) -> bool:
    """Whether gather(source) is the same op over gathers of its operands."""
    if not isinstance(source, fx.Node) or source.target not in _ONE | _TWO:
        return False
    if set(source.kwargs) - {"dtype", "alpha"}:
        return False
    whole, rows = _shape(source), _shape(index)
    if not whole or rows is None or len(rows) != len(whole):
        return False
    if _row_of(rows, dim) != _row_of(whole, dim) or not all(isinstance(n, int) for n in whole):
        return False
    return all(_shape(x) in (whole, _row_of(whole, dim), ()) for x in _operands(source))


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
                taken = graph.call_function(aten.gather.default, (operand, dim, index))
                taken.meta["val"] = node.meta["val"].new_empty(
                    node.meta["val"].shape, dtype=operand.meta["val"].dtype
                )
                args[i] = taken
                waiting.append(taken)
            done = graph.call_function(source.target, tuple(args), dict(source.kwargs))  # type: ignore[arg-type]
        done.meta = dict(node.meta)
        node.replace_all_uses_with(done)
        graph.erase_node(node)
        changed = True
    if changed:
        graph.eliminate_dead_code()
        gm.recompile()
