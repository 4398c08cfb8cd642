"""What is read from a partitioned program, an HloModuleProto: its collectives and how its results
are divided. Only the few fields needed are known here."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_tpu._hlo_names import COLLECTIVES
from torch_tpu._wire import Fields, fields_of, ints_of, messages_of, text_of

# Field numbers of xla/service/hlo.proto and xla/xla_data.proto.
_MODULE = 1  # of HloModuleProtoWithConfig
_COMPUTATIONS, _OUTPUT_SHARDING = 3, 12  # of HloModuleProto
_INSTRUCTIONS = 2
_NAME, _OPCODE, _SHAPE, _GROUPS, _PAIRS, _DEVICE_LIST, _SHORT_LIST = 1, 2, 3, 49, 52, 87, 92


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
    return next(messages_of(fields_of(program), _MODULE))


def collectives(program: bytes) -> list[Collective]:
    """All of the program."""
    found = []
    for computation in messages_of(_module(program), _COMPUTATIONS):
        for instruction in messages_of(computation, _INSTRUCTIONS):
            opcode = text_of(instruction, _OPCODE).removesuffix("-start")
            if opcode not in COLLECTIVES:
                continue
            shape = next(messages_of(instruction, _SHAPE), {})
            found.append(
                Collective(
                    opcode,
                    text_of(instruction, _NAME),
                    _groups(instruction),
                    tuple(ints_of(shape, 3)),
                )
            )
    return found


def _groups(instruction: Fields) -> tuple[tuple[int, ...], ...]:
    groups = [tuple(ints_of(group, 1)) for group in messages_of(instruction, _GROUPS)]
    for pair in messages_of(instruction, _PAIRS):
        groups.append(((ints_of(pair, 1) or [0])[0], (ints_of(pair, 2) or [0])[0]))
    short = list(messages_of(instruction, _SHORT_LIST))
    for devices in messages_of(instruction, _DEVICE_LIST):
        groups += [tuple(ints_of(group, 1)) for group in messages_of(devices, 1)]
        short += messages_of(devices, 2)
    for form in short:
        count, size = ints_of(form, 1)[0], ints_of(form, 2)[0]
        flat = iota_tiles([count, size], ints_of(form, 3), ints_of(form, 4))
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
    sharding = next(messages_of(_module(program), _OUTPUT_SHARDING), None)
    if sharding is None:
        return None
    is_tuple = ints_of(sharding, 1)[:1] == [2]
    parts = list(messages_of(sharding, 5)) if is_tuple else [sharding] * count
    return [_tiles(part) for part in parts] if len(parts) == count else None


def _tiles(sharding: Fields) -> Tiles | None:
    if ints_of(sharding, 1)[:1] != [3]:  # OTHER: tiled
        return None
    dims = ints_of(sharding, 3)
    devices = ints_of(sharding, 4)
    if not devices:
        devices = iota_tiles(dims, ints_of(sharding, 9), ints_of(sharding, 10))
    return Tiles(tuple(dims), tuple(devices))
