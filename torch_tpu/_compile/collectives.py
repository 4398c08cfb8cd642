"""Graphs with collectives of torch.distributed. The ranks' programs may differ, their collectives
must not, so a collective is never part of a program: the graph is cut into programs around it.

The parts run in the order of the graph. Results of a collective are waited for by whoever reads
them, so what is launched before that overlaps with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from torch_tpu._compile.graph import CompiledGraph
from torch_tpu._compile.interpreter import Env, extract
from torch_tpu._compile.options import Options

_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor")


def is_collective(node: fx.Node) -> bool:
    """Whether the node is a call of torch.distributed."""
    namespace = getattr(node.target, "namespace", "")
    return node.op == "call_function" and namespace in _NAMESPACES


def has_collectives(gm: fx.GraphModule) -> bool:
    """Whether any node is one."""
    return any(is_collective(node) for node in gm.graph.nodes)


def _is_wait(node: fx.Node) -> bool:
    return is_collective(node) and "wait_tensor" in str(node.target)


class _Part:
    """Consecutive nodes that become one program."""

    def __init__(
        self, gm: fx.GraphModule, nodes: list[fx.Node], wanted: list[fx.Node], compiled: Any
    ) -> None:
        graph, self.inputs = extract(nodes, wanted)
        self.outputs = wanted
        self._run: Callable[[list[Any]], list[Any]] = compiled(fx.GraphModule(gm, graph))

    def __call__(self, env: Env) -> None:
        results = self._run([env[node] for node in self.inputs])
        env.update(zip(self.outputs, results, strict=True))


class _Collective:
    """One call, as in eager mode."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node

    def __call__(self, env: Env) -> None:
        node = self.node

        def look_up(source: fx.Node) -> Any:
            return env[source]

        args = fx.node.map_arg(node.args, look_up)
        kwargs = fx.node.map_arg(node.kwargs, look_up)
        env[node] = node.target(*args, **kwargs)  # type: ignore[operator]


class SplitGraph:
    """Programs and collectives in turn; called like a CompiledGraph."""

    def __init__(self, gm: fx.GraphModule, kind: str, options: Options) -> None:
        nodes = list(gm.graph.nodes)
        self._placeholders = [node for node in nodes if node.op == "placeholder"]
        self._output = nodes[-1]
        parts = _cut(node for node in nodes if node.op in ("call_function", "get_attr"))
        last_use = _last_uses(parts, self._output)
        self._steps: list[Callable[[Env], None]] = []
        self._dead: list[list[fx.Node]] = []  # per step: what nobody needs any more
        for index, part in enumerate(parts):
            if isinstance(part, fx.Node):
                self._steps.append(_Collective(part))
            else:
                wanted = [node for node in part if last_use.get(node, -1) > index]
                self._steps.append(
                    _Part(gm, part, wanted, lambda m: CompiledGraph(m, kind, options).function())
                )
            self._dead.append([node for node, use in last_use.items() if use == index])

    def function(self) -> Callable[[list[Any]], Any]:
        """What AOTAutograd calls with one list, which it empties."""

        def run(args: list[Any]) -> Any:
            env: Env = dict(zip(self._placeholders, args, strict=True))
            args.clear()
            with torch.no_grad():
                for step, dead in zip(self._steps, self._dead, strict=True):
                    step(env)
                    for node in dead:
                        env.pop(node, None)
            results: Any = fx.node.map_arg(self._output.args[0], lambda node: env[node])
            return list(results)

        function: Any = run
        function._boxed_call = True
        return function


def _cut(nodes: Iterable[fx.Node]) -> list[list[fx.Node] | fx.Node]:
    """Runs of ordinary nodes, and collectives. Waits come as late as their first reader."""
    parts: list[list[fx.Node] | fx.Node] = []
    run: list[fx.Node] = []
    late: list[fx.Node] = []

    def close() -> None:
        nonlocal run
        if run:
            parts.append(run)
        run = []

    def wait_for(wanted: Iterable[fx.Node]) -> None:
        needed = [node for node in late if node in set(wanted)]
        if needed:
            close()
        for node in needed:
            late.remove(node)
            parts.append(node)

    for node in nodes:
        if _is_wait(node):
            late.append(node)
            continue
        wait_for(node.all_input_nodes)
        if is_collective(node):
            close()
            parts.append(node)
        else:
            run.append(node)
    close()
    parts.extend(late)
    return parts


def _last_uses(parts: list[list[fx.Node] | fx.Node], output: fx.Node) -> dict[fx.Node, int]:
    """The last step that reads a node; for results of the graph, one past the end."""
    last: dict[fx.Node, int] = {}
    for index, part in enumerate(parts):
        for node in [part] if isinstance(part, fx.Node) else part:
            for source in node.all_input_nodes:
                last[source] = index
    for node in output.all_input_nodes:
        last[node] = len(parts)
    return last
