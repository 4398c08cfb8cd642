"""Meshes follow the torus."""

from __future__ import annotations

import itertools

import pytest

from torch_tpu.distributed import torus_order


def grid(*sizes: int) -> list[tuple[int, ...]]:
    """As PJRT counts: the first coordinate runs fastest."""
    return [place[::-1] for place in itertools.product(*(range(size) for size in reversed(sizes)))]


def distance(a: tuple[int, ...], b: tuple[int, ...], sizes: tuple[int, ...]) -> int:
    steps = (abs(x - y) for x, y in zip(a, b, strict=True))
    return sum(min(step, size - step) for step, size in zip(steps, sizes, strict=True))


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ((2, 2), (4,)),
        ((2, 2), (2, 2)),
        ((4, 4), (4, 4)),
        ((4, 4), (16,)),
        ((4, 2), (2, 4)),
        ((4, 8), (8, 4)),
        ((4, 4, 4), (16, 4)),
        ((4, 4, 4), (4, 16)),
        ((2, 4, 4), (2, 4, 4)),
        ((4, 4, 4), (64,)),
    ],
)
def test_neighbours_in_the_mesh_are_neighbours(
    sizes: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    coords = grid(*sizes)
    order = torus_order(coords, shape)
    assert sorted(order) == list(range(len(coords)))
    places = list(itertools.product(*(range(size) for size in shape)))
    at = dict(zip(places, order, strict=True))
    for place, dim in itertools.product(places, range(len(shape))):
        after = list(place)
        after[dim] += 1
        if after[dim] < shape[dim]:
            assert distance(coords[at[place]], coords[at[tuple(after)]], sizes) == 1


def test_cores_of_a_chip_stay_together() -> None:
    coords = [place for place in grid(2, 2, 1) for _ in range(2)]
    order = torus_order(coords, (2, 4))
    for first, second in zip(order[::2], order[1::2], strict=True):
        assert coords[first] == coords[second]


def test_a_shape_the_axes_do_not_give() -> None:
    assert sorted(torus_order(grid(4, 4), (2, 8))) == list(range(16))


def test_refusals() -> None:
    with pytest.raises(ValueError, match="no place"):
        torus_order(grid(2, 2), (3,))
    with pytest.raises(ValueError, match="whole torus"):
        torus_order([(0, 0), (1, 1)], (2,))
