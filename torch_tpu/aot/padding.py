"""What tiles cost: arrays lie in HBM in tiles of 8x128 (16x128 for 16-bit types), and a dimension
that no tile divides is filled up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from torch_tpu.aot.hlo import Instruction, Module, Shape
from torch_tpu.aot.trace import Argument

LANES = 128
SUBLANES = 8
_WORTH = 64 * 1024  # bytes of waste below which nobody cares
_LAYER = re.compile(r"\.\d+(?=[./])")


@dataclass
class Waste:
    """An array that takes more memory than its elements need."""

    name: str
    kind: str  # that of an argument, or "temporary"
    shape: str
    dims: list[int]
    padded: list[int]
    bytes: int
    padded_bytes: int
    count: int = 1
    fix: str = ""

    @property
    def waste(self) -> int:
        return (self.padded_bytes - self.bytes) * self.count


def find_waste(module: Module, arguments: list[Argument]) -> list[Waste]:
    """Largest first; temporaries of the same shape and origin together."""
    out: list[Waste] = []
    for instruction in module.entry.instructions:
        if instruction.opcode == "parameter" and instruction.parameter < len(arguments):
            argument = arguments[instruction.parameter]
            _add(out, argument.name, argument.kind, instruction.shape)
    together: dict[tuple[str, str], Waste] = {}
    for instruction in _temporaries(module):
        for shape in instruction.shape.parts or (instruction.shape,):
            found: list[Waste] = []
            _add(found, instruction.op_name or instruction.name, "temporary", shape)
            for waste in found:
                waste.name = _LAYER.sub(".*", waste.name)  # layers are alike
                key = (waste.name, waste.shape)
                if key in together:
                    together[key].count += 1
                else:
                    together[key] = waste
    out += together.values()
    return sorted(out, key=lambda w: -w.waste)


def _temporaries(module: Module) -> Iterable[Instruction]:
    fused = {
        c
        for computation in module.computations.values()
        for i in computation.instructions
        if i.opcode not in ("while", "conditional", "call")
        for c in i.called
    }
    skip = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant", "while"}
    for computation in module.computations.values():
        if computation.id in fused:
            continue
        for instruction in computation.instructions:
            if instruction.opcode not in skip and not instruction.opcode.endswith("-done"):
                yield instruction


def _add(out: list[Waste], name: str, kind: str, shape: Shape) -> None:
    if shape.space != 0 or not shape.dims or shape.padded_bytes - shape.bytes < _WORTH:
        return
    out.append(
        Waste(
            name,
            kind,
            str(shape),
            list(shape.dims),
            list(shape.padded_dims),
            shape.bytes,
            shape.padded_bytes,
            fix=fix_of(list(shape.dims), list(shape.padded_dims), shape.order),
        )
    )


def fix_of(dims: list[int], padded: list[int], order: tuple[int, ...]) -> str:
    """What to do about it, in words.

    >>> fix_of([8, 12, 1024, 64], [8, 12, 1024, 128], (3, 2, 1, 0))
    'dim 3: 64 -> 128 (fills half of each tile; if it is a head dim, use 128 and fewer heads)'
    >>> fix_of([1, 32, 2048], [1, 128, 2048], (1, 2, 0))
    'dim 1: 32 -> 128 (the compiler laid it innermost: a multiple of 128 fills its tiles)'
    """
    texts = []
    for place, d in enumerate(order[:2]):
        if dims[d] == padded[d]:
            continue
        text = f"dim {d}: {dims[d]} -> {padded[d]}"
        share = _share(dims[d] / padded[d])
        last = d == len(dims) - 1
        if place == 0 and last and len(dims) >= 3 and dims[d] in (32, 64, 80, 96):
            text += f" (fills {share} of each tile; if it is a head dim, use 128 and fewer heads)"
        elif dims[d] >= 8192:
            text += " (pad the vocabulary)"
        elif place == 1 and dims[d] < SUBLANES:
            text += " (a batch or count below 8; merge it with another dimension)"
        elif place == 0 and not last:
            text += " (the compiler laid it innermost: a multiple of 128 fills its tiles)"
        elif place == 0 and dims[d] < LANES:
            text += " (a small last dimension; put a larger one last)"
        texts.append(text)
    return "; ".join(texts)


def _share(value: float) -> str:
    return "half" if value == 0.5 else f"{value:.0%}"
