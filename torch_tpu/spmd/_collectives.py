"""torch.distributed's functional collectives inside a program over a mesh: each becomes a StableHLO
collective of that program. Groups are axes of the mesh (`Mesh.group`)."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_tpu import _C
from torch_tpu.pallas._jax import extract_functions

_NAMESPACE = "_c10d_functional"
_OP = "torch_tpu_spmd::collective"
_DTYPES = {
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "ui8": torch.uint8,
    "ui16": torch.uint16,
    "ui32": torch.uint32,
    "ui64": torch.uint64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "complex<f32>": torch.complex64,
    "complex<f64>": torch.complex128,
}
Groups = tuple[tuple[int, ...], ...]
_known: dict[str, Groups] = {}
_axes: dict[str, tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...]]] = {}
_held: list[Any] = []
_library: torch.library.Library | None = None


def group_name(shape: tuple[int, ...], names: tuple[str, ...], axes: tuple[str, ...]) -> str:
    """What functional collectives call the group of the devices along these axes of a mesh."""
    import torch._C._distributed_c10d as module

    c10d: Any = module
    unknown = [axis for axis in axes if axis not in names]
    if unknown or not axes or len(set(axes)) != len(axes):
        raise ValueError(f"a group over the axes {axes} of a mesh with {names}")
    name = f"spmd {'x'.join(map(str, shape))} {','.join(names)}: {','.join(axes)}"
    if name in _known:
        return name
    _known[name] = _groups(shape, [names.index(axis) for axis in axes])
    _axes[name] = (shape, names, axes)
    # PyTorch asks the group of a name for its size, and nothing else. Its register owns nothing.
    group: Any = c10d.ProcessGroup(c10d.HashStore(), 0, len(_known[name][0]))
    c10d._register_process_group(name, group)
    _held.append(group)
    return name


def group_size(group: str) -> int:
    """How many devices exchange."""
    return len(_groups_of(group)[0])


def axes_of(group: str, shape: tuple[int, ...], names: tuple[str, ...]) -> frozenset[str] | None:
    """The axes of a group, if it is one of such a mesh."""
    of_shape, of_names, axes = _axes.get(group, ((), (), ()))
    return frozenset(axes) if axes and (of_shape, of_names) == (shape, names) else None


def _groups(shape: tuple[int, ...], axes: list[int]) -> Groups:
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    others = [i for i in range(len(shape)) if i not in axes]

    def places(dims: list[int]) -> list[int]:
        ranges = [range(shape[d]) for d in dims]
        return [
            sum(p * strides[d] for p, d in zip(place, dims, strict=True))
            for place in itertools.product(*ranges)
        ]

    return tuple(tuple(base + place for place in places(axes)) for base in places(others))


class InsideProgram(TorchDispatchMode):
    """While it is entered, functional collectives are ops of the program that is being recorded."""

    def __init__(self) -> None:
        super().__init__()
        define()
        self._count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.torch_tpu_spmd.permute.default:
            x, to, group = args
            return self._make(x, "permute", "sum", _cycles(_groups_of(group), to))
        if func.namespace != _NAMESPACE:
            return func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        return self._call(func._schema.name.split("::")[1], given)

    def _call(self, op: str, given: dict[str, Any]) -> Any:
        if op in ("wait_tensor", "_wrap_tensor_autograd"):  # a program waits by itself
            return next(iter(given.values()))
        if op.endswith("_coalesced"):
            inputs = given.pop("inputs")
            one = op.removesuffix("_coalesced")
            return [self._call(one, {**given, "input": x}) for x in inputs]
        groups = _groups_of(given.get("group_name", given.get("group")))
        x: torch.Tensor = given["input"]
        reduction = str(given.get("reduce_op", "sum")).lower()
        if op in ("all_reduce", "all_reduce_"):
            found = self._make(x, "all_reduce", reduction, groups)
            return x.copy_(found) if op == "all_reduce_" else found
        if op == "all_gather_into_tensor":
            return self._make(x, "all_gather", "sum", groups)
        if op == "reduce_scatter_tensor":
            return self._make(x, "reduce_scatter", reduction, groups)
        if op == "all_to_all_single":
            refuse_uneven(given["output_split_sizes"], given["input_split_sizes"])
            return self._make(x, "all_to_all", "sum", groups)
        if op == "broadcast":
            first = given["src"]
            groups = tuple((g[first], *g[:first], *g[first + 1 :]) for g in groups)
            return self._make(x, "broadcast", "sum", groups)
        raise NotImplementedError(f"[spmd] {op} inside a program of a mesh")

    def _make(self, x: torch.Tensor, op: str, reduction: str, groups: Groups) -> torch.Tensor:
        self._count += 1
        text = ";".join(",".join(map(str, group)) for group in groups)
        made: torch.Tensor = torch.ops.torch_tpu_spmd.collective(
            x.contiguous(), op, reduction, text, str(self._count)
        )
        return made


def refuse_uneven(output_sizes: Sequence[int], input_sizes: Sequence[int]) -> None:
    """One function for all devices has one list of sizes for all of them."""
    if len({*output_sizes, *input_sizes}) > 1:
        raise NotImplementedError(
            f"[spmd] all_to_all_single with pieces of {list(input_sizes)} rows that gives pieces "
            f"of {list(output_sizes)}. Every device runs this function: if each sends k rows to "
            "another, that one gets k from each, and its result has another size than the others'. "
            "torch_tpu.spmd.all_to_all takes a table of sizes, a row per device, and pads."
        )


def _groups_of(group: Any) -> Groups:
    name = group if isinstance(group, str) else getattr(group, "group_name", "")
    if name not in _known:
        raise RuntimeError(
            f"[spmd] a collective of group '{name}' inside a program of a mesh: its groups are "
            'axes of the mesh, mesh.group("tp")'
        )
    return _known[name]


def _cycles(groups: Groups, to: Sequence[int]) -> Groups:
    """In each of which every device sends to the next."""
    found: list[tuple[int, ...]] = []
    for group in groups:
        left = set(range(len(group)))
        while left:
            cycle = [min(left)]
            while to[cycle[-1]] != cycle[0]:
                cycle.append(to[cycle[-1]])
            left -= set(cycle)
            found.append(tuple(group[i] for i in cycle))
    return tuple(found)


def _parse(groups: str) -> list[list[int]]:
    return [[int(i) for i in group.split(",")] for group in groups.split(";")]


def _shape(shape: list[int], op: str, size: int) -> list[int]:
    if op in ("all_gather", "reduce_scatter", "all_to_all") and not shape:
        raise ValueError(f"[spmd] {op} of a tensor without dimensions")
    if op in ("reduce_scatter", "all_to_all") and shape[0] % size:
        raise ValueError(f"[spmd] {op} of {shape[0]} rows over {size} devices")
    if op == "all_gather":
        return [shape[0] * size, *shape[1:]]
    return [shape[0] // size, *shape[1:]] if op == "reduce_scatter" else shape


def _lower(described: list[tuple[str, Any]], _platform: str, _precision: str) -> Any:
    (dtype, dims), op, reduction, groups, number = (value for _, value in described)
    parsed = _parse(groups)
    text = _C._collective_module(op, _DTYPES[dtype], list(dims), parsed, reduction)
    # Collectives of one program are told apart by their channels.
    text = re.sub(r"handle = (\d+)", lambda m: f"handle = {int(m[1]) + 2 * int(number)}", text)
    result = (dtype, _shape(list(dims), op, len(parsed[0])))
    symbol, functions = extract_functions(text, f"spmd_{op}")
    return symbol, functions, [(dtype, list(dims))], [result]


def define() -> None:
    """The ops that stand for collectives while a function is traced and recorded."""
    global _library
    if _library is not None:
        return
    library = torch.library.Library("torch_tpu_spmd", "FRAGMENT")
    library.define(
        "collective(Tensor input, str op, str reduction, str groups, str channel) -> Tensor"
    )

    def fake(x: torch.Tensor, op: str, reduction: str, groups: str, channel: str) -> torch.Tensor:
        return x.new_empty(_shape(list(x.shape), op, len(_parse(groups)[0])))

    torch.library.register_fake(_OP, fake, lib=library)
    _C._register_foreign(_OP, [], _lower, None, False)
    _define_permute(library)
    _library = library


def _define_permute(library: torch.library.Library) -> None:
    """Functional collectives have none: theirs asks for this process's rank."""
    name = "torch_tpu_spmd::permute"
    library.define("permute(Tensor input, int[] to, str group_name) -> Tensor")
    torch.library.register_fake(name, lambda x, to, group: torch.empty_like(x), lib=library)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.to, ctx.group = inputs

    def gradient(ctx: Any, grad: torch.Tensor) -> Any:
        back = [list(ctx.to).index(i) for i in range(len(ctx.to))]
        return torch.ops.torch_tpu_spmd.permute(grad, back, ctx.group), None, None

    torch.library.register_autograd(name, gradient, setup_context=keep, lib=library)
