"""Reads a serialized HloModuleProto: the fields that reports need."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch_tpu._wire import Fields, fields_of, int_of, ints_of, message_of, messages_of, text_of

_TYPES = {
    1: ("pred", 8), 2: ("s8", 8), 3: ("s16", 16), 4: ("s32", 32), 5: ("s64", 64), 6: ("u8", 8),
    7: ("u16", 16), 8: ("u32", 32), 9: ("u64", 64), 10: ("f16", 16), 11: ("f32", 32),
    12: ("f64", 64), 13: ("tuple", 0), 15: ("c64", 64), 16: ("bf16", 16), 17: ("token", 0),
    18: ("c128", 128), 19: ("f8e5m2", 8), 20: ("f8e4m3fn", 8), 21: ("s4", 4), 22: ("u4", 4),
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Of an array or a tuple, with how it lies in memory."""

    dtype: str
    bits: int
    dims: tuple[int, ...] = ()
    parts: tuple[Shape, ...] = ()
    order: tuple[int, ...] = ()  # minor to major
    tiles: tuple[tuple[int, ...], ...] = ()
    space: int = 0  # 0: HBM, 1: VMEM, 2: SMEM, 5: host

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Of the elements alone."""
        if self.parts:
            return sum(part.bytes for part in self.parts)
        return (self.elements * self.bits + 7) // 8

    @property
    def padded_dims(self) -> tuple[int, ...]:
        """As they lie in memory: the innermost dimensions go up to full tiles."""
        dims = list(self.dims)
        if self.tiles and self.order:
            tile = self.tiles[0]
            for i, side in enumerate(reversed(tile)):  # the last side is for the minor dimension
                if i < len(self.order):
                    d = self.order[i]
                    dims[d] = -(-dims[d] // side) * side
        return tuple(dims)

    @property
    def padded_bytes(self) -> int:
        if self.parts:
            return sum(part.padded_bytes for part in self.parts)
        return (math.prod(self.padded_dims) * self.bits + 7) // 8

    @property
    def in_hbm(self) -> int:
        """Padded bytes that are in HBM."""
        if self.parts:
            return sum(part.in_hbm for part in self.parts)
        return self.padded_bytes if self.space == 0 else 0

    def __str__(self) -> str:
        if self.parts:
            return f"({', '.join(map(str, self.parts))})"
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


def _shape(fields: Fields) -> Shape:
    dtype, bits = _TYPES.get(int_of(fields, 2), ("?", 0))
    layout = message_of(fields, 5)
    return Shape(
        dtype,
        bits,
        tuple(ints_of(fields, 3)),
        tuple(_shape(part) for part in messages_of(fields, 4)),
        tuple(ints_of(layout, 1)),
        tuple(tuple(ints_of(tile, 1)) for tile in messages_of(layout, 6)),
        int_of(layout, 8),
    )


@dataclass
class Instruction:
    """One of a computation; what is rarely asked for stays in `fields`."""

    id: int
    name: str
    opcode: str
    shape: Shape
    operands: list[int]
    called: list[int]
    op_name: str
    config: str
    fields: Fields = field(repr=False)

    @property
    def parameter(self) -> int:
        return int_of(self.fields, 9)

    @property
    def tuple_index(self) -> int:
        """Of a get-tuple-element."""
        return int_of(self.fields, 13)

    @property
    def target(self) -> str:
        """Of a custom call."""
        return text_of(self.fields, 28)

    def contracting(self) -> tuple[list[int], list[int]]:
        """Of a dot: the dimensions of both sides that are summed over."""
        numbers = message_of(self.fields, 30)
        return ints_of(numbers, 1), ints_of(numbers, 2)

    def window(self) -> list[dict[str, int]]:
        """Of a convolution, by spatial dimension."""
        names = {
            1: "size", 2: "stride", 3: "low", 4: "high", 5: "window_dilation", 6: "base_dilation",
        }  # fmt: skip
        return [
            {name: int_of(dim, number) for number, name in names.items()}
            for dim in messages_of(message_of(self.fields, 15), 1)
        ]

    def convolution(self) -> dict[str, list[int]]:
        """Dimension numbers of a convolution."""
        numbers = message_of(self.fields, 16)
        return {
            "kernel_input": [int_of(numbers, 3)],
            "kernel_output": [int_of(numbers, 4)],
            "kernel_spatial": ints_of(numbers, 6),
            "input_batch": [int_of(numbers, 7)],
            "input_feature": [int_of(numbers, 8)],
            "output_batch": [int_of(numbers, 9)],
            "output_feature": [int_of(numbers, 10)],
            "input_spatial": ints_of(numbers, 11),
            "output_spatial": ints_of(numbers, 12),
        }

    @property
    def batch_groups(self) -> int:
        return max(1, int_of(self.fields, 61))

    def replica_groups(self) -> list[list[int]]:
        """Of a collective, where they are spelt out."""
        return [ints_of(group, 1) for group in messages_of(self.fields, 49)]

    def group_size(self) -> int:
        """Devices that take part in a collective; 0 where it does not say."""
        groups = self.replica_groups()
        if groups:
            return max(len(group) for group in groups)
        compact = message_of(message_of(self.fields, 87), 3) or message_of(self.fields, 87)
        return int_of(compact, 2)


@dataclass
class Computation:
    """Instructions in the order they run."""

    id: int
    name: str
    root: int
    instructions: list[Instruction]
    thread: str = ""  # "sparsecore" for what runs there

    def __post_init__(self) -> None:
        self.by_id = {i.id: i for i in self.instructions}


@dataclass
class Module:
    """A whole program."""

    name: str
    entry: Computation
    computations: dict[int, Computation]
    # Results that lie in the memory of an argument: the place in the tuple, the argument's number.
    aliases: list[tuple[tuple[int, ...], int]] = field(default_factory=list)


def parse_module(data: bytes) -> Module:
    """Of an HloModuleProto, or of one with its configuration around it."""
    fields = fields_of(data)
    if 3 not in fields or not fields.get(1) or fields[1][0] == b"\n":
        fields = message_of(fields, 1)
    inner = fields.get(1, [b""])[0]
    if isinstance(inner, bytes) and 3 not in fields:
        fields = fields_of(inner)
    computations = {}
    for computation in messages_of(fields, 3):
        made = Computation(
            int_of(computation, 5),
            text_of(computation, 1),
            int_of(computation, 6),
            [_instruction(i) for i in messages_of(computation, 2)],
            text_of(computation, 8),
        )
        computations[made.id] = made
    entry = computations.get(int_of(fields, 6))
    if entry is None:
        raise ValueError("a serialized module without an entry")
    _in_order(fields, computations)
    aliases = [
        (tuple(ints_of(alias, 1)), int_of(alias, 2))
        for alias in messages_of(message_of(fields, 8), 1)
    ]
    return Module(text_of(fields, 1), entry, computations, aliases)


def parse_dump(data: bytes) -> Module:
    """Of an HloProto, as the compiler dumps it: the module, and beside it where its values lie."""
    inner = fields_of(data).get(1, [b""])[0]
    if not isinstance(inner, bytes):
        raise ValueError("a dump without a module")
    return parse_module(inner)


def _instruction(fields: Fields) -> Instruction:
    config = fields.get(43, [b""])[-1]
    return Instruction(
        int_of(fields, 35),
        text_of(fields, 1),
        text_of(fields, 2),
        _shape(message_of(fields, 3)),
        ints_of(fields, 36),
        ints_of(fields, 38),
        text_of(message_of(fields, 7), 2),
        config.decode(errors="replace") if isinstance(config, bytes) else "",
        fields,
    )


def _in_order(fields: Fields, computations: dict[int, Computation]) -> None:
    """Puts instructions into the order of the schedule."""
    for entry in messages_of(message_of(fields, 7), 1):
        computation = computations.get(int_of(entry, 1))
        order = ints_of(message_of(entry, 2), 1)
        if computation is None or len(order) != len(computation.instructions):
            continue
        computation.instructions = [computation.by_id[i] for i in order]
