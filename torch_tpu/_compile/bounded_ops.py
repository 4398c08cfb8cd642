"""Calls of a graph's nodes where sizes vary: which ops may be called as they are, which arguments
may be sizes, and the views that count from the end of a dimension."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch import fx

from torch_tpu import _C
from torch_tpu._compile.sizes import UnprovenError, expression

if TYPE_CHECKING:
    from torch_tpu._compile.bounded_recorder import Recorder

aten = torch.ops.aten

# Views whose geometry at the bound is that of the true sizes, and copies; arguments may be sizes.
_VIEWS = {
    aten.clone.default,
    aten._to_copy.default,
    aten.contiguous.default,
    aten.expand.default,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    aten.view_as_real.default,
    aten.view_as_complex.default,
}
_RESHAPES = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.view_copy.default,
}
# Calls of ATen's own that only pass their arguments on.
_TRANSPARENT = {
    aten.mul.Scalar,
    aten.add.Scalar,
    aten.sub.Scalar,
    aten.div.Scalar,
    aten.div.Scalar_mode,
    aten.rsub.Scalar,
    aten.celu.default,
    aten.convolution.default,
    aten.convolution_backward.default,
    aten.unsqueeze_copy.default,
    aten.transpose_copy.int,
    aten.permute_copy.default,
    aten.expand_copy.default,
    aten.t_copy.default,
    aten.squeeze_copy.dim,
    aten.squeeze_copy.dims,
}
# New tensors whose elements do not depend on the sizes.
_CREATION = {
    aten.full.default: ("fill_value",),
    aten.zeros.default: (),
    aten.ones.default: (),
    aten.empty.memory_format: (),
    aten.new_zeros.default: (),
    aten.new_ones.default: (),
    aten.new_full.default: ("fill_value",),
    aten.new_empty.default: (),
    aten.arange.default: (),
    aten.arange.start: ("start",),
    aten.arange.start_step: ("start", "step"),
    aten.eye.default: (),
    aten.eye.m: (),
}
_LIKE = {
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.empty_like.default,
    aten.full_like.default,
}
# Ops of the table that take sizes as such.
_SIZED = {
    aten.native_layer_norm.default,
    aten.native_layer_norm_backward.default,
    aten._fused_rms_norm.default,
    aten._fused_rms_norm_backward.default,
    aten.native_group_norm.default,
    aten.native_group_norm_backward.default,
    aten.embedding_dense_backward.default,
    aten._scaled_dot_product_fused_attention_overrideable_backward.default,
}


@functools.cache
def _proven() -> frozenset[str]:
    return frozenset(name for name, _ in _C._bounded_ops())


def _is_size(argument: Any) -> bool:
    """A node whose value is a symbolic number."""
    if not isinstance(argument, fx.Node):
        return False
    value = argument.meta.get("val")
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _varies(recorder: Recorder, argument: Any) -> bool:
    """A symbolic number that is no constant after all."""
    if not _is_size(argument):
        return False
    value = argument.meta["val"]
    return not isinstance(value, torch.SymInt) or bool(recorder.expression(value).free_symbols)


def call(recorder: Recorder, node: fx.Node) -> tuple[Any, bool]:
    """The node's result, and whether a part of what counts was dropped."""
    target: Any = node.target
    handler = _HANDLERS.get(target)
    if handler is not None:
        return handler(recorder, node)
    look_up = recorder.env.__getitem__
    args: Any = fx.node.map_arg(node.args, look_up)
    kwargs: Any = fx.node.map_arg(node.kwargs, look_up)
    if target is operator.getitem:
        return args[0][args[1]], False
    if not isinstance(target, torch._ops.OpOverload):
        raise UnprovenError("not an op of ATen's")
    if target in _VIEWS or target in _LIKE:
        _forbid_numbers(recorder, node, target in _LIKE)
        return target(*args, **kwargs), False
    if target in _RESHAPES:
        # The traced layout let it be a view; what a lowering gives may lie otherwise.
        return _reshape(recorder, node, args[0], aten.reshape.default(*args, **kwargs)), False
    if target in _CREATION:
        _forbid(recorder, node, _CREATION[target])
        return target(*args, **kwargs), False
    name = target._schema.name.removeprefix("aten::")
    if target._schema.overload_name:
        name += f".{target._schema.overload_name}"
    touched = any(recorder.varying(t) for t in _tensors(args, kwargs)) or _symbolic(recorder, node)
    if touched and name not in _proven() and target not in _TRANSPARENT:
        raise UnprovenError("not proven where dimensions vary")
    merged = _packed(recorder, node)
    if merged:
        look_up = {**recorder.env, **merged}.__getitem__
        args = fx.node.map_arg(node.args, look_up)
        kwargs = fx.node.map_arg(node.kwargs, look_up)
    target, args, kwargs = _with_numbers(recorder, node, args, kwargs)
    result = target(*args, **kwargs)
    # A number that became a tensor may promote a 0-d result.
    meta = node.meta.get("val")
    if isinstance(meta, torch.Tensor) and result.dtype != meta.dtype:
        result = result.to(meta.dtype)
    return result, False


