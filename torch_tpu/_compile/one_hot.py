"""The sum of a row in which one element at most is not zero: that element, without the row.

The gradient of a picked probability is such a row, and the softmax behind it wants its sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from torch_tpu._compile.rewrite import call, replace, row_of, shape_of

aten = torch.ops.aten


@dataclass
class _OneHot:
    """where(arange(classes) == rows, value, zero), then casts."""

    rows: fx.Node
    classes: int
    value: fx.Node
    zero: fx.Node
    dtypes: list[torch.dtype]  # of the choice and of each cast


def _is_cast(node: fx.Node) -> bool:
    val = node.meta.get("val")
    return (
        node.target is aten._to_copy.default
        and set(node.kwargs) == {"dtype"}
        and isinstance(val, Tensor)
        and val.is_floating_point()
    )


def _counts_classes(node: Any, dim: int) -> bool:
    """Whether its elements along `dim` are 0, 1, 2... and there is no other dimension."""
    shape = shape_of(node)
    if shape is None or any(n != 1 for i, n in enumerate(shape) if i - len(shape) != dim):
        return False
    while node.target is aten.unsqueeze.default:
        node = node.args[0]
    return bool(node.target is aten.arange.default)


def _is_whole(node: Any) -> bool:
    """Not a fraction, which lies between two classes."""
    dtype = node.meta["val"].dtype
    return not (dtype.is_floating_point or dtype.is_complex)


def _is_zero(node: Any) -> bool:
    if not isinstance(node, fx.Node) or node.target is not aten.scalar_tensor.default:
        return False
    return bool(node.args[0] == 0)


def _match(node: Any, dim: int) -> _OneHot | None:
    """`dim` counts from the last."""
    whole, chain = shape_of(node), [node]
    while isinstance(node, fx.Node) and _is_cast(node):
        node = node.args[0]
        chain.append(node)
    if not isinstance(node, fx.Node) or node.target is not aten.where.self or whole is None:
        return None
    picked, value, zero = node.args
    if not _is_zero(zero) or not isinstance(picked, fx.Node) or picked.target is not aten.eq.Tensor:
        return None
    row = row_of(whole, dim)
    for counted, rows in (picked.args, picked.args[::-1]):
        if not _counts_classes(counted, dim) or shape_of(rows) != row or not _is_whole(rows):
            continue
        if shape_of(value) in ((), row) and all(isinstance(n, int) for n in whole):
            assert isinstance(rows, fx.Node)
            assert isinstance(value, fx.Node)
            assert isinstance(zero, fx.Node)
            return _OneHot(
                rows, whole[dim], value, zero, [n.meta["val"].dtype for n in chain[::-1]]
            )
    return None


def sum_one_hot(gm: fx.GraphModule) -> None:
    """Rewrites sums of such rows that keep the dimension, in place."""
    graph = gm.graph
    changed = False
    for node in graph.find_nodes(op="call_function", target=aten.sum.dim_IntList):
        if node.kwargs or len(node.args) < 3 or not node.args[2] or len(node.args[1]) != 1:
            continue
        shape = shape_of(node)
        dim = node.args[1][0]
        found = _match(node.args[0], dim if dim < 0 else dim - len(shape)) if shape else None
        if found is None or found.dtypes[-1] != node.meta["val"].dtype:  # integers add up wider
            continue
        new = partial(call, graph, node.meta["val"])
        with graph.inserting_before(node):
            low = new(aten.ge.Scalar, found.rows, 0, dtype=torch.bool)
            high = new(aten.lt.Scalar, found.rows, found.classes, dtype=torch.bool)
            inside = new(aten.bitwise_and.Tensor, low, high, dtype=torch.bool)
            first, *casts = found.dtypes
            done = new(aten.where.self, inside, found.value, found.zero, dtype=first)
            for dtype in casts:
                done = new(aten._to_copy.default, done, dtype=dtype)
        replace(node, done)
        changed = True
    if changed:
        graph.eliminate_dead_code()
        gm.recompile()
