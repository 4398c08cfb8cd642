"""What passes that rewrite nodes of a graph share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten


def shape_of(value: Any) -> tuple[Any, ...] | None:
    """Of a tensor in the graph; None for anything else."""
    val = value.meta.get("val") if isinstance(value, fx.Node) else None
    return tuple(val.shape) if isinstance(val, Tensor) else None


def row_of(shape: tuple[Any, ...], dim: int) -> tuple[Any, ...]:
    """The shape with one element along `dim`, which may count from the last."""
    dim %= len(shape)
    return (*shape[:dim], 1, *shape[dim + 1 :])


def call(graph: fx.Graph, like: Tensor, op: Any, *args: Any, dtype: torch.dtype) -> fx.Node:
    """A new node of that dtype, with the sizes of `like`."""
    kwargs: dict[str, Any] = {"dtype": dtype} if op is aten._to_copy.default else {}
    made = graph.call_function(op, args, kwargs)
    made.meta["val"] = like.new_empty(like.shape, dtype=dtype)
    return made


def replace(node: fx.Node, by: fx.Node) -> None:
    """`by` stands for `node`, line and all, which is gone."""
    by.meta = dict(node.meta)
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)
