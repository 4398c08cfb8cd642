"""The order of devices for a mesh, from coordinates as TPU topologies give them."""

from __future__ import annotations

import itertools
import math

import pytest

from torch_tpu.spmd._torus import order_by_coordinates, torus_order

# x runs fastest in PJRT's lists.
V5E_4X4 = [(x, y, 0, 0) for y in range(4) for x in range(4)]
TPU7X_2X2X1 = [(x, y, 0, core) for y in range(2) for x in range(2) for core in range(2)]
V5P_4X4X4 = [(x, y, z, 0) for z in range(4) for y in range(4) for x in range(4)]


def apart(a: tuple[int, ...], b: tuple[int, ...], lengths: tuple[int, ...] | None = None) -> int:
    """Hops between two places; with `lengths`, on a torus."""
    hops = [abs(p - q) for p, q in zip(a, b, strict=True)]
    if lengths is not None:
        hops = [min(hop, n - hop) for hop, n in zip(hops, lengths, strict=True)]
    return sum(hops)


def rows(places: list[tuple[int, ...]], shape: tuple[int, ...]) -> list[list[tuple[int, ...]]]:
    order = order_by_coordinates(places, shape)
    assert sorted(order) == list(range(len(places)))
    n = shape[-1]
    return [[places[i] for i in order[k : k + n]] for k in range(0, len(order), n)]


@pytest.mark.parametrize(
    ("places", "shape"),
    [
        *((V5E_4X4, s) for s in [(16,), (4, 4), (2, 8), (8, 2), (2, 2, 4), (4, 2, 2)]),
        *((TPU7X_2X2X1, s) for s in [(8,), (4, 2), (2, 4), (2, 2, 2)]),
        *((V5P_4X4X4, s) for s in [(64,), (4, 16), (16, 4), (8, 8), (2, 8, 4), (4, 4, 4)]),
    ],
)
def test_the_last_axis_lies_along_neighbours(places, shape):
    for row in rows(places, shape):
        assert all(apart(a, b) == 1 for a, b in itertools.pairwise(row))


def test_a_whole_axis_is_a_ring():
    for row in [*rows(V5E_4X4, (4, 4)), *rows(V5E_4X4, (2, 8)), *rows(V5E_4X4, (16,))]:
        assert apart(row[0], row[-1], (4, 4, 1, 1)) == 1


def test_both_axes_of_a_square_mesh_are_axes_of_the_torus():
    grid = rows(V5E_4X4, (4, 4))
    assert len({y for _, y, _, _ in grid[0]}) == 1
    assert len({x for x, *_ in [row[0] for row in grid]}) == 1


def test_cores_of_a_chip_come_first():
    for pair in rows(TPU7X_2X2X1, (4, 2)):
        assert pair[0][:3] == pair[1][:3]
        assert {pair[0][3], pair[1][3]} == {0, 1}


@pytest.mark.parametrize("box", [(3, 4, 1, 1), (2, 3, 5, 2), (6, 2, 1, 1)])
def test_odd_sizes(box):
    places = list(itertools.product(*map(range, box)))
    size = math.prod(box)
    for n in (n for n in range(1, size + 1) if size % n == 0):
        for row in rows(places, (size // n, n)):
            assert all(apart(a, b) == 1 for a, b in itertools.pairwise(row))


def test_attributes_of_devices():
    attributes = [{"coords": list(p[:3]), "core_on_chip": p[3]} for p in TPU7X_2X2X1]
    assert torus_order(attributes, (2, 4)) == order_by_coordinates(TPU7X_2X2X1, (2, 4))
    assert torus_order([{}] * 8, (2, 4)) == list(range(8))
    half = attributes[:3] + attributes[4:5]  # not a box
    assert torus_order(half, (2, 2)) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="8 devices for a mesh"):
        torus_order(attributes, (2, 2))
