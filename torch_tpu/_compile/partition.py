"""What forward keeps for backward: PyTorch's min-cut partitioner, and its choice thinned out.

Each tensor it saves is a buffer that the runtime makes, hands over and frees in every step, a few
microseconds each; a forward of hundreds of them reaches its first kernel late.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch._functorch import config
from torch._functorch.partitioners import min_cut_rematerialization_partition

from torch_tpu._compile.duplicates import merge_duplicates
from torch_tpu._dlpack import in_host_memory

aten = torch.ops.aten

_ATTENTION_BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default
# The same elements in another order of dims.
_RESHAPES = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.transpose.int,
        aten.permute.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.t.default,
    }
)
_FEW = 4  # so many are not worth a copy


def _drop_detach(graph: fx.Graph) -> None:
    """For the partitioner a detach would be a value of its own."""
    for node in list(graph.nodes):
        if node.target is aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _place(node: fx.Node, name: str) -> int:
    assert isinstance(node.target, torch._ops.OpOverload)
    return [a.name for a in node.target._schema.arguments].index(name)


def _forget_random_states(graph: fx.Graph) -> None:
    """Attention without dropout draws nothing: its backward gets constants for the two words of
    the random state, which need not be kept."""
    for node in list(graph.nodes):
        # All of these are positional and without defaults in its schema.
        if node.target is not _ATTENTION_BACKWARD or node.args[_place(node, "dropout_p")] != 0.0:
            continue
        for name in ("philox_seed", "philox_offset"):
            place = _place(node, name)
            word = node.args[place]
            assert isinstance(word, fx.Node)
            val = word.meta["val"]
            with graph.inserting_before(node):
                zero = graph.call_function(
                    aten.full.default, ([], 0), {"dtype": val.dtype, "device": val.device}
                )
            zero.meta["val"] = val
            node.update_arg(place, zero)


def _chain(node: fx.Node, saved: dict[str, fx.Node]) -> list[fx.Node] | None:
    """The reshapes that lead to `node` from another saved value, the first of them first."""
    out: list[fx.Node] = []
    while node.target in _RESHAPES:
        if len(node.all_input_nodes) > 1:
            return None  # sizes that vary
        out.append(node)
        source = node.args[0]
        assert isinstance(source, fx.Node)
        if source.name in saved:
            return out[::-1]
        node = source
    return None


class _Saved:
    """The tensors that two graphs exchange, by name; an edit changes both."""

    def __init__(self, forward: fx.GraphModule, backward: fx.GraphModule, visible: int) -> None:
        self.forward, self.backward = forward.graph, backward.graph
        self._visible = visible
        self.placeholders = {n.name: n for n in self.backward.nodes if n.op == "placeholder"}
        # Before it stands what is made of the placeholders, in the order it is made.
        self.start = next(n for n in self.backward.nodes if n.op != "placeholder")

    def nodes(self) -> dict[str, fx.Node]:
        """Those that backward takes and the caller does not see."""
        output = self.forward.output_node().args[0]
        assert isinstance(output, (list, tuple))
        shown = {n.name for n in output[: self._visible] if isinstance(n, fx.Node)}
        return {
            n.name: n
            for n in output[self._visible :]
            if isinstance(n, fx.Node) and n.name in self.placeholders and n.name not in shown
        }

    def replace(self, name: str, value: fx.Node) -> None:
        """Backward uses `value` from now on, and forward no longer gives `name`."""
        placeholder = self.placeholders.pop(name)
        placeholder.replace_all_uses_with(value)
        self.backward.erase_node(placeholder)
        node = self.forward.output_node()
        output = node.args[0]
        assert isinstance(output, (list, tuple))
        kept = [
            n
            for i, n in enumerate(output)
            if i < self._visible or not isinstance(n, fx.Node) or n.name != name
        ]
        node.args = (kept,)

    def add(self, value: fx.Node, before: str) -> fx.Node:
        """Forward gives `value`, in the place of `before`; backward's placeholder for it."""
        old = self.placeholders[before]
        with self.backward.inserting_before(old):
            placeholder = self.backward.placeholder(value.name)
        placeholder.meta = dict(value.meta)
        node = self.forward.output_node()
        output = list(node.args[0])  # type: ignore[arg-type]
        names = [n.name if isinstance(n, fx.Node) else "" for n in output]
        output.insert(names.index(before, self._visible), value)
        node.args = (output,)
        self.placeholders[placeholder.name] = placeholder
        return placeholder


def _save_once(saved: _Saved) -> None:
    """A reshape of what is saved anyway is made again in backward."""
    nodes = saved.nodes()
    found = {name: chain for name, node in nodes.items() if (chain := _chain(node, nodes))}
    made: dict[str, fx.Node] = {}
    for node in list(saved.forward.nodes):  # a source before what is made of it
        chain = found.get(node.name)
        if chain is None:
            continue
        source = chain[0].all_input_nodes[0].name
        value = made.get(source) or saved.placeholders[source]
        for step in chain:
            with saved.backward.inserting_before(saved.start):
                value = saved.backward.call_function(step.target, (value, *step.args[1:]))  # type: ignore[arg-type]
            value.meta["val"] = step.meta["val"]
        saved.replace(node.name, value)
        made[node.name] = value


def _varying(node: fx.Node) -> list[int]:
    """Dims whose size is symbolic."""
    val = node.meta.get("val")
    if not isinstance(val, Tensor):
        return []
    return [d for d, size in enumerate(val.shape) if not isinstance(size, int)]


