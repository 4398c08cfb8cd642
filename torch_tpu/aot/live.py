"""What is in HBM when most is. The compiler lists from when to when each value lives, in whichever
memory; here are those in HBM, and what shares its memory (the values that a loop carries, a result
in the place of an argument) counts once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from torch_tpu.aot.hlo import Computation, Instruction, Module, Shape
from torch_tpu.aot.origin import Origins, Value
from torch_tpu.aot.trace import Argument

_RANGE = re.compile(r"^    (.+)\{([\d,]*)\}:(\d+)-(\d+)$")
_MOST = 40  # that are listed


@dataclass
class Buffer:
    """Something that takes HBM when most is taken."""

    name: str
    kind: str  # that of an argument, or "temporary"
    shape: str
    bytes: int


@dataclass
class _Memory:
    """Values that lie in one place."""

    values: list[tuple[int, int, Value, Shape]] = field(default_factory=list)  # start, end

    @property
    def bytes(self) -> int:
        return max(shape.padded_bytes for _, _, _, shape in self.values)

    def times(self) -> Iterator[tuple[int, int]]:
        """From when to when any of them lives, in order."""
        start, end = -1, -1
        for first, last, _, _ in sorted(self.values, key=lambda v: v[:2]):
            if first > end:
                if end >= 0:
                    yield start, end
                start = first
            end = max(end, last)
        if end >= 0:
            yield start, end


def largest_buffers(text: str, module: Module, origins: Origins) -> list[Buffer]:
    """Of the compiler's live ranges; largest first."""
    memories = [m for m in _memories(text, module, origins) if m.values]
    length = max((last for m in memories for _, last, _, _ in m.values), default=0) + 2
    changes = [0] * length
    for memory in memories:
        for start, end in memory.times():
            changes[start] += memory.bytes
            changes[end + 1] -= memory.bytes
    taken = list(accumulate(changes))
    peak = taken.index(max(taken))
    there = [m for m in memories if any(start <= peak <= end for start, end in m.times())]
    found = sorted((_buffer(m, origins) for m in there), key=lambda b: -b.bytes)
    return found[:_MOST]


def _memories(text: str, module: Module, origins: Origins) -> list[_Memory]:
    leader: dict[Value, Value] = {}

    def find(value: Value) -> Value:
        while (up := leader.get(value, value)) != value:
            value = up
        return value

    for one, other in _shared(module, origins):
        leader[find(one)] = find(other)
    lives = _lives(text, origins)
    for one, other in _written_in_place(module, origins):
        # Only where nobody reads the old contents later.
        if one in lives and other in lives and lives[other][1] <= lives[one][0]:
            leader[find(one)] = find(other)
    out: dict[Value, _Memory] = {}
    for value, (start, end, shape) in lives.items():
        out.setdefault(find(value), _Memory()).values.append((start, end, value, shape))
    return list(out.values())


def _lives(text: str, origins: Origins) -> dict[Value, tuple[int, int, Shape]]:
    """When each array in HBM is made and last read."""
    out: dict[Value, tuple[int, int, Shape]] = {}
    _, _, ranges = text.partition("BufferLiveRange:\n")
    for line in ranges.splitlines():
        match = _RANGE.match(line)
        if match is None:
            break
        name, index = match[1], tuple(int(i) for i in match[2].split(",") if i)
        if name not in origins.instructions:
            continue
        shape = shape_at(origins.instructions[name][1].shape, index)
        if shape is None or shape.parts or shape.space != 0:
            continue
        value, start, end = origins.value(name, index), int(match[3]), int(match[4])
        if value in out:  # the same under another name
            start, end = min(start, out[value][0]), max(end, out[value][1])
        out[value] = start, end, shape
    return out


def _shared(module: Module, origins: Origins) -> Iterator[tuple[Value, Value]]:
    """Pairs of values that lie in the same memory."""
    for computation, loop, called in origins.loops:
        start = computation.by_id[loop.operands[0]].name
        inner = [p for c in called for p in _ends(c)]
        for index in leaves(loop.shape):
            carried = origins.value(loop.name, index)
            for name in (start, *inner):
                yield origins.value(name, index), carried
    entry = module.entry
    names = {i.parameter: i.name for i in entry.instructions if i.opcode == "parameter"}
    for index, number in module.aliases:
        if number in names:
            yield origins.value(entry.by_id[entry.root].name, index), (names[number], ())


def _written_in_place(module: Module, origins: Origins) -> Iterator[tuple[Value, Value]]:
    """Results of updates of an array, and that array, whose memory the compiler uses again."""
    for computation, i in origins.instructions.values():
        number = _updated(module, i)
        if number is not None:
            old = computation.by_id[i.operands[number]].name
            yield origins.value(i.name), origins.value(old)


def _updated(module: Module, i: Instruction) -> int | None:
    """Which operand an instruction updates, if it does."""
    if i.opcode in ("dynamic-update-slice", "scatter"):
        return 0
    if i.opcode != "fusion":
        return None
    fused = module.computations[i.called[0]]
    root = fused.by_id[fused.root]
    while root.opcode in ("bitcast", "reshape"):
        root = fused.by_id[root.operands[0]]
    number = _updated(module, root)
    if number is None:
        return None
    old = fused.by_id[root.operands[number]]
    while old.opcode in ("bitcast", "reshape"):
        old = fused.by_id[old.operands[0]]
    return old.parameter if old.opcode == "parameter" else None


def _ends(computation: Computation) -> Iterator[str]:
    """The parameter of a body or a condition, and what a body gives on."""
    yield from (i.name for i in computation.instructions if i.opcode == "parameter")
    root = computation.by_id[computation.root]
    if root.shape.parts:
        yield root.name


def leaves(shape: Shape, at: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """The places of the arrays in a tuple."""
    if not shape.parts:
        yield at
    for i, part in enumerate(shape.parts):
        yield from leaves(part, (*at, i))


def shape_at(shape: Shape, index: tuple[int, ...]) -> Shape | None:
    """Of a part of a tuple; None where there is no such part."""
    for i in index:
        if i >= len(shape.parts):
            return None
        shape = shape.parts[i]
    return shape


def _buffer(memory: _Memory, origins: Origins) -> Buffer:
    size = memory.bytes
    shape = next(s for _, _, _, s in memory.values if s.padded_bytes == size)
    for _, _, (name, _), _ in memory.values:
        if argument := origins.argument(name):
            return Buffer(argument.name, argument.kind, str(shape), size)
    return Buffer(_label(memory, origins), "temporary", str(shape), size)


def _label(memory: _Memory, origins: Origins) -> str:
    """That of an op that makes it, rather than that of the loop around it."""
    values = [(name, index) for _, _, (name, index), _ in sorted(memory.values, key=lambda v: v[0])]
    for name, _ in values:
        if origins.instructions[name][1].opcode != "while" and (own := origins.own(name)):
            return own
    labels = (origins.label(name, index) for name, index in values)
    return next(filter(None, labels), values[0][0])


def largest_arguments(arguments: list[Argument], devices: int) -> list[Buffer]:
    """Where the compiler says nothing of the rest."""
    made = []
    for a in arguments:
        shape = f"{str(a.dtype).removeprefix('torch.')}[{','.join(map(str, a.shape))}]"
        share = a.bytes // (1 if a.divided is None else devices)
        made.append(Buffer(a.name, a.kind, shape, share))
    return sorted(made, key=lambda b: -b.bytes)[:_MOST]