def _reshape(recorder: Recorder, node: fx.Node, tensor: Any, view: Any) -> Any:
    """The view at the bound, where that shows what counts; else its elements are moved."""
    try:
        recorder.scope.look(view, [])
        return view
    except ValueError:
        exprs = [recorder.expression(size) for size in node.meta["val"].shape]
        sizes = [recorder.numbers.extents(expr) for expr in exprs]
        return recorder.scope.reshape(tensor, list(view.shape), sizes)


def _packed(recorder: Recorder, node: fx.Node) -> dict[fx.Node, torch.Tensor]:
    """`[B, T]` seen as `[B*T]` has gaps, a `[B*T]` that was given has none. Where an op meets both,
    the elements of the first are moved together."""
    forms: dict[Any, set[bool]] = {}
    gaps: list[fx.Node] = []
    sources = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    if len(sources) < 2:
        return {}
    for source in sources:
        known = recorder.scope.look(recorder.env[source], [])
        if any(factors > 1 for factors, _ in known):
            gaps.append(source)
        for size, (factors, _) in zip(source.meta["val"].shape, known, strict=True):
            if factors > 0:
                forms.setdefault(recorder.expression(size), set()).add(factors > 1)
    if not any(len(kinds) > 1 for kinds in forms.values()):
        return {}
    found = {}
    for source in gaps:
        tensor = recorder.env[source]
        exprs = [recorder.expression(size) for size in source.meta["val"].shape]
        sizes = [recorder.numbers.extents(expr) for expr in exprs]
        found[source] = recorder.scope.reshape(tensor, list(tensor.shape), sizes)
    return found


