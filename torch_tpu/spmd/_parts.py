"""Functions of one device's parts as programs of a mesh: recorded once, then called on every device
by a module of wholes. Nothing in it is left to the partitioner."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from torch_tpu import _C
from torch_tpu.spmd._collectives import InsideProgram
from torch_tpu.spmd._mesh import Mesh
from torch_tpu.spmd._program import TYPE, Argument, Program

How = tuple[Placement, ...]
_serial = itertools.count()
_MAIN = re.compile(r"func\.func public @main\((.*)\) -> \(?(.*?)\)? \{")
_TENSOR = re.compile(rf"tensor<({TYPE})>")
_CHANNEL = re.compile(r"handle = (\d+)")
_TYPE = re.compile(r"((?:\d+x)*)(.*)")


@dataclass(frozen=True)
class Part:
    """What each device has of a tensor; `how` the parts make up the whole."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    how: How


def part_of(mesh: Mesh, tensor: torch.Tensor, how: How) -> Part:
    """Of a tensor of the mesh."""
    counts = mesh.counts(tensor.shape, how)
    shape = tuple(n // c for n, c in zip(tensor.shape, counts, strict=True))
    return Part(shape, tensor.dtype, how)


@dataclass
class Local:
    """A recorded function of parts."""

    mesh: Mesh
    name: str
    module: dict[str, Any]  # what `_Recording.module` gives
    inputs: list[How]
    results: list[How]
    kept: list[list[torch.Tensor]]  # further arguments, parts each; none: the generator's state
    wholes: list[Argument]  # what the results make up
    _programs: dict[tuple[How, ...], Program] = field(default_factory=dict)

    def program(self, given: Sequence[How]) -> Program:
        """Compiled, for arguments that come so: the compiler divides them as the function wants."""
        key = tuple(given)
        if key not in self._programs:
            self._programs[key] = self._compile(key)
        return self._programs[key]

    def programs(self) -> list[Program]:
        """Those that were compiled."""
        return list(self._programs.values())

    def _compile(self, given: tuple[How, ...]) -> Program:
        everyone: How = tuple(Replicate() for _ in self.mesh.names)
        checks, draws = self.module["checks"], self.module["draws"]
        text = over(self, [*given, *(everyone for _ in self.kept)], [everyone] * len(checks))
        outputs = [(-1, dtype) for _, dtype, _, _ in self.module["outputs"]]
        devices = list(self.mesh.devices)
        native = _C._ShardedProgram(self.name, text, devices, outputs, checks, draws, True)
        return Program(self.mesh, native, self.wholes, text, [], self.kept)


def record(
    mesh: Mesh,
    name: str,
    inputs: Sequence[Part],
    function: Callable[[list[torch.Tensor]], list[torch.Tensor]],
    results: Callable[[int], Sequence[How]],
) -> Local:
    """The function of such parts; `results` says for so many how they make up wholes."""
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
    if any(write >= 0 for write, *_ in module["outputs"]):
        raise RuntimeError("[spmd] a function for each device that writes its arguments")
    kept: list[list[torch.Tensor]] = []
    for value in module["kept"]:
        kept.append(
            []
            if value is None
            else [_C._plain(value.cpu().to(torch.device("tpu", d))) for d in mesh.devices]
        )
    hows = list(results(len(module["outputs"])))
    wholes = []
    for (_, dtype, shape, _), how in zip(module["outputs"], hows, strict=True):
        wholes.append(Argument(how, dtype, tuple(_whole_shape(shape, mesh, how))))
    # The number is not in the text, by which programs are found on disk.
    name = f"{name}_{next(_serial)}"
    return Local(mesh, name, module, [part.how for part in inputs], hows, kept, wholes)


def _whole_shape(shape: Sequence[int], mesh: Mesh, how: Sequence[Placement]) -> list[int]:
    sizes = list(shape)
    for size, placement in zip(mesh.shape, how, strict=True):
        if isinstance(placement, Shard):
            if not -len(sizes) <= placement.dim < len(sizes):
                raise ValueError(f"[spmd] {placement!r} of a result of shape {tuple(shape)}")
            sizes[placement.dim % len(sizes)] *= size
    return sizes


def split_type(text: str) -> tuple[list[int], str]:
    found = _TYPE.fullmatch(text)
    assert found is not None
    return [int(d) for d in found[1].split("x") if d], found[2]


def over(local: Local, given: Sequence[How] | None, flags: Sequence[How], shift: int = 0) -> str:
    """A module of wholes that calls the function on every device. `given`: how the arguments come;
    None for a module that is to be part of another. `flags`: how those of checks are given, as
    numbers or, where they are divided, as one per device. `shift`: of the collectives' channels."""
    mesh, text = local.mesh, local.module["text"]
    main = _MAIN.search(text)
    if main is None:
        raise RuntimeError("[spmd] a module without a main function")
    takes, gives = (_TENSOR.findall(main.group(i)) for i in (1, 2))
    everyone: How = tuple(Replicate() for _ in mesh.names)
    inputs = [*local.inputs, *(everyone for _ in local.kept)]
    results = [*local.results, *flags]
    if len(takes) != len(inputs) or len(gives) != len(results):
        raise RuntimeError(f"[spmd] a module of {len(takes)} arguments and {len(gives)} results")
    parts_out = list(gives)
    returned = ["%r"] if len(gives) == 1 else [f"%r#{i}" for i in range(len(gives))]
    reshapes = ""
    for i in range(len(local.results), len(gives)):
        if results[i] != everyone:
            kind = f"(tensor<{gives[i]}>) -> tensor<1x{gives[i]}>"
            reshapes += f"\n      %flag{i} = stablehlo.reshape {returned[i]} : {kind}"
            parts_out[i], returned[i] = f"1x{gives[i]}", f"%flag{i}"

    def whole(part: str, how: How) -> str:
        dims, element = split_type(part)
        sizes = _whole_shape(dims, mesh, how)
        return "tensor<" + "x".join([*map(str, sizes), element]) + ">"

    def shardings(types: list[str], how: Sequence[How]) -> str:
        ranks = [len(split_type(t)[0]) for t in types]
        some = (mesh.sharding(r, p) for r, p in zip(ranks, how, strict=True))
        return ", ".join(s.removeprefix("#sdy.sharding") for s in some)

    # Said of all, since the compiler forgets how an argument that nobody uses is divided.
    def noted(part: str, kind: str, how: How) -> str:
        if given is None:
            return kind
        return f"{kind} {{sdy.sharding = {mesh.sharding(len(split_type(part)[0]), how)}}}"

    def listed(pattern: str, types: Sequence[str]) -> str:
        return ", ".join(pattern.format(i, t) for i, t in enumerate(types))

    whole_in = [whole(t, p) for t, p in zip(takes, inputs, strict=True)]
    whole_out = [whole(t, p) for t, p in zip(parts_out, results, strict=True)]
    noted_in = [noted(*each) for each in zip(takes, whole_in, given or inputs, strict=True)]
    noted_out = [noted(*each) for each in zip(parts_out, whole_out, results, strict=True)]
    axes = ", ".join(f'"{name}"' for name in mesh.names)
    taken, made = (listed("tensor<{1}>", types) for types in (takes, gives))
    calls = f"func.call @per_device({listed('%part{0}', takes)}) : ({taken}) -> ({made})"
    body = f"%r{f':{len(gives)}' if len(gives) > 1 else ''} = {calls}{reshapes}"
    if mesh.size > 1:
        body = f"""%out:{len(gives)} = sdy.manual_computation({listed("%arg{0}", takes)})
      in_shardings=[{shardings(takes, inputs)}] out_shardings=[{shardings(parts_out, results)}]
      manual_axes={{{axes}}} ({listed("%part{0}: tensor<{1}>", takes)}) {{
      {body}
      sdy.return {", ".join(returned)} : {listed("tensor<{1}>", parts_out)}
    }} : ({", ".join(whole_in)}) -> ({", ".join(whole_out)})"""
        returned = [f"%out#{i}" for i in range(len(gives))]
    else:  # a program of one partition has no such regions, and a part is the whole
        body = body.replace("%part", "%arg")
    outer = f"""
  func.func public @main({listed("%arg{0}: {1}", noted_in)}) -> ({", ".join(noted_out)}) {{
    {body}
    return {", ".join(returned)} : {", ".join(whole_out)}
  }}
"""
    inner = main.group(0).replace("public @main", "private @per_device")
    whole_text = text[: main.start()] + inner + text[main.end() :]
    if given is not None:
        whole_text = whole_text.replace("{\n", "{\n  " + mesh.declaration() + "\n", 1)
    if shift:
        whole_text = _CHANNEL.sub(lambda m: f"handle = {int(m[1]) + shift}", whole_text)
    end = whole_text.rstrip().rindex("}")
    return whole_text[:end] + outer.lstrip("\n") + "}\n"


def channels(local: Local) -> int:
    """The highest number of a channel in it."""
    return max((int(m[1]) for m in _CHANNEL.finditer(local.module["text"])), default=0)


def signature(text: str) -> tuple[list[tuple[str, list[int]]], list[tuple[str, list[int]]]]:
    """Element types and sizes of what a module takes and gives."""
    main = _MAIN.search(text)
    assert main is not None

    def types(part: str) -> list[tuple[str, list[int]]]:
        found = (split_type(t) for t in _TENSOR.findall(part))
        return [(element, dims) for dims, element in found]

    return types(main.group(1)), types(main.group(2))
