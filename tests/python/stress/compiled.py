"""Functions under torch.compile. They are traced before threads start, and for one device, as
tracing takes its time."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from .history import History

SHAPES = ((4, 8), (8, 8))
ROW = 8


def preserve(w: Tensor) -> None:
    w.mul_(1)
    w.add_(0)


def bump(w: Tensor, source: Tensor) -> None:
    """A writer that gets the memory of `w`."""
    w.add_(source)
    w[:1].mul_(2)
    w.clamp_(-1024, 1024)


def mix(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x > y, x - y, (x + y).relu()).clamp(-1024, 1024)


def mix_and_bump(w: Tensor, x: Tensor) -> Tensor:
    """Writes one argument, and returns what it was."""
    old = w * 2 - x
    w.copy_(mix(w, x))
    return old.clamp(-1024, 1024)


def look_up(table: Tensor, index: Tensor) -> Tensor:
    return table[index] * 2


# Acts that call these functions. Without them nothing need be traced.
ACTS = frozenset(("compiled", "parts", "keep", "bad_index"))

PLAIN: dict[str, Callable] = {
    "c_preserve": preserve,
    "c_bump": bump,
    "c_mix": mix,
    "c_mix_and_bump": mix_and_bump,
    "c_look_up": look_up,
}


def traced(history: History) -> dict[str, Callable]:
    """As PLAIN, compiled for what rounds call them with: float32 on the first device."""
    torch._dynamo.config.recompile_limit = 256
    functions = {name: torch.compile(f, backend="tpu") for name, f in PLAIN.items()}

    def call(name: str, *args: Tensor) -> None:
        history.say("main", f"# {name} is traced for {tuple(args[0].shape)}")
        functions[name](*args)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for shape in ((8, 8), (256, 256)):
            call("c_preserve", torch.ones(shape, device="tpu:0"))
        for shape in ((ROW,), *SHAPES):
            w, x = (torch.ones(shape, device="tpu:0") for _ in range(2))
            call("c_bump", w, x)
            if len(shape) == 2:
                call("c_mix", w, x)
                call("c_mix_and_bump", w, x)
                call("c_look_up", w, torch.zeros(2, dtype=torch.int64).to("tpu:0"))
    return functions
