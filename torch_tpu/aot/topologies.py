"""What a topology name means: the chips, and the figures their makers publish per device.

A device is what a program runs on: a chip, or half a chip for tpu7x.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

GIB = 1 << 30


class AotError(RuntimeError):
    """Something the user can put right: the text says what is wrong and what to do next."""


@dataclass(frozen=True)
class Generation:
    """Peak figures of one device. Sources: the vendor's system architecture pages."""

    name: str
    title: str
    flops: float  # bf16, per second
    bandwidth: float  # HBM, bytes per second
    hbm: int  # bytes
    link: float  # bytes per second over all links of the device, one way
    clock: float  # hertz of the cores: the compiler counts cycles
    mxu: int  # rows and columns of a matrix unit
    devices_per_chip: int
    sparse_cores: int  # per chip
    dims: int  # of the torus


GENERATIONS = {
    g.name: g
    for g in (
        Generation("v4", "TPU v4", 275e12, 1228e9, 32 * GIB, 300e9, 1.05e9, 128, 1, 4, 3),
        Generation("v5e", "TPU v5e", 197e12, 819e9, 16 * GIB, 200e9, 1.5e9, 128, 1, 0, 2),
        Generation("v5p", "TPU v5p", 459e12, 2765e9, 95 * GIB, 600e9, 1.75e9, 128, 1, 4, 3),
        Generation("v6e", "TPU v6e", 918e12, 1640e9, 32 * GIB, 448e9, 1.75e9, 256, 1, 2, 2),
        Generation("tpu7x", "TPU 7x", 1153e12, 3690e9, 96 * GIB, 300e9, 2.2e9, 256, 2, 4, 3),
    )
}

_NAME = re.compile(r"^([a-z0-9]+):(\d+(?:x\d+)*)$")
_SIDES_2D = (1, 2, 4, 8, 16)
_KNOWN = {
    "v4": ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4"),
    "v5e": ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
    "v5p": ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4"),
    "v6e": ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
    "tpu7x": ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4"),
}


# What generations are called elsewhere.
_OTHER_NAMES = {
    "v5lite": "v5e", "v5litepod": "v5e", "v6": "v6e", "trillium": "v6e", "v7": "tpu7x",
    "v7x": "tpu7x", "tpu7": "tpu7x", "ironwood": "tpu7x",
}  # fmt: skip


# What PJRT says of a chip (`torch.tpu.get_device_name()`), beside the generations' own titles.
_KINDS = {
    "TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v6 lite": "v6e", "TPU7x": "tpu7x", "TPU7": "tpu7x",
}  # fmt: skip


def generation_of(device_name: str) -> Generation | None:
    """The generation of a device, by the name the plugin gives it; None of what is no TPU.

    >>> generation_of("TPU v5 lite").name
    'v5e'
    """
    titles = {g.title: g.name for g in GENERATIONS.values()}
    name = _KINDS.get(device_name) or titles.get(device_name)
    return GENERATIONS[name] if name else None


def known_topologies() -> list[str]:
    """The common names.

    >>> known_topologies()[5:8]
    ['v5e:1x1', 'v5e:2x2', 'v5e:2x4']
    """
    return [f"{name}:{shape}" for name, shapes in _KNOWN.items() for shape in shapes]


@dataclass(frozen=True)
class Topology:
    """Chips of one generation in a grid."""

    name: str
    generation: Generation
    shape: tuple[int, ...]

    @property
    def chips(self) -> int:
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        """What a program can be partitioned over."""
        return self.chips * self.generation.devices_per_chip


def parse_topology(name: str) -> Topology:
    """Of "v5e:2x2" what there is to know; `AotError` with the names there are for any other.

    >>> parse_topology("tpu7x:2x2x1").devices
    8
    """
    match = _NAME.match(name)
    generation = GENERATIONS.get(name.partition(":")[0])
    if match is None or generation is None:
        raise AotError(_unknown(name, generation))
    shape = tuple(int(side) for side in match[2].split("x"))
    if len(shape) != generation.dims or not _is_sensible(shape, generation):
        raise AotError(_unknown(name, generation))
    return Topology(name, generation, shape)


def _is_sensible(shape: tuple[int, ...], generation: Generation) -> bool:
    """The compiler ends the process on some others."""
    if generation.dims == 2:
        return all(side in _SIDES_2D for side in shape)
    return all(1 <= side <= 16 and (side < 4 or side % 4 == 0) for side in shape)


def _unknown(name: str, generation: Generation | None = None) -> str:
    names = known_topologies()
    if generation is None:  # "v6e-8", "trillium"
        word = re.split(r"[:-]", name.lower())[0]
        generation = GENERATIONS.get(_OTHER_NAMES.get(word, word))
    if generation is not None:
        names = [n for n in names if n.startswith(f"{generation.name}:")]
    return f"there is no topology '{name}'. Known ones: {', '.join(names)}."
