"""Forward and backward of a function of parts as one graph, and how much of it every device has
alike. Collectives' gradients are PyTorch's; here are those that it has none for.

What a device computes are gradients of the sum of all devices' results: that is what PyTorch's
formulas mean. A result of which each device has a copy counts once, so each copy's gradient is
divided by their number; and an argument's gradient is the sum over its copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.distributed.tensor.placement_types import Replicate
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from torch_tpu.spmd._collectives import axes_of, group_size, refuse_uneven
from torch_tpu.spmd._exchange import index
from torch_tpu.spmd._mesh import Mesh
from torch_tpu.spmd._parts import How, Part

_ops: Any = torch.ops._c10d_functional
_EVERYONE_GETS = ("all_reduce", "all_gather_into_tensor", "broadcast")
_EACH_GETS_ANOTHER = ("reduce_scatter_tensor", "all_to_all_single")
_WITH_GRADIENTS = (
    *("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"),
    *("wait_tensor", "_wrap_tensor_autograd"),
)
Axes = frozenset[str]


def trace_joint(
    mesh: Mesh,
    inputs: Sequence[Part],
    wanted: Sequence[bool],
    function: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]],
) -> tuple[fx.GraphModule, list[bool]]:
    """A graph of (arguments, gradients of results) to (results, gradients of arguments), and which
    results have gradients."""
    from torch._functorch.aot_autograd import aot_export_joint_simple
    from torch._subclasses.fake_tensor import FakeTensorMode

    from torch_tpu._compile import decompositions

    flags: list[bool] = []

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        versions = [t._version for t in tensors]
        out: list[torch.Tensor] = []
        for value in function(tensors):
            shared = any(value is other for other in (*tensors, *out)) or value._is_view()
            out.append(value.clone() if shared else value)
        if versions != [t._version for t in tensors]:
            raise RuntimeError("[spmd] a function for each device that writes its arguments")
        flags[:] = [value.requires_grad for value in out]
        return out

    device = torch.device("tpu", mesh.devices[0])
    with FakeTensorMode(allow_non_fake_inputs=True):
        args = tuple(
            torch.empty(part.shape, dtype=part.dtype, device=device, requires_grad=flag)
            for part, flag in zip(inputs, wanted, strict=True)
        )
    import torch._dynamo.config as dynamo  # a function of torch.compile inside is taken as it is

    with _Formulas(), dynamo.patch(error_on_nested_fx_trace=False):
        joint: Any = aot_export_joint_simple(
            call, args, trace_joint=True, decompositions=decompositions.table()
        )
    for node in joint.graph.find_nodes(op="get_attr"):
        value = getattr(joint, str(node.target), None)
        if isinstance(value, torch.Tensor) and value.requires_grad:
            raise RuntimeError(
                f"[spmd] a function for each device uses a tensor of shape {tuple(value.shape)} "
                "that requires a gradient and is no argument. Give it as one."
            )
    return joint, list(flags)


class _Formulas(TorchFunctionMode):
    """Gradients of collectives that have none in PyTorch; and errors, where PyTorch would go on as
    if nothing depended on what was sent."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = _op_name(func)
        if not name:
            return func(*args, **kwargs)
        given = [*args, *kwargs.values()]
        if name == "all_to_all_single":
            refuse_uneven(given[1], given[2])
        tensors = (t for t in tree_leaves(given) if isinstance(t, torch.Tensor))
        if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors):
            return func(*args, **kwargs)
        if name == "broadcast":
            return _Broadcast.apply(*given)
        if name == "all_reduce" and given[1] == "avg":
            total = _ops.all_reduce(given[0], "sum", given[2])
            return _ops.wait_tensor(total) / group_size(given[2])
        if name.removesuffix("_coalesced") not in _WITH_GRADIENTS:
            raise NotImplementedError(f"[spmd] {name} has no gradient")
        return func(*args, **kwargs)


def _op_name(func: Any) -> str:
    """Of a functional collective, or nothing."""
    packet = getattr(func, "overloadpacket", func)
    namespace, _, name = str(getattr(packet, "_qualified_op_name", "")).partition("::")
    return name if namespace == "_c10d_functional" else ""


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, source: int, group: Any) -> torch.Tensor:
        ctx.source, ctx.group = source, group
        made: torch.Tensor = _ops.broadcast(x, source, group)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        total = _ops.wait_tensor(_ops.all_reduce(grads[0].contiguous(), "sum", ctx.group))
        mine = index(ctx.group, grads[0].device) == ctx.source
        return torch.where(mine, total, 0), None, None