def _tensors(args: Any, kwargs: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    torch.utils._pytree.tree_map_only(torch.Tensor, found.append, (args, kwargs))
    return [tensor for tensor in found if tensor.device.type == "tpu"]


def _symbolic(recorder: Recorder, node: fx.Node) -> bool:
    from torch_tpu._compile.plan import tensors_of

    return any(
        bool(recorder.expression(size).free_symbols)
        for tensor in tensors_of(node.meta.get("val"))
        for size in tensor.shape
    )


def _named(node: fx.Node) -> dict[str, Any]:
    schema = node.target._schema  # type: ignore[union-attr]
    names = [argument.name for argument in schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _forbid(recorder: Recorder, node: fx.Node, names: tuple[str, ...]) -> None:
    given = _named(node)
    for name in names:
        if _varies(recorder, given.get(name)):
            raise UnprovenError(f"{name} depends on a size")


def _forbid_numbers(recorder: Recorder, node: fx.Node, all_arguments: bool) -> None:
    if all_arguments:
        _forbid(recorder, node, tuple(_named(node)))


def _with_numbers(
    recorder: Recorder, node: fx.Node, args: Any, kwargs: Any
) -> tuple[Any, list[Any], dict[str, Any]]:
    """Numbers that depend on sizes become values of the program."""
    target: Any = node.target
    arguments = target._schema.arguments
    out = list(args)
    for i, argument in enumerate(node.args):
        given: Any = argument
        items = given if isinstance(given, (list, tuple)) else [given]
        if not any(_varies(recorder, item) for item in items):
            continue
        if target in _SIZED and "SymInt" in str(arguments[i].real_type):
            continue
        if target in _SIZED and str(arguments[i].type) in ("int", "List[int]", "Optional[int]"):
            continue
        if isinstance(given, (list, tuple)) or isinstance(given.meta["val"], torch.SymBool):
            raise UnprovenError(f"{arguments[i].name} depends on a size")
        number = _number(recorder, node, given.meta["val"])
        if str(arguments[i].type) == "Tensor":
            out[i] = number
        elif target._overloadname == "Scalar" and hasattr(target._overloadpacket, "Tensor"):
            target = target._overloadpacket.Tensor
            out[i] = number
        else:
            raise UnprovenError(f"{arguments[i].name} depends on a size")
    for name, given in node.kwargs.items():
        if _varies(recorder, given):
            raise UnprovenError(f"{name} depends on a size")
    return target, out, dict(kwargs)


def _number(recorder: Recorder, node: fx.Node, value: Any) -> torch.Tensor:
    if isinstance(value, torch.SymInt):
        return recorder.scope.number(recorder.numbers[expression(value)])
    result = node.meta.get("val")
    if not isinstance(result, torch.Tensor) or result.dtype in (torch.float64, torch.complex128):
        raise UnprovenError("a number in double precision that depends on a size")
    return recorder.scope.float_number(recorder.numbers.floats.index(value.node.expr))


def _select(recorder: Recorder, node: fx.Node) -> tuple[Any, bool]:
    given = _named(node)
    tensor = recorder.env[given["self"]]
    dim = given["dim"] % tensor.dim()
    if dim not in recorder.varying(tensor):
        _forbid(recorder, node, ("index",))
        return aten.select.int(tensor, dim, given["index"]), False
    index = _expression_of(recorder, given["index"])
    if not index.free_symbols and index < 0:
        index = index + recorder.expression(given["self"].meta["val"].shape[dim])
    size = recorder.at_samples(recorder.expression(given["self"].meta["val"].shape[dim]))
    if not all(0 <= i < n for i, n in zip(recorder.at_samples(index), size, strict=True)):
        raise UnprovenError("an index that may be out of range")
    return recorder.scope.select(tensor, dim, *recorder.numbers.extents(index)), False


def _expression_of(recorder: Recorder, value: Any) -> Any:
    return recorder.expression(value.meta["val"] if isinstance(value, fx.Node) else value)


def _slice(recorder: Recorder, node: fx.Node) -> tuple[Any, bool]:
    given = _named(node)
    tensor = recorder.env[given["self"]]
    dim = given.get("dim", 0) % tensor.dim()
    source = recorder.expression(given["self"].meta["val"].shape[dim])
    result = recorder.expression(node.meta["val"].shape[dim])
    step = given.get("step", 1)
    if dim not in recorder.varying(tensor):
        if any(_varies(recorder, given.get(name)) for name in ("start", "end", "step")):
            return _slice_to(recorder, node, tensor, dim)
        args = fx.node.map_arg(node.args, recorder.env.__getitem__)
        return aten.slice.Tensor(*args), False
    if result == source and step == 1:
        return tensor, False
    start = _expression_of(recorder, given.get("start") if given.get("start") is not None else 0)
    if not start.free_symbols and start < 0:
        start = start + source
    length = recorder.at_bound(result)
    if not start.free_symbols:
        limit = min(int(start) + (length - 1) * step + 1, tensor.shape[dim])
        return aten.slice.Tensor(tensor, dim, int(start), limit, step), True
    ends = [
        s + n for s, n in zip(recorder.at_samples(start), recorder.at_samples(result), strict=True)
    ]
    inside = all(e <= n for e, n in zip(ends, recorder.at_samples(source), strict=True))
    if step != 1 or not inside or min(recorder.at_samples(start)) < 0:
        raise UnprovenError("a slice that depends on a size")
    return recorder.scope.slice(tensor, dim, *recorder.numbers.extents(start), length), False


def _slice_to(
    recorder: Recorder, node: fx.Node, tensor: torch.Tensor, dim: int
) -> tuple[Any, bool]:
    """A slice of a fixed dimension whose end depends on a size: positions[:, :n]."""
    given = _named(node)
    start = _expression_of(recorder, given.get("start") if given.get("start") is not None else 0)
    result = recorder.expression(node.meta["val"].shape[dim])
    if given.get("step", 1) != 1:
        raise UnprovenError("a slice with a step that depends on a size")
    length = recorder.at_bound(result)
    whole = tensor.shape[dim]
    ends = [
        s + n for s, n in zip(recorder.at_samples(start), recorder.at_samples(result), strict=True)
    ]
    if min(recorder.at_samples(start)) < 0 or max(ends) > whole:
        raise UnprovenError("a slice that may be out of range")
    if start.free_symbols or int(start) + length > whole:
        return recorder.scope.slice(tensor, dim, *recorder.numbers.extents(start), length), False
    first = int(start)
    return aten.slice.Tensor(tensor, dim, first, first + length), False


def _slice_backward(recorder: Recorder, node: fx.Node) -> tuple[Any, bool]:
    given = _named(node)
    grad = recorder.env[given["grad_output"]]
    dim = given["dim"] % grad.dim()
    start = _expression_of(recorder, given["start"] if given["start"] is not None else 0)
    source = recorder.expression(node.meta["val"].shape[dim])
    if not start.free_symbols and start < 0:
        start = start + source
    if given["step"] != 1 or min(recorder.at_samples(start)) < 0:
        raise UnprovenError("the gradient of a slice that depends on a size")
    length = recorder.at_bound(source)
    at = recorder.numbers.extents(start)
    return recorder.scope.unslice(grad, dim, *at, length), False


def _select_backward(recorder: Recorder, node: fx.Node) -> tuple[Any, bool]:
    given = _named(node)
    grad = recorder.env[given["grad_output"]]
    dim = given["dim"] % (grad.dim() + 1)
    index = _expression_of(recorder, given["index"])
    source = recorder.expression(node.meta["val"].shape[dim])
    if not index.free_symbols and index < 0:
        index = index + source
    if min(recorder.at_samples(index)) < 0:
        raise UnprovenError("an index that may be out of range")
    at = recorder.numbers.extents(index)
    return recorder.scope.unslice(grad.unsqueeze(dim), dim, *at, recorder.at_bound(source)), False


def _slice_scatter(recorder: Recorder, node: fx.Node) -> tuple[Any, bool]:
    given = _named(node)
    if given.get("step", 1) != 1:
        raise UnprovenError("a slice with a step is written")
    part = recorder.env[given["src"]]
    dim = given.get("dim", 0) % part.dim()
    start = _expression_of(recorder, given.get("start") if given.get("start") is not None else 0)
    length = recorder.expression(given["src"].meta["val"].shape[dim])
    return _write_part(recorder, node, part, dim, start, length)


def _select_scatter(recorder: Recorder, node: fx.Node) -> tuple[Any, bool]:
    given = _named(node)
    part = recorder.env[given["src"]]
    dim = given["dim"] % (part.dim() + 1)
    start = _expression_of(recorder, given["index"])
    return _write_part(recorder, node, part.unsqueeze(dim), dim, start, sympy.Integer(1))


def _write_part(
    recorder: Recorder, node: fx.Node, part: torch.Tensor, dim: int, start: Any, length: Any
) -> tuple[Any, bool]:
    """The part that is written lies among zeros, and a mask says where."""
    whole = recorder.expression(node.meta["val"].shape[dim])
    if not start.free_symbols and start < 0:
        start = start + whole
    places = zip(*(recorder.at_samples(e) for e in (start, length, whole)), strict=True)
    if not all(at >= 0 and at + n <= size for at, n, size in places):
        raise UnprovenError("a part that depends on a size is written")
    at, size = recorder.numbers.extents(start), recorder.at_bound(whole)
    mask = aten.ones_like.default(part, dtype=torch.bool)
    placed, written = (
        recorder.settle(recorder.scope.unslice(value, dim, *at, size), node.meta["val"])
        for value in (part, mask)
    )
    return aten.where.self(written, placed, recorder.env[_named(node)["self"]]), False


def _sym_size(recorder: Recorder, node: fx.Node) -> tuple[Any, bool]:
    return recorder.at_bound(recorder.expression(node.meta["val"])), False


def _nothing(recorder: Recorder, node: fx.Node) -> tuple[Any, bool]:
    del recorder, node
    return None, False


def _split(recorder: Recorder, node: fx.Node) -> tuple[Any, bool]:
    given = _named(node)
    tensor = recorder.env[given["self"]]
    dim = given.get("dim", 0) % tensor.dim()
    if dim in recorder.varying(tensor):
        raise UnprovenError("a dimension that varies is split")
    args = fx.node.map_arg(node.args, recorder.env.__getitem__)
    kwargs = fx.node.map_arg(node.kwargs, recorder.env.__getitem__)
    return node.target(*args, **kwargs), False  # type: ignore[operator]


_HANDLERS: dict[Any, Callable[[Recorder, fx.Node], tuple[Any, bool]]] = {
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.slice_backward.default: _slice_backward,
    aten.select_backward.default: _select_backward,
    aten.slice_scatter.default: _slice_scatter,
    aten.select_scatter.default: _select_scatter,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.unbind.int: _split,
    aten.sym_size.int: _sym_size,
    aten._assert_scalar.default: _nothing,
    aten._assert_tensor_metadata.default: _nothing,
    torch._check: _nothing,
}
