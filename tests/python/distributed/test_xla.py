"""Collectives over XLA, by ranks that are threads of a process with 8 devices: xla_checks.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from conformance.children import Child
from eight_devices import names_of, passes, started

from torch_tpu import _distributed

CHECKS = ("distributed", "xla_checks")


@pytest.fixture(scope="module")
def devices() -> Iterator[Child]:
    yield from started(*CHECKS)


@pytest.mark.parametrize("name", names_of(*CHECKS))
def test_on_threads(devices: Child, name: str) -> None:
    passes(devices, name)


def place(machine: str, process: int, device: int, number: int, name: str = "") -> list[Any]:
    return [machine, process, device, number, name]


def test_when_it_is_chosen() -> None:
    """Ranks say their machine, process, device, and its number in a client that spans."""

    def chosen(places: list[list[Any]], rank: int = 1) -> Any:
        found = _distributed._xla_transport(places, rank)
        return found and found.place

    threads = [place("a", 1, 3, -1, "x"), place("a", 1, 2, -1)]
    assert chosen(threads) == ("x", 1, 2, [3, 2], False, 2)
    assert chosen([place("a", 1, 3, -1, "x"), place("a", 1, 3, -1)]) is None
    assert chosen([place("a", 1, 0, -1, "x"), place("a", 2, 0, -1)]) is None
    assert chosen([place("a", 1, 0, -1, "x"), place("b", 1, 1, -1)]) is None
    spanning = [place("a", 1, 0, 4, "x"), place("b", 1, 0, 0)]
    assert chosen(spanning) == ("x", 1, 0, [4, 0], True, 1)
    both = [place("a", 1, 0, 4, "x"), place("b", 1, 0, 0), place("b", 1, 1, 1)]
    assert chosen(both, 2) == ("x", 2, 1, [4, 0, 1], True, 2)
    assert chosen([place("a", 1, 0, 4, "x"), place("b", 1, 0, -1)]) is None
