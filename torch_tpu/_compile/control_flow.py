"""torch.cond, while_loop, scan, map and associative_scan as StableHLO.

Each appears in a graph as one node over subgraphs, in forward and in backward graphs alike. Here
the subgraphs are recorded into the regions of a `stablehlo.if` or `stablehlo.while`. What a region
needs from outside it simply uses; tensors from outside that it writes become further results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._C import DispatchKey
from torch._higher_order_ops.associative_scan import associative_scan_op, generic_associative_scan
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op, while_loop_stack_output_op
from torch.utils import _pytree as pytree

from torch_tpu import _C
from torch_tpu._compile.device_number import DeviceNumber, as_tensor, number_of
from torch_tpu._compile.interpreter import HANDLERS, run_module
from torch_tpu._compile.trip_count import trip_count
from torch_tpu._compile.writes import written_inputs

Leaf = Any  # a tensor, a number or None


class _Subgraph:
    """Runs a node's subgraph into the recording, over flat values."""

    def __init__(self, module: fx.GraphModule, operands: Sequence[Leaf]) -> None:
        self.module = module
        self.device = _device_of(operands)
        self.leaves: list[Leaf] = []  # of the last run
        self.spec: pytree.TreeSpec = pytree.tree_structure(None)

    def __call__(self, *args: Leaf) -> list[torch.Tensor | None]:
        output = run_module(self.module, args)
        self.leaves, self.spec = pytree.tree_flatten(output)
        return [_as_result(leaf, self.device) for leaf in self.leaves]


def _device_of(operands: Sequence[Leaf]) -> torch.device:
    for value in operands:
        tensor = value.tensor if isinstance(value, DeviceNumber) else value
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "tpu":
            return tensor.device
    return torch.device("tpu", torch.accelerator.current_device_index())


def _as_result(value: Leaf, device: torch.device) -> torch.Tensor | None:
    if value is None:
        return None
    return value.to(device) if isinstance(value, torch.Tensor) else as_tensor(value, device)


def _like(result: torch.Tensor | None, *given: Leaf) -> Leaf:
    """A result of a region as what the subgraphs gave for it: a tensor, a number or None."""
    if result is None or isinstance(given[0], torch.Tensor):
        return result
    first = given[0]
    same = all(
        type(value) is type(first) and not isinstance(value, DeviceNumber) for value in given
    )
    return first if same and all(value == first for value in given) else number_of(result)


def _cond(pred: Leaf, true_graph: Any, false_graph: Any, operands: Sequence[Leaf]) -> Any:
    if not isinstance(pred, (torch.Tensor, DeviceNumber)):
        return run_module(true_graph if pred else false_graph, operands)
    on_true = _Subgraph(true_graph, (pred, *operands))
    on_false = _Subgraph(false_graph, (pred, *operands))
    written = sorted(written_inputs(true_graph) | written_inputs(false_graph))

    def branch(graph: _Subgraph) -> list[torch.Tensor | None]:
        given = list(operands)
        for i in written:
            given[i] = operands[i].clone()
        return [*graph(*given), *(given[i] for i in written)]

    results = _C._record_if(
        _as_result(pred, on_true.device), lambda: branch(on_true), lambda: branch(on_false)
    )
    results = _take_writes(results, [operands[i] for i in written])
    return pytree.tree_unflatten(
        [_like(*each) for each in zip(results, on_true.leaves, on_false.leaves, strict=True)],
        on_true.spec,
    )


def _take_writes(results: list[Any], targets: list[torch.Tensor]) -> list[Any]:
    """The last results are new contents for these; gives the others."""
    count = len(results) - len(targets)
    for target, value in zip(targets, results[count:], strict=True):
        target.copy_(value)
    return results[:count]


def _while_loop(
    cond_graph: Any,
    body_graph: Any,
    carried: Sequence[Leaf],
    additional: Sequence[Leaf],
    mutated_arg_indices: str = "",
) -> Any:
    del mutated_arg_indices  # the graphs say it themselves
    operands = (*carried, *additional)
    condition = _Subgraph(cond_graph, operands)
    body = _Subgraph(body_graph, operands)
    written = sorted(written_inputs(body_graph))
    if written_inputs(cond_graph) or (written and written[0] < len(carried)):
        raise NotImplementedError("while_loop: a write into what it carries, or by the condition")
    targets = [operands[i] for i in written]  # carried after the caller's

    def inputs(tensors: list[torch.Tensor]) -> list[Leaf]:
        given = [*values(tensors), *additional]
        for i, tensor in zip(written, tensors[len(carried) :], strict=True):
            given[i] = tensor
        return given

    def values(tensors: list[torch.Tensor]) -> list[Leaf]:
        return [
            tensor if isinstance(init, torch.Tensor) else number_of(tensor)
            for tensor, init in zip(tensors, carried, strict=False)
        ]

    results = _C._record_while(
        [_as_result(init, body.device) for init in (*carried, *targets)],
        lambda tensors: condition(*inputs(tensors))[0],
        lambda tensors: [*body(*inputs(tensors)), *tensors[len(carried) :]],
    )
    return tuple(values(_take_writes(results, targets)))