def _save_unmerged(saved: _Saved) -> None:
    """Where sizes vary, `[B, T, C]` seen as `[B*T, C]` would be packed to be saved, and would no
    longer fit what backward makes of its own `[B, T, C]`: the tensor is saved as it is, and seen so
    in backward again."""
    for node in list(saved.nodes().values()):
        if node.target not in (aten.view.default, aten._unsafe_view.default):
            continue
        source = node.args[0]
        assert isinstance(source, fx.Node)
        dims = _varying(node)
        if len(dims) != 1 or not _varying(source) or _unchecked(node) or _unchecked(source):
            continue
        shape = list(node.meta["val"].shape)
        shape[dims[0]] = -1
        value = saved.placeholders.get(source.name) or saved.add(source, node.name)
        with saved.backward.inserting_before(saved.start):
            again = saved.backward.call_function(aten.view.default, (value, shape))
        again.meta["val"] = node.meta["val"]
        saved.replace(node.name, again)


def _unchecked(node: fx.Node) -> bool:
    """Whether autograd need not see to it that nobody writes to it."""
    return bool(node.meta.get("saved_tensor_with_no_vc_check", False))


def _small() -> int:
    """Bytes that are copied in less time than a tensor takes to be handed over."""
    return 1 << 12 if in_host_memory() else 1 << 20


def _made(saved: _Saved) -> Iterator[tuple[fx.Node, Tensor]]:
    """Tensors that forward makes, of sizes that do not vary."""
    for node in saved.nodes().values():
        val = node.meta.get("val")
        if node.op == "placeholder" or not isinstance(val, Tensor) or val.device.type != "tpu":
            continue
        if all(isinstance(size, int) for size in val.shape):
            yield node, val


def _packs(saved: _Saved) -> Iterator[list[fx.Node]]:
    """Small tensors of one kind."""
    kinds: dict[Any, list[fx.Node]] = {}
    small = _small()
    for node, val in _made(saved):
        if (
            val.is_contiguous()
            and 0 < val.numel() * val.dtype.itemsize <= small
            and not val.is_conj()
        ):
            flag = node.meta.get("saved_tensor_with_no_vc_check", False)
            kinds.setdefault((val.dtype, val.device, flag), []).append(node)
    return (nodes for nodes in kinds.values() if len(nodes) > _FEW)


def _pack(saved: _Saved) -> None:
    """Small tensors travel as one."""
    for nodes in list(_packs(saved)):
        vals = [node.meta["val"] for node in nodes]
        sizes = [math.prod(val.shape) for val in vals]
        forward, backward = saved.forward, saved.backward
        with forward.inserting_before(forward.output_node()):
            flat = [forward.call_function(aten.view.default, (node, [-1])) for node in nodes]
            pack = forward.call_function(aten.cat.default, (flat,))
        for node, val in zip(flat, vals, strict=True):
            node.meta["val"] = val.view(-1)
        pack.meta["val"] = vals[0].new_empty(sum(sizes))
        if nodes[0].meta.get("saved_tensor_with_no_vc_check", False):
            pack.meta["saved_tensor_with_no_vc_check"] = True
        placeholder = saved.add(pack, nodes[0].name)
        # Before the reshapes that are made again, some of them of these.
        first = next(n for n in backward.nodes if n.op != "placeholder")
        with backward.inserting_before(first):
            parts = backward.call_function(aten.split_with_sizes.default, (placeholder, sizes))
            parts.meta["val"] = list(pack.meta["val"].split_with_sizes(sizes))
            for i, (node, val) in enumerate(zip(nodes, vals, strict=True)):
                part = backward.call_function(operator.getitem, (parts, i))
                part.meta["val"] = parts.meta["val"][i]
                whole = backward.call_function(aten.view.default, (part, list(val.shape)))
                whole.meta["val"] = val
                saved.replace(node.name, whole)


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _is_image(node: fx.Node) -> bool:
    """Whether a convolution gives or takes it."""
    convolution = aten.convolution.default
    takers = (user for user in node.users if user.target is convolution)
    return node.target is convolution or any(user.args[0] is node for user in takers)


def _channels_last(saved: _Saved) -> None:
    """XLA:CPU has the channels innermost around convolutions: what is saved there stays so, instead
    of being brought into another order and back. TPUs lay out either order as well as the other."""
    if not in_host_memory():
        return
    for node, val in list(_made(saved)):
        order = _CHANNELS_LAST.get(val.dim())
        if order is None or not _is_image(node):
            continue
        with saved.forward.inserting_before(saved.forward.output_node()):
            turned = saved.forward.call_function(
                aten.clone.default, (node,), {"memory_format": order}
            )
        turned.meta = {**node.meta, "val": val.contiguous(memory_format=order)}
        saved.replace(node.name, saved.add(turned, node.name))


def split(joint: fx.GraphModule, inputs: Any, **kwargs: Any) -> tuple[fx.GraphModule, ...]:
    """Forward and backward, by the min-cut partitioner."""
    _drop_detach(joint.graph)
    _forget_random_states(joint.graph)
    if config.cse:
        joint.graph.eliminate_dead_code()
        merge_duplicates(joint.graph)
    with config.patch(cse=False):  # its own pass over nodes that compute the same
        return min_cut_rematerialization_partition(joint, inputs, compiler="tpu", **kwargs)


def partition(joint: fx.GraphModule, inputs: Any, **kwargs: Any) -> tuple[fx.GraphModule, ...]:
    """The two graphs; see torch._functorch.partitioners for the arguments."""
    forward, backward = split(joint, inputs, **kwargs)
    saved = _Saved(forward, backward, kwargs["num_fwd_outputs"])
    _save_once(saved)
    _save_unmerged(saved)
    _pack(saved)
    _channels_last(saved)
    for module in (forward, backward):
        module.graph.lint()
        module.recompile()
    return forward, backward
