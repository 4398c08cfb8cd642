"""A program over a mesh: a recorded module with annotations that say how arguments and results are
divided, partitioned by XLA, run on all devices at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from torch_tpu import _C
from torch_tpu.spmd import _hlo
from torch_tpu.spmd._mesh import Mesh


@dataclass(frozen=True)
class Argument:
    """How a tensor is divided, and what it is."""

    placements: tuple[Placement, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass
class Program:
    """Compiled. `results` tells how each is divided."""

    mesh: Mesh
    native: Any
    results: list[Argument]
    text: str
    writes: list[int]  # arguments that it changes
    kept: list[list[torch.Tensor]]  # further arguments; an empty one is the generator's state

    def run(self, parts: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
        """Takes and gives one list of parts per tensor. Writes are in the arguments afterwards."""
        return self.native.run(parts + self.kept)

    def collectives(self) -> list[_hlo.Collective]:
        """What the partitioned program exchanges between devices."""
        return _hlo.collectives(self.native.optimized())


class OfLastCall:
    """A function that runs as a program tells of the one it ran last."""

    _last: Program | None = None

    def collectives(self) -> list[_hlo.Collective]:
        """What the program of the last call exchanges between devices."""
        return self._program().collectives()

    def text(self) -> str:
        """The StableHLO module of the last call."""
        return self._program().text

    def _program(self) -> Program:
        if self._last is None:
            raise RuntimeError("[spmd] the function has not been called")
        return self._last


def build(name: str, made: dict[str, Any], mesh: Mesh, arguments: list[Argument]) -> Program:
    """From what `_Recording.module` gives. Results stay as the compiler finds them best."""
    everyone = tuple(Replicate() for _ in mesh.names)
    kept: list[list[torch.Tensor]] = []
    inputs: list[tuple[int, tuple[Placement, ...]]] = [
        (len(a.shape), a.placements) for a in arguments
    ]
    for value in made["kept"]:
        if value is None:
            kept.append([])
            inputs.append((1, everyone))
            continue
        host = value.cpu()
        kept.append([_C._plain(host.to(torch.device("tpu", d))) for d in mesh.devices])
        inputs.append((host.dim(), everyone))
    outputs: list[tuple[int, torch.dtype]] = []
    fixed: list[tuple[Placement, ...] | None] = []
    fresh: list[Argument] = []
    for write, dtype, shape, _ in made["outputs"]:
        if write >= 0:
            outputs.append((write, arguments[write].dtype))
            fixed.append(arguments[write].placements)
        else:
            outputs.append((write, dtype))
            fixed.append(None)
            fresh.append(Argument(everyone, dtype, tuple(shape)))
    ranks = [len(shape) for _, _, shape, _ in made["outputs"]]
    flags = [everyone] * len(made["checks"])
    ranks += [0] * len(flags)

    def compile_with(results: Sequence[tuple[Placement, ...] | None]) -> tuple[Any, str]:
        text = annotate(made["text"], mesh, inputs, list(zip(ranks, results, strict=True)))
        checks, draws = made["checks"], made["draws"]
        return (
            _C._ShardedProgram(name, text, list(mesh.devices), outputs, checks, draws),
            text,
        )

    native, text = compile_with([*fixed, *flags])
    found = _placements(native, mesh, [len(f.shape) for f in fresh], fixed, len(flags))
    if found is None:  # divided in a way that has no placements
        native, text = compile_with([*(f or everyone for f in fixed), *flags])
        found = [everyone] * len(fresh)
    results = [Argument(p, f.dtype, f.shape) for p, f in zip(found, fresh, strict=True)]
    writes = [write for write, _ in outputs if write >= 0]
    return Program(mesh, native, results, text, writes, kept)


_MAIN = re.compile(r"func\.func public @main\((.*)\) -> \((.*)\) \{")
TYPE = r"(?:\d+x)*(?:complex<\w+>|\w+)"  # what is inside of a tensor<...>
_PARAMETER = re.compile(rf"(%arg\d+: tensor<{TYPE}>)( \{{([^}}]*)\}})?")
_RESULT = re.compile(rf"tensor<{TYPE}>")


def annotate(
    text: str,
    mesh: Mesh,
    inputs: list[tuple[int, tuple[Placement, ...]]],
    results: list[tuple[int, tuple[Placement, ...] | None]],
) -> str:
    """The module with shardings; (rank, placements) per argument and result."""
    main = _MAIN.search(text)
    if main is None:
        raise RuntimeError("[spmd] a module without a main function")
    parameters = list(_PARAMETER.finditer(main.group(1)))
    types = _RESULT.findall(main.group(2))
    if len(parameters) != len(inputs) or len(types) != len(results):
        raise RuntimeError(
            f"[spmd] a module of {len(parameters)} arguments and {len(types)} results, "
            f"not {len(inputs)} and {len(results)}"
        )
    given = []
    for parameter, (rank, placements) in zip(parameters, inputs, strict=True):
        others = f", {parameter.group(3)}" if parameter.group(3) else ""
        sharding = mesh.sharding(rank, placements)
        given.append(f"{parameter.group(1)} {{sdy.sharding = {sharding}{others}}}")
    made = []
    for kind, (rank, chosen) in zip(types, results, strict=True):
        made.append(
            kind if chosen is None else f"{kind} {{sdy.sharding = {mesh.sharding(rank, chosen)}}}"
        )
    head = f"func.func public @main({', '.join(given)}) -> ({', '.join(made)}) {{"
    annotated = text[: main.start()] + head + text[main.end() :]
    return annotated.replace("{\n", "{\n  " + mesh.declaration() + "\n", 1)


def _placements(
    native: Any,
    mesh: Mesh,
    ranks: list[int],
    fixed: list[tuple[Placement, ...] | None],
    flags: int,
) -> list[tuple[Placement, ...]] | None:
    """Of the results that the compiler divided as it liked; None where they are not placements."""
    if not ranks or mesh.size == 1:
        return [tuple(Replicate() for _ in mesh.names) for _ in ranks]
    count = len(fixed) + flags
    tiles = _hlo.output_tiles(native.optimized(), count)
    if tiles is None:
        return None
    free = [t for t, f in zip(tiles[: len(fixed)], fixed, strict=True) if f is None]
    found = []
    for tile, rank in zip(free, ranks, strict=True):
        placements = placements_of(tile, rank, mesh)
        if placements is None:
            return None
        found.append(placements)
    return found


def placements_of(tiles: _hlo.Tiles | None, rank: int, mesh: Mesh) -> tuple[Placement, ...] | None:
    """The placements that divide a tensor of that rank so, or None."""
    if tiles is None:
        return tuple(Replicate() for _ in mesh.names)
    want = _tile_of_device(tiles, rank)
    candidates: list[list[Placement]] = [[]]
    for _ in mesh.names:
        options: list[Placement] = [Replicate(), *(Shard(d) for d in range(rank))]
        candidates = [[*some, option] for some in candidates for option in options]
    counts = list(tiles.dims[:rank])
    for candidate in candidates:
        split = [1] * rank
        for size, placement in zip(mesh.shape, candidate, strict=True):
            if isinstance(placement, Shard):
                split[placement.dim] *= size
        if split != counts:
            continue
        # On a tensor of one element per tile, a part's place is its tile.
        place = [tuple(s.start for s in index) for index in mesh.parts(counts, candidate)]
        if all(place[device] == tile for device, tile in want.items()):
            return tuple(candidate)
    return None


def _tile_of_device(tiles: _hlo.Tiles, rank: int) -> dict[int, tuple[int, ...]]:
    out = {}
    for position, device in enumerate(tiles.devices):
        place = []
        for dim in reversed(tiles.dims):
            place.append(position % dim)
            position //= dim
        out[device] = tuple(reversed(place))[:rank]
    return out
