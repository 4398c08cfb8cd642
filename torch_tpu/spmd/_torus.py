"""The order of devices for a mesh: neighbours on the last axis are neighbours on the torus."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

Place = tuple[int, ...]


def torus_order(attributes: Sequence[Mapping[str, Any]], shape: Sequence[int]) -> list[int]:
    """Indices into `attributes` (PJRT's, of devices) in the order of a mesh of that shape. Devices
    without coordinates stay as they are."""
    places = [_place(a) for a in attributes]
    if any(place is None for place in places):
        return list(range(len(attributes)))
    known = [place for place in places if place is not None]
    return order_by_coordinates(known, shape)


def _place(attributes: Mapping[str, Any]) -> Place | None:
    """Where a device is: its chip, then the core on it."""
    coords = attributes.get("coords")
    if not coords:
        return None
    return (*map(int, coords), int(attributes.get("core_on_chip", 0)))


def order_by_coordinates(places: Sequence[Place], shape: Sequence[int]) -> list[int]:
    """The places, (x, y, …, core), in the order of a mesh.

    Each mesh axis takes whole axes of the torus, or a factor of one, from the last mesh axis to the
    first: cores of a chip first, since nothing is nearer. Where the sizes do not divide so, the
    devices are walked like a snake, on which consecutive ones are neighbours.
    """
    if math.prod(shape) != len(places):
        raise ValueError(f"{len(places)} devices for a mesh of shape {tuple(shape)}")
    index = {place: i for i, place in enumerate(places)}
    ranges = [sorted(set(values)) for values in zip(*places, strict=True)]
    lengths = [len(values) for values in ranges]
    if len(index) != len(places) or math.prod(lengths) != len(places):
        return list(range(len(places)))  # not a full box: nothing to follow
    taken = _assign(lengths, shape)
    walk = _snake(lengths) if taken is None else _walk(lengths, shape, taken)
    return [index[tuple(ranges[a][p] for a, p in enumerate(place))] for place in walk]


# Per mesh axis: (torus axis, length), the slowest first. A torus axis may be split between mesh
# axes; the part that was taken first is the one that runs fastest.
Assignment = list[list[tuple[int, int]]]


def _assign(lengths: Sequence[int], shape: Sequence[int]) -> Assignment | None:
    free = list(lengths)
    taken: Assignment = [[] for _ in shape]
    cores = len(lengths) - 1
    for m in reversed(range(len(shape))):
        left = shape[m]
        order = [cores, *sorted(range(cores), key=lambda a: (free[a] != left, a))]
        # One whole axis of the torus is a ring of its own; take it before any mixture.
        if left > 1 and left in [free[a] for a in range(cores)] and free[cores] == 1:
            order = [a for a in order if a != cores]
        for axis in order:
            if left == 1:
                break
            part = math.gcd(free[axis], left)
            if part == 1:
                continue
            taken[m].insert(0, (axis, part))
            free[axis] //= part
            left //= part
        if left != 1:
            return None
    return taken


def _walk(lengths: Sequence[int], shape: Sequence[int], taken: Assignment) -> list[Place]:
    """Every place, in the order of the mesh."""
    # How far apart the steps of a part are on its torus axis.
    strides: dict[tuple[int, int], int] = {}
    used = [1] * len(lengths)
    for m in reversed(range(len(shape))):
        for n in reversed(range(len(taken[m]))):
            axis, length = taken[m][n]
            strides[m, n] = used[axis]
            used[axis] *= length
    out: list[Place] = []
    for where in itertools.product(*map(range, shape)):
        place = [0] * len(lengths)
        for m, position in enumerate(where):
            for n, digit in enumerate(_reflected(position, [length for _, length in taken[m]])):
                axis = taken[m][n][0]
                place[axis] += digit * strides[m, n]
        out.append(tuple(place))
    return out


def _reflected(position: int, lengths: Sequence[int]) -> list[int]:
    """Digits of which one changes, by one, from a position to the next (a reflected code)."""
    digits: list[int] = []
    step = math.prod(lengths)
    for length in lengths:
        turned = (position // step) % 2
        step //= length
        digit = position // step % length
        digits.append(length - 1 - digit if turned else digit)
    return digits


def _snake(lengths: Sequence[int]) -> list[Place]:
    return [tuple(_reflected(i, lengths)) for i in range(math.prod(lengths))]
