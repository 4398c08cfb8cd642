"""An FX graph as bytes and back, for the AOTAutograd cache.

Kept are the nodes, the attributes they read and each node's `val`, as sizes, strides, dtype and
device. Symbols keep their ranges; they belong to a new environment, in which nothing is guarded any
more. PyTorch's GraphPickler keeps everything a node knows and takes ten times as long to read.
"""

from __future__ import annotations

import functools
import io
import pickle
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.value_ranges import ValueRanges

from torch_tpu._compile.interpreter import attribute

_LARGEST = 1 << 20  # bytes of one constant
_KINDS: dict[str, type] = {"SymInt": torch.SymInt, "SymFloat": torch.SymFloat}
_PYTHON: dict[str, type] = {"SymInt": int, "SymFloat": float}


class UnstorableError(Exception):
    """The graph holds what only this process knows."""


class Like(torch.Tensor):
    """Sizes, strides, dtype and device of a tensor in a graph; it has no elements."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"{func} on a tensor that is only described")


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.places: dict[fx.Node, int] = {}

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, fx.Node):
            return self.places[obj]
        return "environment" if isinstance(obj, ShapeEnv) else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch._ops.OpOverload):
            return _op, (obj._schema.name, obj._overloadname)
        if isinstance(obj, torch._ops.HigherOrderOperator):
            return _higher_order_op, (obj.name(),)
        if isinstance(obj, torch.Tensor):
            if not isinstance(obj, torch._subclasses.FakeTensor):
                raise UnstorableError("a tensor among a node's arguments")
            return _like, (
                tuple(obj.shape), obj.stride(), obj.storage_offset(), obj.dtype, obj.device,
            )  # fmt: skip
        if isinstance(obj, (torch.SymInt, torch.SymFloat)):
            return self._reduce_symbolic(type(obj).__name__, obj.node)
        if isinstance(obj, fx.GraphModule):
            return loads, (dumps(obj),)
        return NotImplemented

    def _reduce_symbolic(self, kind: str, node: Any) -> Any:
        ranges = node.shape_env.var_to_range
        symbols = sorted(node.expr.free_symbols, key=str)
        if node.hint is None or not all(symbol in ranges for symbol in symbols):
            raise UnstorableError("a size that the data decide")
        known = [(symbol, ranges[symbol].lower, ranges[symbol].upper) for symbol in symbols]
        return _symbolic, (node.shape_env, kind, node.expr, node.hint, known)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.nodes: list[fx.Node] = []
        self.environment = ShapeEnv()

    def persistent_load(self, pid: Any) -> Any:
        return self.environment if pid == "environment" else self.nodes[pid]


def dumps(gm: fx.GraphModule) -> bytes:
    """Raises UnstorableError, or what pickle raises."""
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    nodes = list(gm.graph.nodes)
    targets = {str(node.target) for node in nodes if node.op == "get_attr"}
    pickler.dump({name: _attribute(attribute(gm, name)) for name in sorted(targets)})
    pickler.dump(len(nodes))
    for place, node in enumerate(nodes):
        value = node.meta.get("val")
        pickler.dump((node.op, node.target, node.args, dict(node.kwargs), node.name, value))
        pickler.places[node] = place
    return stream.getvalue()


def loads(data: bytes) -> fx.GraphModule:
    """Of what `dumps` gave."""
    unpickler = _Unpickler(io.BytesIO(data))
    attributes = {name: _constant(value) for name, value in unpickler.load().items()}
    graph = fx.Graph()
    for _ in range(unpickler.load()):
        op, target, args, kwargs, name, value = unpickler.load()
        node = graph.create_node(op, target, args, kwargs, name)
        if value is not None:
            node.meta["val"] = value
        unpickler.nodes.append(node)
    return _LazyGraphModule(attributes, graph)


class _Constant:
    """A tensor with its elements."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device = str(tensor.device)
        self.tensor = tensor.detach().cpu()


def _attribute(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
    if not plain or value.requires_grad or value.numel() * value.dtype.itemsize > _LARGEST:
        raise UnstorableError("a constant that is large or no plain tensor")
    return pickle.dumps(_Constant(value))


def _constant(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    found = pickle.loads(value)
    return found.tensor.to(found.device)


def _op(name: str, overload: str) -> Any:
    namespace, _, plain = name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), plain), overload)


def _higher_order_op(name: str) -> Any:
    return getattr(torch.ops.higher_order, name)


def _like(
    sizes: tuple[Any, ...],
    strides: tuple[Any, ...],
    offset: Any,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    fixed = all(isinstance(number, int) for number in (*sizes, *strides, offset))
    return (_shared if fixed else _describe)(sizes, strides, offset, dtype, device)


def _describe(sizes: Any, strides: Any, offset: Any, dtype: Any, device: Any) -> torch.Tensor:
    return torch.Tensor._make_wrapper_subclass(
        Like, sizes, strides=strides, storage_offset=offset, dtype=dtype, device=device
    )


_shared = functools.lru_cache(4096)(_describe)  # nobody writes to them


def _symbolic(
    environment: ShapeEnv,
    kind: str,
    expr: sympy.Expr,
    hint: Any,
    ranges: list[tuple[sympy.Symbol, Any, Any]],
) -> Any:
    for symbol, lower, upper in ranges:
        environment.var_to_range[symbol] = ValueRanges(lower, upper)
    return _KINDS[kind](SymNode(expr, environment, _PYTHON[kind], hint))
