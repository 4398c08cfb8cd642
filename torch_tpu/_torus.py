"""Which device goes where in a mesh, so that neighbours in the mesh are neighbours on the 2-D or
3-D torus the chips form."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence


def torus_order(coords: Sequence[Sequence[int]], shape: Sequence[int]) -> list[int]:
    """The device at each place of a mesh of `shape`, in row-major order, as an index into `coords`.

    Each dim of the mesh gets axes of the torus of its own where the sizes allow it; several axes
    are walked through like a snake. Where they do not, one snake goes through the whole torus.
    Devices with equal coordinates (two cores of a chip) stay together.

    >>> coords = [(x, y) for y in range(2) for x in range(4)]
    >>> torus_order(coords, (2, 4))
    [0, 1, 2, 3, 4, 5, 6, 7]
    >>> torus_order(coords, (8,))
    [0, 1, 2, 3, 7, 6, 5, 4]
    """
    places = sorted({tuple(place) for place in coords})
    if not coords or math.prod(shape) != len(coords):
        raise ValueError(f"a mesh {tuple(shape)} has no place for {len(coords)} devices")
    sizes = [len({place[axis] for place in places}) for axis in range(len(places[0]))]
    if math.prod(sizes) != len(places) or len(coords) % len(places) != 0:
        raise ValueError("the devices do not form a whole torus")
    cores = len(coords) // len(places)
    devices: dict[tuple[int, ...], list[int]] = {}
    for index, place in enumerate(coords):
        devices.setdefault(tuple(place), []).append(index)
    values = [sorted({place[axis] for place in places}) for axis in range(len(sizes))]

    groups = _axes_of_dims(sizes, cores, shape)
    if groups is None:
        groups, shape = [list(range(len(sizes)))], (len(coords),)
    walks = [list(_snake([sizes[axis] for axis in group])) for group in groups]
    order: list[int] = []
    for position in itertools.product(*(range(size) for size in shape)):
        core = position[-1] % cores
        steps = (*position[:-1], position[-1] // cores)
        place = [0] * len(sizes)
        for group, walk, step in zip(groups, walks, steps, strict=True):
            for axis, at in zip(group, walk[step], strict=True):
                place[axis] = at
        key = tuple(values[axis][at] for axis, at in enumerate(place))
        order.append(devices[key][core])
    return order


def _axes_of_dims(sizes: list[int], cores: int, shape: Sequence[int]) -> list[list[int]] | None:
    """For each dim of the mesh the axes that make it up; the cores of a chip belong to the last."""
    wanted = [*shape[:-1], shape[-1] // cores] if shape[-1] % cores == 0 else None
    if wanted is None:
        return None
    axes = [axis for axis, size in enumerate(sizes) if size > 1]
    for order in itertools.permutations(reversed(axes)):
        rest = list(order)
        groups: list[list[int]] = []
        for size in wanted:
            group: list[int] = []
            while rest and math.prod(sizes[a] for a in group) < size:
                group.append(rest.pop(0))
            if math.prod(sizes[a] for a in group) != size:
                break
            groups.append(group)
        else:
            if not rest:
                return groups
    return None


def _snake(sizes: list[int]) -> Iterator[tuple[int, ...]]:
    """All places, each a step from the one before; the last axis goes back and forth."""
    if not sizes:
        yield ()
        return
    for turn, first in enumerate(_snake(sizes[:-1])):
        line = range(sizes[-1]) if turn % 2 == 0 else range(sizes[-1] - 1, -1, -1)
        for last in line:
            yield (*first, last)
