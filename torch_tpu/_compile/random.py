"""Random ops that checkpointing runs twice: in forward, and again in backward.

PyTorch wraps such an op: in forward it also gives the generator's state before it, which is saved;
in backward it draws from that state. Here the state is two integers that the forward program
computes and the backward program reads, so that both stay one program and nothing is drawn twice.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state

from torch_tpu import _C
from torch_tpu._compile.interpreter import HANDLERS

_DEVICE = "tpu"
_STATE_SHAPE = (2,)  # seed and offset, int64


def mark_random(gm: fx.GraphModule) -> None:
    """Says of such nodes what they give. PyTorch's graphs do not, or say that the state lies on
    the CPU."""
    wrapped = [
        node
        for target in (run_and_save_rng_state, run_with_rng_state)
        for node in gm.graph.find_nodes(op="call_function", target=target)
    ]
    if not wrapped:
        return
    mode = detect_fake_mode([node.meta.get("val") for node in gm.graph.nodes])
    if mode is None:
        return
    for node in wrapped:
        first = 0 if node.target is run_and_save_rng_state else 1
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
        op: Any = args[first]
        with mode:
            drawn = op(*args[first + 1 :], **kwargs)
            if _device(drawn) == _DEVICE:
                state = torch.empty(_STATE_SHAPE, dtype=torch.int64, device=_DEVICE)
            else:
                state = torch.empty_like(torch.get_rng_state())
        if node.target is run_with_rng_state:
            node.meta["val"] = drawn
            _source(node.args[0]).meta["val"] = state
            continue
        node.meta["val"] = (state, drawn)
        for user in node.users:
            if user.target is operator.getitem:
                user.meta["val"] = node.meta["val"][user.args[1]]


def _source(node: Any) -> fx.Node:
    assert isinstance(node, fx.Node)
    return node


def _device(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        value = value[0]
    return str(value.device.type)


def _save(node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    op, *rest = args
    state, _ = node.meta["val"]
    if state.device.type != _DEVICE:
        return run_and_save_rng_state(*args, **kwargs)
    if _C._is_recording():
        return _C._record_rng_state(), op(*rest, **kwargs)
    words = torch.tpu.get_rng_state(state.device).view(torch.int64)  # type: ignore[attr-defined]
    return words.to(state.device), op(*rest, **kwargs)


def _replay(node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    state, op, *rest = args
    if state.device.type != _DEVICE:
        return run_with_rng_state(*args, **kwargs)
    if _C._is_recording():
        return _C._record_with_rng_state(state, lambda: op(*rest, **kwargs))
    device: Any = torch.tpu  # type: ignore[attr-defined]
    before = device.get_rng_state(state.device)
    device.set_rng_state(state.cpu().view(torch.uint8), state.device)
    try:
        return op(*rest, **kwargs)
    finally:
        device.set_rng_state(before, state.device)


HANDLERS[run_and_save_rng_state] = _save
HANDLERS[run_with_rng_state] = _replay
