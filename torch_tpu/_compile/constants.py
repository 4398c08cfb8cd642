"""Constant tensors of no or one element (`torch.tensor([])`, `torch.tensor(0.0)`) as ops that make
them: as attributes of the graph each would be one more argument of the program, and no bounded
program takes such."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torch_tpu._compile.interpreter import attribute

aten = torch.ops.aten


def make_small_constants(gm: fx.GraphModule) -> None:
    """In place."""
    for node in gm.graph.find_nodes(op="get_attr"):
        value = attribute(gm, str(node.target))
        if not _is_small(value) or any(_writes(user) for user in node.users):
            continue
        mode = detect_fake_mode([other.meta.get("val") for other in gm.graph.nodes])
        if mode is None:
            return
        with unset_fake_temporarily():  # AOTAutograd's, which knows no numbers
            number = value.item() if value.numel() == 1 else 0
        kwargs: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
        with gm.graph.inserting_before(node):
            made = gm.graph.call_function(aten.full.default, (list(value.shape), number), kwargs)
        with mode:
            made.meta = {**node.meta, "val": torch.empty(value.shape, **kwargs)}
        node.replace_all_uses_with(made)
        gm.graph.erase_node(node)


def _is_small(value: Any) -> bool:
    return type(value) is torch.Tensor and value.device.type == "tpu" and value.numel() <= 1


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is None or bool(schema.is_mutable)
