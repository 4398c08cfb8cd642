"""Which inputs a subgraph writes: branches and loop bodies may, in inference."""

from __future__ import annotations

from torch import fx


def written_inputs(module: fx.GraphModule) -> set[int]:
    """Positions of the placeholders that an op of the graph writes, directly or through a view."""
    inputs: dict[fx.Node, set[int]] = {}  # by node: the inputs whose memory it may be
    written: set[int] = set()
    count = 0
    for node in module.graph.nodes:
        inputs[node] = set()
        if node.op == "placeholder":
            inputs[node] = {count}
            count += 1
        elif node.op == "call_function":
            graphs = _subgraphs(module, node)
            if graphs:
                written |= _written_inside(graphs, node, inputs)
            else:
                written |= _follow(node, inputs)
    return written


def _follow(node: fx.Node, inputs: dict[fx.Node, set[int]]) -> set[int]:
    """What the op writes. What it returns is taken to be a view of whatever it may be."""
    schema = getattr(node.target, "_schema", None)
    written: set[int] = set()
    if schema is None:  # getitem and the like
        for source in node.all_input_nodes:
            inputs[node] |= inputs[source]
        return written
    for i, argument in enumerate(schema.arguments):
        value = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
        if argument.alias_info is None:
            continue
        for source in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(source, fx.Node):
                inputs[node] |= inputs[source]
                if argument.alias_info.is_write:
                    written |= inputs[source]
    return written


def _subgraphs(module: fx.GraphModule, node: fx.Node) -> list[fx.GraphModule]:
    graphs = []
    for source in node.all_input_nodes:
        if source.op == "get_attr":
            value = getattr(module, str(source.target), None)
            if isinstance(value, fx.GraphModule):
                graphs.append(value)
    return graphs


def _written_inside(
    graphs: list[fx.GraphModule], node: fx.Node, inputs: dict[fx.Node, set[int]]
) -> set[int]:
    """A higher-order op that writes anything is taken to write all it is given."""
    if not any(written_inputs(graph) for graph in graphs):
        return set()
    return {i for source in node.all_input_nodes for i in inputs[source]}
