"""per_device: a function of one device's parts, run on all devices of a mesh as one program. What
the devices exchange are the functional collectives in it."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_tpu import _C
from torch_tpu.spmd._collectives import InsideProgram
from torch_tpu.spmd._mesh import Mesh, Placements
from torch_tpu.spmd._program import Argument, OfLastCall, Program
from torch_tpu.spmd._tensor import ShardedTensor

_serial = itertools.count()
_MAIN = re.compile(r"func\.func public @main\((.*)\) -> \(?(.*?)\)? \{")
_TENSOR = re.compile(r"tensor<([^>]*(?:<[^>]*>)?[^>]*)>")


@dataclass
class _Variant:
    program: Program
    spec: Any
    results: list[Any]  # the place of a tensor among the program's results, or (the object,)


class PerDevice(OfLastCall):
    """What `per_device` gives: called with tensors of the mesh."""

    def __init__(
        self, function: Callable[..., Any], mesh: Mesh, results: Placements | Sequence[Placements]
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._mesh = mesh
        self._given = results
        self._variants: dict[Any, _Variant] = {}

    def __call__(self, *args: Any) -> Any:
        """Runs the program for such arguments, made now where there is none."""
        flat, spec = tree_flatten(args)
        tensors = []
        key: list[Any] = [str(spec)]
        for value in flat:
            if not isinstance(value, torch.Tensor):
                key.append((type(value), repr(value)))
                continue
            if not isinstance(value, ShardedTensor) or value.mesh != self._mesh:
                raise TypeError(
                    f"[spmd] an argument on {value.device}, not of {self._mesh}: "
                    "torch_tpu.spmd.shard puts it there"
                )
            tensors.append(value)
            key.append((tuple(value.shape), value.dtype, value.placements))
        variant = self._variants.get(tuple(key))
        if variant is None:
            variant = self._variants[tuple(key)] = self._make(flat, spec, tensors)
        self._last = variant.program
        parts = variant.program.run([t.parts for t in tensors])
        made = []
        for how, some in zip(variant.program.results, parts, strict=True):
            like = torch.empty(how.shape, dtype=how.dtype, device="meta")
            made.append(ShardedTensor(self._mesh, how.placements, like, some))
        out = [made[r] if isinstance(r, int) else r[0] for r in variant.results]
        return tree_unflatten(out, variant.spec)

    def _make(self, flat: list[Any], spec: Any, tensors: list[ShardedTensor]) -> _Variant:
        mesh = self._mesh
        with (
            torch.no_grad(),
            torch._C._AutoDispatchBelowAutograd(),
            _C._Recording(mesh.devices[0]) as recording,
            InsideProgram(),
        ):
            stand_ins = []
            for tensor in tensors:
                counts = mesh.counts(tensor.shape, tensor.placements)
                shape = [n // c for n, c in zip(tensor.shape, counts, strict=True)]
                strides = list(torch.empty(shape, device="meta").stride())
                stand_ins.append(recording.parameter(shape, strides, tensor.dtype))
            left = iter(stand_ins)
            args = tree_unflatten(
                [next(left) if isinstance(v, torch.Tensor) else v for v in flat], spec
            )
            found, out_spec = tree_flatten(self._function(*args))
            results: list[Any] = []
            made: list[torch.Tensor] = []
            for value in found:
                if not isinstance(value, torch.Tensor):
                    results.append((value,))
                    continue
                value = getattr(value, "elem", value)  # of a collective that nobody waited for
                shared = any(value is other for other in (*stand_ins, *made))
                results.append(len(made))
                made.append(value.clone() if shared else _C._plain(value))
            name = f"{getattr(self._function, '__name__', 'function')}_{next(_serial)}"
            module = recording.module(name, made)
        program = self._build(name, module, tensors)
        return _Variant(program, out_spec, results)

    def _build(self, name: str, module: dict[str, Any], tensors: list[ShardedTensor]) -> Program:
        mesh = self._mesh
        if any(write >= 0 for write, *_ in module["outputs"]):
            raise RuntimeError("[spmd] a function for each device that writes its arguments")
        placements = [t.placements for t in tensors]
        everyone: tuple[Placement, ...] = tuple(Replicate() for _ in mesh.names)
        kept: list[list[torch.Tensor]] = []
        for value in module["kept"]:
            kept.append(
                []
                if value is None
                else [_C._plain(value.cpu().to(torch.device("tpu", d))) for d in mesh.devices]
            )
            placements.append(everyone)
        chosen = self._results(len(module["outputs"]))
        results = []
        for (_, dtype, shape, _), how in zip(module["outputs"], chosen, strict=True):
            whole = list(shape)
            for size, placement in zip(mesh.shape, how, strict=True):
                if isinstance(placement, Shard):
                    whole[placement.dim % len(whole)] *= size
            results.append(Argument(how, dtype, tuple(whole)))
        flags = [everyone] * len(module["checks"])
        text = _over(module["text"], mesh, placements, [*chosen, *flags])
        outputs = [(-1, dtype) for _, dtype, _, _ in module["outputs"]]
        native = _C._ShardedProgram(
            name, text, list(mesh.devices), outputs, module["checks"], module["draws"]
        )
        return Program(mesh, native, results, text, [], kept)

    def _results(self, count: int) -> list[tuple[Placement, ...]]:
        given: Any = self._given
        several = isinstance(given, (list, tuple)) and not (
            given and all(isinstance(p, Placement) for p in given)
        )
        if not several:
            return [self._mesh.placements(given)] * count
        if len(given) != count:
            raise ValueError(f"[spmd] placements of {len(given)} results, not {count}")
        return [self._mesh.placements(some) for some in given]


def _whole(text: str, mesh: Mesh, placements: Sequence[Placement]) -> str:
    """The type of all parts together."""
    *dims, element = text.split("x") if not text.startswith("complex") else [text]
    sizes = [int(d) for d in dims]
    for size, placement in zip(mesh.shape, placements, strict=True):
        if isinstance(placement, Shard):
            sizes[placement.dim % len(sizes)] *= size
    return "tensor<" + "x".join([*map(str, sizes), element]) + ">"


def _over(
    text: str,
    mesh: Mesh,
    inputs: Sequence[tuple[Placement, ...]],
    results: Sequence[tuple[Placement, ...]],
) -> str:
    """A module of wholes that calls the given one, of parts, on every device. Nothing is left to
    the partitioner inside."""
    main = _MAIN.search(text)
    if main is None:
        raise RuntimeError("[spmd] a module without a main function")
    takes, gives = (_TENSOR.findall(main.group(i)) for i in (1, 2))
    if len(takes) != len(inputs) or len(gives) != len(results):
        raise RuntimeError(f"[spmd] a module of {len(takes)} arguments and {len(gives)} results")

    def wholes(types: list[str], how: Sequence[tuple[Placement, ...]]) -> list[str]:
        return [_whole(t, mesh, p) for t, p in zip(types, how, strict=True)]

    def shardings(types: list[str], how: Sequence[tuple[Placement, ...]]) -> str:
        ranks = [t.count("x") if not t.startswith("complex") else 0 for t in types]
        some = (mesh.sharding(r, p) for r, p in zip(ranks, how, strict=True))
        return ", ".join(s.removeprefix("#sdy.sharding") for s in some)

    def listed(pattern: str, types: list[str]) -> str:
        return ", ".join(pattern.format(i, t) for i, t in enumerate(types))

    parts_in = [f"tensor<{t}>" for t in takes]
    parts_out = [f"tensor<{t}>" for t in gives]
    whole_in, whole_out = wholes(takes, inputs), wholes(gives, results)
    axes = ", ".join(f'"{name}"' for name in mesh.names)
    local = listed("%part{0}", takes)
    calls = f"func.call @per_device({local}) : ({', '.join(parts_in)}) -> ({', '.join(parts_out)})"
    made = listed("%r#{0}", gives) if len(gives) > 1 else "%r"
    outer = f"""
  func.func public @main({listed("%arg{0}: {1}", whole_in)}) -> ({", ".join(whole_out)}) {{
    %out:{len(gives)} = sdy.manual_computation({listed("%arg{0}", takes)})
      in_shardings=[{shardings(takes, inputs)}] out_shardings=[{shardings(gives, results)}]
      manual_axes={{{axes}}} ({listed("%part{0}: {1}", parts_in)}) {{
      %r{f":{len(gives)}" if len(gives) > 1 else ""} = {calls}
      sdy.return {made} : {", ".join(parts_out)}
    }} : ({", ".join(whole_in)}) -> ({", ".join(whole_out)})
    return {listed("%out#{0}", gives)} : {", ".join(whole_out)}
  }}
"""
    inner = main.group(0).replace("public @main", "private @per_device")
    body = text[: main.start()] + inner + text[main.end() :]
    body = body.replace("{\n", "{\n  " + mesh.declaration() + "\n", 1)
    end = body.rstrip().rindex("}")
    return body[:end] + outer.lstrip("\n") + "}\n"


def per_device(
    function: Callable[..., Any], mesh: Mesh, results: Placements | Sequence[Placements]
) -> PerDevice:
    """The function on every device of the mesh, as one program. It gets the parts of its arguments
    that lie there, and what it returns are parts: `results` says of what, for all results or one by
    one. Devices exchange what the function says, with torch.distributed's functional collectives
    over `mesh.group(axis)`; the compiler sees them and overlaps them with other work. For forward
    functions; gradients are `spmd.compile`'s."""
    return PerDevice(function, mesh, results)
