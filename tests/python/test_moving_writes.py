"""Reads and writes of parts of one tensor, mixed at random in one program, at places that change
from run to run: exactly what the CPU gives. An update that is computed from other elements of what
it is written to must not be written over them before they were read."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

import torch_tpu

ROWS, COLUMNS = 12, 8
BASES: dict[str, Callable[[], Tensor]] = {
    "float32": lambda: torch.arange(96.0).view(ROWS, COLUMNS),
    "int64": lambda: torch.arange(96).view(ROWS, COLUMNS),
    "int16": lambda: torch.arange(96).view(ROWS, COLUMNS).short(),
    "transposed": lambda: torch.arange(96.0).view(COLUMNS, ROWS).t(),
    "flat": lambda: torch.arange(96.0),
}


Part = Callable[[Tensor], Tensor]
Step = Callable[[Tensor, list[Tensor]], object]


def two_parts(pick: random.Random, place: random.Random) -> tuple[Part, Part]:
    """Of one shape; they may lie over each other."""
    kind, n = pick.randrange(9), pick.randint(2, 6)

    def one() -> Part:
        i, j = place.randint(1, ROWS - n), place.randint(1, COLUMNS - 2)
        parts: tuple[Part, ...] = (
            lambda x: x[i],
            lambda x: x[:, j],
            lambda x: x[i : i + n],
            lambda x: x[i : i + n, j : j + 2],
            lambda x: x[i, j],
            lambda x: x[i % 2 :: 2],
            lambda x: x.t()[j],
            lambda x: x.t()[j : j + 2, i : i + n],
            lambda x: x.as_strided((2, 2), (9, 4), i),  # no box
        )
        return parts[kind]

    return one(), one()


def turned_round(v: Tensor) -> Tensor:
    return v.flip(0) if v.dim() > 0 else v + 1


def move_by_index(x: Tensor) -> None:
    order = torch.tensor([3, 1, 0]).to(x.device)
    x[order] = x[order + 2]


def add_by_index(v: Tensor, w: Tensor) -> None:
    if v.dim() > 1:
        v.index_add_(0, torch.tensor([0, 0]).to(v.device), w[:2].clone())


def cut_digits(x: Tensor, i: int) -> None:
    if x.dtype == torch.float32 and x.is_contiguous():
        x.view(torch.int32)[i].bitwise_and_(-65536)


def draw_step(pick: random.Random, place: random.Random) -> Step:
    v, w = two_parts(pick, place)
    k, i = pick.randint(2, 5), place.randint(0, 4)
    steps: tuple[Step, ...] = (
        lambda x, _: v(x).add_(k),
        lambda x, _: v(x).fill_(k),
        lambda x, _: v(x).mul_(-1),
        lambda x, _: v(x).copy_(w(x).clone()),
        lambda x, _: v(x).copy_(w(x) * k + v(x)),
        lambda x, _: v(x).sub_(w(x).clone()),
        lambda x, _: v(x).copy_(turned_round(v(x))),
        lambda x, _: v(x).copy_(turned_round(w(x))),
        lambda x, _: v(x).copy_(v(x).cumsum(0)),
        lambda x, _: v(x).cumsum_(0),
        lambda x, out: out.append(w(x).clone()),
        lambda x, out: out.append(x.clone()),
        lambda x, out: v(x).copy_(out[-1].sum().to(x.dtype)),
        lambda x, _: torch._foreach_add_([x[i : i + 3], x[i + 4 : i + 6]], k),
        lambda x, _: cut_digits(x, i),
        lambda x, _: x[1:].copy_(x[:-1].clone()),
        lambda x, _: x.copy_(x.neg().neg()),
        lambda x, _: move_by_index(x),
        lambda x, _: add_by_index(v(x), w(x)),
    )
    return steps[pick.randrange(len(steps))]


class Program:
    """A random body. What it does comes from one seed, where from another."""

    def __init__(self, seed: int, most: int, places: int) -> None:
        pick, place = random.Random(seed), random.Random(places)
        self.steps = [draw_step(pick, place) for _ in range(pick.randint(2, most))]

    def __call__(self, x: Tensor) -> list[Tensor]:
        base = x.view(ROWS, COLUMNS) if x.dim() == 1 else x
        out = [base]
        for step in self.steps:
            step(base, out)
            base.clamp_(-1000, 1000)
        return out


def compare(got: list[Tensor], expected: list[Tensor], what: str) -> None:
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a.cpu(), b), what


def device_base(kind: str, held: bool) -> tuple[Tensor, Tensor | None]:
    x = BASES[kind]().to("tpu")
    x.add_(0)
    torch_tpu.fused.flush()
    return x, x.clone() if held else None


@pytest.mark.parametrize("mode", ["fused", "singly", "strict"])
@pytest.mark.parametrize("seed", range(4))
def test_at_random(seed: int, mode: str) -> None:
    for n in range(8):
        number = 100 * seed + n
        kind = list(BASES)[number % len(BASES)]
        fused = "first" if mode == "fused" else "never"
        with (
            torch_tpu.mode("strict") if mode == "strict" else nullcontext(),
            torch_tpu.fused.compile_when(fused),
        ):
            for places in range(3):
                x, kept = device_base(kind, held=number % 2 == 0)
                program = Program(number, 10, places)
                got, expected = program(x), program(BASES[kind]())
                compare(got, expected, f"program {number}, {kind}, places {places}")
                if kept is not None:
                    assert torch.equal(kept.cpu(), BASES[kind]())


@pytest.mark.parametrize("seed", range(4))
def test_compiled_graphs_at_random(seed: int) -> None:
    for places in range(2):
        torch._dynamo.reset()
        program = Program(1000 + seed, 8, places)
        got = torch.compile(program.__call__, backend="tpu")(BASES["float32"]().to("tpu"))
        compare(got, program(BASES["float32"]()), f"program {seed}, places {places}")


def rows_moved(x: Tensor) -> None:
    x[0].add_(3)
    x[1:].copy_(x[:-1].clone())


def a_row_moved(x: Tensor) -> None:
    x[2].add_(3)
    x[4:].copy_(x[3:-1].clone())


def turned(x: Tensor) -> None:
    x[1].mul_(2)
    x[2:10].copy_(x[2:10].flip(0))


def squares(x: Tensor) -> None:
    x[1].mul_(2)
    x[2:10].copy_(x[2:10].t().clone())


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(
    ("body", "size"),
    [(body, size) for body in (rows_moved, a_row_moved, turned) for size in (8, 64)]
    + [(squares, 8)],
)
def test_an_update_from_elsewhere_in_its_base(
    body: Callable[[Tensor], None], size: int, held: bool
) -> None:
    expected = torch.arange(64.0 * size).view(64, size)
    x = expected.to("tpu")
    x.add_(0)
    torch_tpu.fused.flush()
    before = x.clone() if held else None
    with torch_tpu.fused.compile_when("first"):
        body(x)
        torch_tpu.fused.flush()
    body(expected)
    assert torch.equal(x.cpu(), expected)
    if before is not None:
        assert torch.equal(before.cpu(), torch.arange(64.0 * size).view(64, size))
