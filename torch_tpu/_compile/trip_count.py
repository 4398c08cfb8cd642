"""How often a while_loop runs, where constants alone decide it: a counter with a constant start.

Its gradient keeps something of every iteration, so the number is a size and must be known. The part
of the loop that the condition depends on is run on the CPU, while recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from torch_tpu._compile.interpreter import attribute

_LIMIT = 100_000  # iterations that are worth running on the host


class _NotConstantError(Exception):
    pass


def trip_count(
    cond: fx.GraphModule, body: fx.GraphModule, carried: Sequence[Any], additional: Sequence[Any]
) -> int | None:
    """Arguments of the loop come as known numbers or nodes that give them. None: data decide."""
    inputs = [*carried, *additional]
    outputs = _outputs(body)
    needed = _reached(cond, _outputs(cond))
    while True:
        updates = [outputs[i] for i in needed if i < len(carried)]
        more = needed | _reached(body, updates)
        if more == needed:
            break
        needed = more
    try:
        state = {i: _constant(inputs[i]) for i in needed}
        for count in range(_LIMIT):
            if not bool(_run(cond, state, _outputs(cond)[:1])[0]):
                return count
            changing = [i for i in needed if i < len(carried)]
            state.update(
                zip(changing, _run(body, state, [outputs[i] for i in changing]), strict=True)
            )
    except _NotConstantError:
        pass
    return None


def _outputs(module: fx.GraphModule) -> list[Any]:
    result = next(iter(reversed(module.graph.nodes))).args[0]
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _reached(module: fx.GraphModule, outputs: Sequence[Any]) -> set[int]:
    """The placeholders that these values depend on."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    seen: set[fx.Node] = set()
    work = [node for node in outputs if isinstance(node, fx.Node)]
    while work:
        node = work.pop()
        if node not in seen:
            seen.add(node)
            work += node.all_input_nodes
    return {i for i, node in enumerate(placeholders) if node in seen}


def _run(module: fx.GraphModule, state: dict[int, Any], outputs: Sequence[Any]) -> list[Any]:
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    env = {placeholders[i]: value for i, value in state.items()}
    return [_evaluate(module, node, env) for node in outputs]


def _constant(value: Any) -> Any:
    if not isinstance(value, fx.Node):
        return value
    module = value.graph.owning_module
    if module is None:
        raise _NotConstantError
    return _evaluate(module, value, {})


def _evaluate(module: torch.nn.Module, value: Any, env: dict[fx.Node, Any]) -> Any:
    """On the CPU. Raises where it would need more than constants and `env`."""
    if not isinstance(value, fx.Node):
        return value
    if value in env:
        return env[value]
    if value.op == "get_attr":
        env[value] = attribute(module, str(value.target))
        return env[value]
    random = torch.Tag.nondeterministic_seeded in getattr(value.target, "tags", ())
    if value.op != "call_function" or random:
        raise _NotConstantError
    args, kwargs = fx.node.map_arg(
        (value.args, dict(value.kwargs)), lambda node: _evaluate(module, node, env)
    )
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if any(isinstance(arg, torch.device) for arg in args):
        raise _NotConstantError
    env[value] = value.target(*args, **kwargs)  # type: ignore[operator]
    return env[value]