def _stacked_while_loop(node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The forward pass of a while_loop with gradients: the carries of all iterations."""
    if not _C._is_recording():
        return node.target(*args, **kwargs)  # type: ignore[operator]
    cond_graph, body_graph, carried, additional = args
    nodes: Any = node.args[2:4]
    known = [
        [v if isinstance(v, int) else n for v, n in zip(values, given, strict=True)]
        for values, given in zip((carried, additional), nodes, strict=True)
    ]
    length = trip_count(cond_graph, body_graph, *known)
    if length is None:
        raise NotImplementedError("how many iterations there are to save depends on data")
    if length == 0:
        return tuple(x.unsqueeze(0).clone() for x in carried)
    body = _Subgraph(body_graph, carried)

    def step(tensors: list[torch.Tensor]) -> list[torch.Tensor | None]:
        following = body(*tensors, *additional)
        return [*following, *following]

    inits = [_as_result(x, body.device) for x in carried]
    return tuple(_C._record_scan(inits, [], length, step)[len(carried) :])


def _scan(
    combine_graph: Any, init: Sequence[Leaf], xs: Sequence[Leaf], additional: Sequence[Leaf]
) -> Any:
    combine = _Subgraph(combine_graph, (*init, *xs))
    device = combine.device
    if written_inputs(combine_graph):
        raise NotImplementedError("scan: a function that writes")
    results = _C._record_scan(
        [_as_result(x, device) for x in init],
        [_as_result(x, device) for x in xs],
        xs[0].shape[0],
        lambda tensors: combine(*tensors, *additional),
    )
    return tuple(results)


def _map(graph: Any, xs: Sequence[Leaf], additional: Sequence[Leaf]) -> Any:
    body = _Subgraph(graph, xs)
    if written_inputs(graph):
        raise NotImplementedError("map: a function that writes")
    results = _C._record_scan(
        [],
        [_as_result(x, body.device) for x in xs],
        xs[0].shape[0],
        lambda tensors: body(*tensors, *additional),
    )
    if any(isinstance(leaf, DeviceNumber) for leaf in body.leaves):
        raise NotImplementedError("map: a number that only the program knows, as a result")
    return pytree.tree_unflatten(
        [
            result if isinstance(leaf, torch.Tensor) else leaf
            for result, leaf in zip(results, body.leaves, strict=True)
        ],
        body.spec,
    )


def _associative_scan(combine_graph: Any, xs: Sequence[Leaf], additional: Sequence[Leaf]) -> Any:
    """No loop: about 2 log2(n) calls of the pointwise combine_fn, each on many pairs at once."""
    combine = _Subgraph(combine_graph, xs)
    leaves = [_as_result(x, combine.device) for x in xs]
    return tuple(generic_associative_scan(combine, leaves, additional_inputs=tuple(additional)))


def _item(tensor: torch.Tensor) -> Any:
    return number_of(tensor) if tensor.device.type == "tpu" else tensor.item()


def _when_recording(record: Callable[..., Any]) -> Callable[..., Any]:
    """Where a graph runs op by op, PyTorch's own implementation reads predicates and loops."""

    def handle(node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run: Any = record if _C._is_recording() else node.target
        return run(*args, **kwargs)

    return handle


_OPS: dict[Any, Callable[..., Any]] = {
    cond_op: _cond,
    while_loop_op: _while_loop,
    scan_op: _scan,
    map_impl: _map,
    associative_scan_op: _associative_scan,
}


def _register(op: Any, record: Callable[..., Any]) -> None:
    """For calls from within PyTorch: ops that write come wrapped in auto_functionalized_v2."""
    dense = op.py_kernels[DispatchKey.CompositeExplicitAutograd]

    def run(*args: Any, **kwargs: Any) -> Any:
        return (record if _C._is_recording() else dense)(*args, **kwargs)

    op.py_impl(DispatchKey.PrivateUse1)(run)


for _op, _record in _OPS.items():
    HANDLERS[_op] = _when_recording(_record)
    _register(_op, _record)
HANDLERS[while_loop_stack_output_op] = _stacked_while_loop
HANDLERS[torch.ops.aten._local_scalar_dense.default] = _when_recording(_item)
