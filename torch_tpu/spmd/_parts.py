"""Functions of one device's parts as programs of a mesh: recorded once, then called on every device
by a module of wholes. Nothing in it is left to the partitioner."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from torch_tpu import _C
from torch_tpu.spmd._collectives import InsideProgram
from torch_tpu.spmd._mesh import Mesh
from torch_tpu.spmd._program import Argument, Program

How = tuple[Placement, ...]
_serial = itertools.count()
_MAIN = re.compile(r"func\.func public @main\((.*)\) -> \(?(.*?)\)? \{")
_TENSOR = re.compile(r"tensor<([^>]*(?:<[^>]*>)?[^>]*)>")
_TYPE = re.compile(r"((?:\d+x)*)(.*)")


@dataclass(frozen=True)
class Part:
    """What each device has of a tensor; `how` the parts make up the whole."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    how: How


def part_of(mesh: Mesh, tensor: Any) -> Part:
    """Of a tensor of the mesh."""
    counts = mesh.counts(tensor.shape, tensor.placements)
    shape = tuple(n // c for n, c in zip(tensor.shape, counts, strict=True))
    return Part(shape, tensor.dtype, tensor.placements)


def make_program(
    mesh: Mesh,
    name: str,
    inputs: Sequence[Part],
    function: Callable[[list[torch.Tensor]], list[torch.Tensor]],
    results: Callable[[int], Sequence[How]],
    given: Sequence[How] | None = None,
) -> Program:
    """The function on every device; `results` says for so many how they make up wholes. `given`:
    how the arguments come, where they are not divided as the function takes them."""
    name = f"{name}_{next(_serial)}"
    with (
        torch.no_grad(),
        torch._C._AutoDispatchBelowAutograd(),
        _C._Recording(mesh.devices[0]) as recording,
        InsideProgram(),
    ):
        stand_ins = []
        for part in inputs:
            strides = list(torch.empty(part.shape, device="meta").stride())
            stand_ins.append(recording.parameter(list(part.shape), strides, part.dtype))
        made: list[torch.Tensor] = []
        for value in function(stand_ins):
            value = getattr(value, "elem", value)  # of a collective that nobody waited for
            shared = any(value is other for other in (*stand_ins, *made))
            made.append(value.clone() if shared else _C._plain(value))
        module = recording.module(name, made)
    return _build(mesh, name, module, [part.how for part in inputs], results, given)


def _build(
    mesh: Mesh,
    name: str,
    module: dict[str, Any],
    inputs: list[How],
    results: Callable[[int], Sequence[How]],
    given: Sequence[How] | None,
) -> Program:
    if any(write >= 0 for write, *_ in module["outputs"]):
        raise RuntimeError("[spmd] a function for each device that writes its arguments")
    everyone: How = tuple(Replicate() for _ in mesh.names)
    kept: list[list[torch.Tensor]] = []
    for value in module["kept"]:
        kept.append(
            []
            if value is None
            else [_C._plain(value.cpu().to(torch.device("tpu", d))) for d in mesh.devices]
        )
    chosen = list(results(len(module["outputs"])))
    wholes = []
    for (_, dtype, shape, _), how in zip(module["outputs"], chosen, strict=True):
        wholes.append(Argument(how, dtype, tuple(_whole_shape(shape, mesh, how))))
    flags = [everyone] * len(module["checks"])
    others = [everyone] * len(kept)
    text = _over(
        module["text"],
        mesh,
        [*inputs, *others],
        [*chosen, *flags],
        [*(inputs if given is None else given), *others],
    )
    outputs = [(-1, dtype) for _, dtype, _, _ in module["outputs"]]
    native = _C._ShardedProgram(
        name, text, list(mesh.devices), outputs, module["checks"], module["draws"]
    )
    return Program(mesh, native, wholes, text, [], kept)


def _whole_shape(shape: Sequence[int], mesh: Mesh, how: Sequence[Placement]) -> list[int]:
    sizes = list(shape)
    for size, placement in zip(mesh.shape, how, strict=True):
        if isinstance(placement, Shard):
            if not -len(sizes) <= placement.dim < len(sizes):
                raise ValueError(f"[spmd] {placement!r} of a result of shape {tuple(shape)}")
            sizes[placement.dim % len(sizes)] *= size
    return sizes


def _split_type(text: str) -> tuple[list[int], str]:
    found = _TYPE.fullmatch(text)
    assert found is not None
    return [int(d) for d in found[1].split("x") if d], found[2]


def _over(
    text: str,
    mesh: Mesh,
    inputs: Sequence[How],
    results: Sequence[How],
    given: Sequence[How],
) -> str:
    """A module of wholes that calls the given one, of parts, on every device."""
    main = _MAIN.search(text)
    if main is None:
        raise RuntimeError("[spmd] a module without a main function")
    takes, gives = (_TENSOR.findall(main.group(i)) for i in (1, 2))
    if len(takes) != len(inputs) or len(gives) != len(results):
        raise RuntimeError(f"[spmd] a module of {len(takes)} arguments and {len(gives)} results")

    def whole(part: str, how: How) -> str:
        dims, element = _split_type(part)
        sizes = _whole_shape(dims, mesh, how)
        return "tensor<" + "x".join([*map(str, sizes), element]) + ">"

    def wholes(types: list[str], how: Sequence[How]) -> list[str]:
        return [whole(t, p) for t, p in zip(types, how, strict=True)]

    def shardings(types: list[str], how: Sequence[How]) -> str:
        ranks = [len(_split_type(t)[0]) for t in types]
        some = (mesh.sharding(r, p) for r, p in zip(ranks, how, strict=True))
        return ", ".join(s.removeprefix("#sdy.sharding") for s in some)

    def listed(pattern: str, types: list[str]) -> str:
        return ", ".join(pattern.format(i, t) for i, t in enumerate(types))

    parts_in = [f"tensor<{t}>" for t in takes]
    parts_out = [f"tensor<{t}>" for t in gives]
    whole_in, whole_out = wholes(takes, inputs), wholes(gives, results)

    # Said of all, since the compiler forgets how an argument that nobody uses is divided.
    def noted(part: str, kind: str, how: How) -> str:
        return f"{kind} {{sdy.sharding = {mesh.sharding(len(_split_type(part)[0]), how)}}}"

    noted_in = [noted(*each) for each in zip(takes, whole_in, given, strict=True)]
    noted_out = [noted(*each) for each in zip(gives, whole_out, results, strict=True)]
    axes = ", ".join(f'"{name}"' for name in mesh.names)
    local = listed("%part{0}", takes)
    calls = f"func.call @per_device({local}) : ({', '.join(parts_in)}) -> ({', '.join(parts_out)})"
    made = listed("%r#{0}", gives) if len(gives) > 1 else "%r"
    outer = f"""
  func.func public @main({listed("%arg{0}: {1}", noted_in)}) -> ({", ".join(noted_out)}) {{
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
