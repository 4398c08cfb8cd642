"""What is read from a partitioned program, an HloModuleProto: its collectives and how its results
are divided. Only the few fields needed are known here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

# Field numbers of xla/service/hlo.proto and xla/xla_data.proto.
_MODULE = 1  # of HloModuleProtoWithConfig
_COMPUTATIONS, _OUTPUT_SHARDING = 3, 12  # of HloModuleProto
_INSTRUCTIONS = 2
_NAME, _OPCODE, _SHAPE, _GROUPS, _PAIRS, _DEVICE_LIST, _SHORT_LIST = 1, 2, 3, 49, 52, 87, 92

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)

Fields = dict[int, list["int | bytes"]]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _fields(data: bytes) -> Fields:
    out: Fields = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        value: int | bytes
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 2:
            length, at = _varint(data, at)
            value, at = data[at : at + length], at + length
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
            value, at = data[at : at + length], at + length
        else:
            raise ValueError(f"wire type {kind}")
        out.setdefault(tag >> 3, []).append(value)
    return out


def _messages(fields: Fields, number: int) -> Iterator[Fields]:
    for value in fields.get(number, []):
        assert isinstance(value, bytes)
        yield _fields(value)


def _ints(fields: Fields, number: int) -> list[int]:
    """A repeated number, packed or not."""
    out: list[int] = []
    for value in fields.get(number, []):
        if isinstance(value, int):
            out.append(value)
            continue
        at = 0
        while at < len(value):
            item, at = _varint(value, at)
            out.append(item)
    return out


def _text(fields: Fields, number: int) -> str:
    value = fields.get(number, [b""])[0]
    return value.decode() if isinstance(value, bytes) else ""


def iota_tiles(dims: list[int], reshape: list[int], perm: list[int]) -> list[int]:
    """XLA's short form of a list of devices: 0, 1, 2, … in `reshape`, transposed, flattened."""
    import torch

    count = 1
    for dim in dims:
        count *= dim
    order = perm or list(range(len(reshape)))
    return torch.arange(count).reshape(reshape or [count]).permute(order or [0]).flatten().tolist()


@dataclass(frozen=True)
class Collective:
    """One of a partitioned program."""

    kind: str  # "all-reduce", …
    name: str
    groups: tuple[tuple[int, ...], ...]  # of partitions; of a permute (from, to)
    shape: tuple[int, ...] = field(default=())


def _module(program: bytes) -> Fields:
    return next(_messages(_fields(program), _MODULE))


def collectives(program: bytes) -> list[Collective]:
    """All of the program."""
    found = []
    for computation in _messages(_module(program), _COMPUTATIONS):
        for instruction in _messages(computation, _INSTRUCTIONS):
            opcode = _text(instruction, _OPCODE).removesuffix("-start")
            if opcode not in COLLECTIVES:
                continue
            shape = next(_messages(instruction, _SHAPE), {})
            found.append(
                Collective(
                    opcode,
                    _text(instruction, _NAME),
                    _groups(instruction),
                    tuple(_ints(shape, 3)),
                )
            )
    return found


def _groups(instruction: Fields) -> tuple[tuple[int, ...], ...]:
    groups = [tuple(_ints(group, 1)) for group in _messages(instruction, _GROUPS)]
    for pair in _messages(instruction, _PAIRS):
        groups.append(((_ints(pair, 1) or [0])[0], (_ints(pair, 2) or [0])[0]))
    short = list(_messages(instruction, _SHORT_LIST))
    for devices in _messages(instruction, _DEVICE_LIST):
        groups += [tuple(_ints(group, 1)) for group in _messages(devices, 1)]
        short += _messages(devices, 2)
    for form in short:
        count, size = _ints(form, 1)[0], _ints(form, 2)[0]
        flat = iota_tiles([count, size], _ints(form, 3), _ints(form, 4))
        groups += [tuple(flat[i * size : (i + 1) * size]) for i in range(count)]
    return tuple(groups)


@dataclass(frozen=True)
class Tiles:
    """How a result is divided: device `devices[i]` has tile i of `dims`; the dims beyond the
    tensor's rank are copies. None of them: everyone has it all."""

    dims: tuple[int, ...]
    devices: tuple[int, ...]


def output_tiles(program: bytes, count: int) -> list[Tiles | None] | None:
    """Per result, None for a copy on every device; None in all where the program does not say."""
    sharding = next(_messages(_module(program), _OUTPUT_SHARDING), None)
    if sharding is None:
        return None
    is_tuple = _ints(sharding, 1)[:1] == [2]
    parts = list(_messages(sharding, 5)) if is_tuple else [sharding] * count
    return [_tiles(part) for part in parts] if len(parts) == count else None


def _tiles(sharding: Fields) -> Tiles | None:
    if _ints(sharding, 1)[:1] != [3]:  # OTHER: tiled
        return None
    dims = _ints(sharding, 3)
    devices = _ints(sharding, 4)
    if not devices:
        devices = iota_tiles(dims, _ints(sharding, 9), _ints(sharding, 10))
    return Tiles(tuple(dims), tuple(devices))
