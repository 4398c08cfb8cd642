"""Programs as text: a tree of lines and blocks, printed as Python and run on any device."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

Names = dict[str, Any]
Draw = Callable[..., torch.Tensor]

# What a listing needs to run on its own. `draw` below is the same function.
HEADER = """\
from concurrent.futures import ThreadPoolExecutor
import torch
import torch.nn.functional as F

def draw(seed, shape, dtype=torch.float32):
    random = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.rand(shape, generator=random, dtype=dtype) * 2 - 1
    low, high = (0, 2) if dtype == torch.bool else (-4, 5)
    return torch.randint(low, high, shape, generator=random).to(dtype)

seen = []
"""


def draw(seed: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Data of a program, made on the CPU: floats in -1..1, integers in -4..4."""
    random = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.rand(shape, generator=random, dtype=dtype) * 2 - 1
    low, high = (0, 2) if dtype == torch.bool else (-4, 5)
    return torch.randint(low, high, shape, generator=random).to(dtype)


@dataclass
class Line:
    text: str  # may hold several lines

    def print(self) -> str:
        return self.text


@dataclass
class Loop:
    body: list[Node] = field(default_factory=list)
    trips: int = 1

    def print(self) -> str:
        return f"for i in range({self.trips}):\n{indented(self.body)}"


@dataclass
class NoGrad:
    body: list[Node] = field(default_factory=list)

    def print(self) -> str:
        return f"with torch.no_grad():\n{indented(self.body)}"


@dataclass
class Thread:
    """`body` runs on a second thread while this one runs `beside`; they share no memory."""

    body: list[Node] = field(default_factory=list)
    beside: list[Node] = field(default_factory=list)

    def print(self) -> str:
        shared = ", ".join(sorted(names_bound_by(listing(self.body))))
        return "\n".join(
            [
                "def work():",
                *([f"    global {shared}"] if shared else []),
                indented(self.body),
                "with ThreadPoolExecutor(1) as pool:",
                "    future = pool.submit(work)",
                *([indented(self.beside)] if self.beside else []),
                "future.result()",
            ]
        )


Node = Line | Loop | NoGrad | Thread


def listing(nodes: list[Node]) -> str:
    return "\n".join(node.print() for node in nodes)


def indented(nodes: list[Node]) -> str:
    return textwrap.indent(listing(nodes) or "pass", "    ")


def names_bound_by(text: str) -> set[str]:
    return {
        node.id
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }


def fresh_names(device: str, draw: Draw = draw) -> Names:
    return {
        "torch": torch,
        "F": F,
        "ThreadPoolExecutor": ThreadPoolExecutor,
        "draw": draw,
        "device": device,
        "seen": [],
    }


def execute(text: str, names: Names) -> None:
    exec(compile(text, "<fuzz>", "exec"), names)


def run(nodes: list[Node], device: str, draw: Draw = draw) -> Names:
    """The names a program leaves behind; `seen` holds what it read on the way."""
    names = fresh_names(device, draw)
    with torch.enable_grad():
        execute(listing(nodes), names)
    return names


def tensors_in(names: Names) -> dict[str, torch.Tensor]:
    """The pool: what is on the device, or would be."""
    return {n: x for n, x in names.items() if isinstance(x, torch.Tensor) and n != "host"}
