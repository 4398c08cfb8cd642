"""A thread of a round, with two sets of names: on the device, and the same on the CPU.

Both run the same lines, so the CPU's tensors are the model of the device's, views and all."""

from __future__ import annotations

import functools
import random
import threading
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .history import History

Names = dict[str, Any]


class WrongError(AssertionError):
    """The device has something else than the CPU."""


@functools.lru_cache(maxsize=4096)
def _compiled(line: str, how: str) -> CodeType:
    return compile(line, "<stress>", how)


class Worker:
    """Runs lines. `pick` is its own, so that what it does depends on the seed alone."""

    def __init__(
        self, name: str, pick: random.Random, history: History, devices: int, stop: threading.Event
    ) -> None:
        self.name = name
        self.pick = pick
        self.history = history
        self.devices = devices
        self.stop = stop
        self.device: Names = {"torch": torch, "F": F}
        self.cpu: Names = {"torch": torch, "F": F}
        for n in range(devices):
            self.device[f"d{n}"] = torch.device("tpu", n)
            self.cpu[f"d{n}"] = torch.device("cpu")
        self._made = 0

    def say(self, text: str) -> None:
        self.history.say(self.name, text)

    def run(self, line: str) -> None:
        """A statement, on both sides."""
        self.say(line)
        code = _compiled(line, "exec")
        exec(code, self.device)
        exec(code, self.cpu)

    def same(self, expression: str) -> None:
        """An expression of host values: both sides agree."""
        self.say(f"{expression}  # compared")
        code = _compiled(expression, "eval")
        got, right = eval(code, self.device), eval(code, self.cpu)
        if isinstance(right, Tensor):
            check_equal(expression, got, right)
        elif got != right:
            raise WrongError(f"{expression} is {got}, on the CPU {right}")

    def check(self, name: str) -> None:
        """A tensor is what it is on the CPU."""
        self.say(f"{name}.cpu()  # compared")
        check_equal(name, self.device[name], self.cpu[name])

    # Own tensors: t0, t1, ...

    def new_name(self) -> str:
        self._made += 1
        return f"t{self._made}"

    def own(self) -> list[str]:
        return [name for name in self.cpu if name[0] == "t" and name[1:].isdigit()]

    def drop(self, name: str) -> None:
        self.run(f"del {name}")

    def place(self, name: str) -> str:
        """The device a tensor is on, as lines call it."""
        return f"d{self.device[name].device.index}"

    def a_device(self) -> str:
        return f"d{self.pick.randrange(self.devices)}"


def check_equal(what: str, got: Tensor, right: Tensor) -> None:
    """Same dtype, shape and elements."""
    got = got.detach().cpu()
    if got.dtype != right.dtype or got.shape != right.shape:
        raise WrongError(
            f"{what} is {got.dtype} {list(got.shape)}, on the CPU {right.dtype} {list(right.shape)}"
        )
    if torch.equal(got, right):
        return
    where = (got != right).nonzero()
    first = tuple(where[0].tolist())
    raise WrongError(
        f"{what} differs in {len(where)} of {right.numel()} elements, first at {list(first)}: "
        f"{got[first].item()}, on the CPU {right[first].item()}"
    )
