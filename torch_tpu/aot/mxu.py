"""How well fusions use the matrix units: the compiler's own count of slots, from its dump."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_HLO = re.compile(r"^HLO: (?:ROOT )?%?([^ ]+) = ")
_SLOT = re.compile(r"^ - (.+): \((\d+)/(\d+)\) - ")
_UNIT = re.compile(r"^MXU_(\d+) (matmul\w*)$")


@dataclass
class SlotUse:
    """Of one instruction of the compiled program."""

    mxu: float  # of the slots in which the matrix units could multiply, 0 to 1
    spills: int  # registers written to memory for want of room, in bundles
    starved: float  # of the bundles, those that wait for HBM
    bundles: int


def parse_profile(lines: Iterable[str]) -> dict[str, SlotUse]:
    """Of a file `...-hlo-static-bundle-profile.txt`, by the instruction's name.

    An instruction may stand in several blocks of code; they are added up.
    """
    slots: dict[str, dict[str, list[int]]] = {}
    name: str | None = None
    for line in lines:
        if line.startswith("HLO:"):
            match = _HLO.match(line)
            name = match[1] if match else None
        elif name is not None and (found := _SLOT.match(line)):
            sums = slots.setdefault(name, {}).setdefault(found[1], [0, 0])
            sums[0] += int(found[2])
            sums[1] += int(found[3])
    return {name: _use(found) for name, found in slots.items()}


def _use(slots: dict[str, list[int]]) -> SlotUse:
    units: dict[str, float] = {}
    for kind, (used, most) in slots.items():
        unit = _UNIT.match(kind)
        # The kinds of products differ in how long they keep the unit busy; so do their slots.
        if unit and most:
            units[unit[1]] = units.get(unit[1], 0.0) + used / most
    starved = sum(_share(slots, f"{way}_ESTIMATED_STARVATION") for way in _WAYS)
    spills = slots.get("VMEM_SPILL_COUNT", [0, 0])
    mxu = min(1.0, sum(units.values()) / len(units)) if units else 0.0
    return SlotUse(mxu, spills[0], min(1.0, starved), spills[1])


_WAYS = ("VMEM_TO_HBM", "HBM_TO_VMEM")


def _share(slots: dict[str, list[int]], kind: str) -> float:
    used, most = slots.get(kind, (0, 0))
    return used / most if most else 0.0