class Alike:
    """Of each node, along which axes of the mesh the devices have the same values."""

    def __init__(self, mesh: Mesh, joint: fx.GraphModule, inputs: Sequence[How]) -> None:
        self._mesh = mesh
        self._all = frozenset(mesh.names)
        self._of: dict[fx.Node, Axes] = {}
        left = iter(inputs)
        for node in joint.graph.nodes:
            if node.op == "placeholder":
                self._of[node] = frozenset(copied_over(mesh, next(left)))
            elif node.op == "get_attr":
                value = getattr(joint, str(node.target), None)
                self._of[node] = self._all if isinstance(value, torch.Tensor) else frozenset()
            elif node.op == "call_function":
                self._of[node] = self._call(node)

    def __getitem__(self, node: fx.Node) -> Axes:
        return self._of[node]

    def __setitem__(self, node: fx.Node, axes: Axes) -> None:
        self._of[node] = axes

    def axes(self, node: fx.Node) -> Axes | None:
        """Of a collective: over which."""
        return axes_of(str(node.args[-1]), self._mesh.shape, self._mesh.names)

    def _call(self, node: fx.Node) -> Axes:
        own = self._all
        for source in node.all_input_nodes:
            own &= self._of[source]
        name = collective(node)
        if not name or name == "wait_tensor":
            return own
        axes = self.axes(node)
        if axes is None:
            return frozenset()
        if name in _EVERYONE_GETS:
            return own | axes
        return own - axes if name in _EACH_GETS_ANOTHER else frozenset()


def collective(node: fx.Node) -> str:
    """Which one, or nothing."""
    target: Any = node.target
    if node.op != "call_function" or getattr(target, "namespace", "") != "_c10d_functional":
        return ""
    return str(target._schema.name.split("::")[1].removesuffix("_coalesced"))


def copied_over(mesh: Mesh, how: How) -> list[str]:
    """Axes along which devices have copies."""
    return [n for n, p in zip(mesh.names, how, strict=True) if isinstance(p, Replicate)]


def count_copies_once(
    mesh: Mesh, joint: fx.GraphModule, inputs: Sequence[How], results: Sequence[How], flags: Any
) -> None:
    """Puts in what copies mean for gradients (see above), and takes out reductions of what all
    devices have alike."""
    graph = joint.graph
    placeholders = graph.find_nodes(op="placeholder")
    tangents = placeholders[len(inputs) :]
    hows = [how for how, flag in zip(results, flags, strict=True) if flag]
    if len(tangents) != len(hows):
        raise RuntimeError(f"[spmd] {len(tangents)} gradients of {len(hows)} results")
    alike = Alike(mesh, joint, [*inputs, *hows])
    backward = set(tangents)
    for node in list(graph.nodes):
        if not backward.isdisjoint(node.all_input_nodes):
            backward.add(node)
            if collective(node) == "all_reduce" and node.args[1] == "sum":
                axes, source = alike.axes(node), node.args[0]
                if axes and isinstance(source, fx.Node) and axes <= alike[source]:
                    with graph.inserting_before(node):
                        scaled = _scaled(graph, alike, source, _count(mesh, axes))
                    node.replace_all_uses_with(scaled)
                    graph.erase_node(node)
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node, how in zip(tangents, hows, strict=True):
        count = _count(mesh, copied_over(mesh, how))
        if count == 1 or not node.users:
            continue
        users = list(node.users)
        with graph.inserting_before(first):
            scaled = _scaled(graph, alike, node, 1 / count)
        for user in users:
            user.replace_input_with(node, scaled)
    output = next(iter(graph.find_nodes(op="output")))
    found = list(output.args[0])
    start = len(found) - len(inputs)
    with graph.inserting_before(output):
        for i, how in enumerate(inputs):
            if found[start + i] is not None:
                found[start + i] = _total(graph, mesh, alike, found[start + i], how)
    output.args = (type(output.args[0])(found),)
    joint.recompile()


def _count(mesh: Mesh, axes: Any) -> int:
    return math.prod(s for n, s in zip(mesh.names, mesh.shape, strict=True) if n in axes)


def _scaled(graph: fx.Graph, alike: Alike, node: fx.Node, factor: float) -> fx.Node:
    made = graph.call_function(torch.ops.aten.mul.Scalar, (node, factor))
    made.meta["val"] = node.meta["val"]
    alike[made] = alike[node]
    return made


def _total(graph: fx.Graph, mesh: Mesh, alike: Alike, node: fx.Node, how: How) -> fx.Node:
    copies = copied_over(mesh, how)
    differ = [name for name in copies if name not in alike[node]]
    same = _count(mesh, [name for name in copies if name in alike[node]])
    if same > 1:
        node = _scaled(graph, alike, node, same)
    if differ:
        sent = graph.call_function(_ops.all_reduce.default, (node, "sum", mesh.group(*differ)))
        got = graph.call_function(_ops.wait_tensor.default, (sent,))
        sent.meta["val"] = got.meta["val"] = node.meta["val"]
        node = got
    return node
