"""Runs nodes of an ATen-level graph one by one, on whatever tensors they are given: stand-ins of a
recording, real tensors on the device, or CPU tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from torch_tpu._compile import device_number
from torch_tpu._compile.device_number import DeviceNumber

Env = dict[fx.Node, Any]
Handler = Callable[[fx.Node, tuple[Any, ...], dict[str, Any]], Any]

# Targets that are no ordinary calls, by target: higher-order ops.
HANDLERS: dict[Any, Handler] = {}


class NodeError(RuntimeError):
    """A node failed; says which one and from which line of the user's."""

    def __init__(self, node: fx.Node, error: Exception) -> None:
        wraps = node.args and isinstance(node.args[0], torch._ops.OpOverload)
        super().__init__(f"{node.args[0] if wraps else node.target}: {error}")
        self.node = node


def attribute(module: torch.nn.Module, target: str) -> Any:
    """`module.a.b.c` for "a.b.c"."""
    value: Any = module
    for name in target.split("."):
        value = getattr(value, name)
    return value


def extract(nodes: list[fx.Node], wanted: list[fx.Node]) -> tuple[fx.Graph, list[fx.Node]]:
    """A graph of these nodes that gives `wanted`, and the nodes before them that it takes."""
    graph = fx.Graph()
    copies: Env = {}
    inside = set(nodes)
    inputs: list[fx.Node] = []
    for node in nodes:
        for source in node.all_input_nodes:
            if source not in inside and source not in copies:
                copies[source] = graph.placeholder(source.name)
                copies[source].meta = dict(source.meta)
                inputs.append(source)
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda source: copies[source])
    graph.output(tuple(copies[node] for node in wanted))
    return graph, inputs


class HostPart:
    """Nodes that run on the CPU at every call, as one Python function: no look-ups in between."""

    def __init__(self, nodes: list[fx.Node], wanted: list[fx.Node]) -> None:
        inside = set(nodes)
        self._wanted = [node for node in wanted if node in inside]
        graph, self.inputs = extract(nodes, self._wanted)
        self._run = fx.GraphModule(torch.nn.Module(), graph).forward

    def __call__(self, env: Env) -> None:
        """Takes what it needs from `env` and puts there what others want."""
        results = self._run(*[env[node] for node in self.inputs])
        env.update(zip(self._wanted, results, strict=True))


def _as_traced(node: fx.Node, result: Any) -> Any:
    """The result in the layout it had when the graph was traced: later nodes may view it."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or any(ret.alias_info is not None for ret in schema.returns):
        return result
    return with_layout(result, node.meta.get("val"))


def _traced_number(number: Any) -> int:
    """As it was when the graph was traced; where sizes vary, in what order dims lie is still so."""
    return number if isinstance(number, int) else int(number.node.hint)


def _strides_like(value: torch.Tensor, traced: torch.Tensor) -> list[int] | None:
    """Strides for `value` with its dims in the order of `traced`. None where that does not say: its
    elements do not fill one piece of memory, each once."""
    numbers = (*traced.shape, *traced.stride())
    if any(not isinstance(n, int) and n.node.hint is None for n in numbers):
        return None
    sizes = [_traced_number(size) for size in traced.shape]
    strides = [_traced_number(stride) for stride in traced.stride()]
    expected = 1
    order = sorted(range(len(sizes)), key=lambda d: (strides[d], sizes[d]))
    for d in order:
        if sizes[d] != 1 and strides[d] != expected:
            return None
        expected *= sizes[d]
    step = 1
    found = [1] * len(sizes)
    for d in order:
        found[d] = step
        step *= value.shape[d]
    return found


def _same_sizes(value: torch.Tensor, traced: torch.Tensor) -> bool:
    return value.dim() == traced.dim() and all(
        not isinstance(want, int) or have == want
        for have, want in zip(value.shape, traced.shape, strict=True)
    )


def with_layout(value: Any, traced: Any) -> Any:
    if isinstance(value, (list, tuple)) and isinstance(traced, (list, tuple)):
        return type(value)(with_layout(*pair) for pair in zip(value, traced, strict=True))
    if (
        not isinstance(value, torch.Tensor)
        or not isinstance(traced, torch.Tensor)
        or value.device.type == "cpu"
        or not _same_sizes(value, traced)
        or value.numel() <= 1
    ):
        return value
    strides = _strides_like(value, traced)
    if strides is None or _lies_so(value, strides):
        return value
    made = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    return made.copy_(value)


def _lies_so(value: torch.Tensor, strides: list[int]) -> bool:
    """Strides of dimensions of one element say nothing."""
    dims = zip(value.shape, value.stride(), strides, strict=True)
    return all(size == 1 or have == want for size, have, want in dims)


def evaluate(nodes: Iterable[fx.Node], env: Env) -> None:
    """Runs the nodes in order; `env` holds the values of those before and gets theirs."""

    def look_up(node: fx.Node) -> Any:
        return env[node]

    for node in nodes:
        if node in env:
            continue
        args = fx.node.map_arg(node.args, look_up)
        kwargs = fx.node.map_arg(node.kwargs, look_up)
        try:
            if node.op == "call_function":
                handler = HANDLERS.get(node.target)
                if handler is not None:
                    env[node] = handler(node, args, kwargs)
                elif any(isinstance(env[n], DeviceNumber) for n in node.all_input_nodes):
                    env[node] = device_number.call(node.target, args, kwargs)
                else:
                    result = node.target(*args, **kwargs)  # type: ignore[operator]
                    env[node] = _as_traced(node, result)
            elif node.op == "call_method":
                env[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                raise RuntimeError(f"a node of kind {node.op}")
        except Exception as error:
            raise NodeError(node, error) from error


def run_module(module: fx.GraphModule, args: Iterable[Any]) -> Any:
    """Runs a subgraph of a higher-order op."""
    env: Env = {}
    given = iter(args)
    nodes = list(module.graph.nodes)
    for node in nodes:
        if node.op == "placeholder":
            env[node] = next(given)
        elif node.op == "get_attr":
            env[node] = attribute(module, str(node.target))
    evaluate((node for node in nodes if node.op != "output"), env)
    return fx.node.map_arg(nodes[-1].args[0], lambda node: env[node])
