"""A step of training as a function, and which modules and optimizers a function uses."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from torch_tpu import _C
from torch_tpu._replace import temporarily
from torch_tpu.aot.topologies import AotError


class ValuesNeededError(AotError):
    """The code asks for contents of tensors, and there are none."""


def _is_compiling() -> contextlib.AbstractContextManager[None]:
    """Libraries that ask `torch.compiler.is_compiling()` then leave out what reads values."""
    return temporarily(torch.compiler, "_is_compiling_flag", True)


@contextlib.contextmanager
def told_to_compile(function: Callable[..., Any]) -> Iterator[None]:
    """Meanwhile the function believes it is compiled; of a step, only forward and loss: optimizers
    then want to be capturable."""
    if isinstance(function, TrainStep):
        function._told = True
        try:
            yield
        finally:
            function._told = False
    else:
        with _is_compiling():
            yield


class TrainStep:
    """One step of training as a function of the batch: forward, backward and update.

    `loss(model, *args)` computes the loss. Parameters, buffers and the optimizer's states are
    updated in place, so the program takes their memory for the new values.

    >>> import torch, torch_tpu
    >>> model = torch.nn.Linear(8, 2, device="meta")
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> step = torch_tpu.aot.TrainStep(model, optimizer, lambda m, x: m(x).square().mean())
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[..., torch.Tensor],
        clip_grad_norm: float | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.loss = loss
        self.clip_grad_norm = clip_grad_norm
        self._told = False

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        with _is_compiling() if self._told else contextlib.nullcontext():
            loss = self.loss(self.model, *args, **kwargs)
        _C._record_scope("backward")
        loss.backward()
        if self.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_grad_norm)
        _C._record_scope("optimizer")
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def owned_by(
    function: Callable[..., Any], state: Iterable[Any] | None
) -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
    """Whose tensors become arguments: what is named, or else what the function refers to."""
    if state is None:
        if isinstance(function, nn.Module):
            state = [function]
        elif isinstance(function, TrainStep):
            state = [function.model, function.optimizer]
        elif inspect.isfunction(function) or inspect.ismethod(function):
            found = inspect.getclosurevars(function)
            state = [*found.nonlocals.values(), *found.globals.values()]
            state.append(getattr(function, "__self__", None))
        else:
            state = vars(function).values() if hasattr(function, "__dict__") else []
        state = [s for s in state if isinstance(s, (nn.Module, torch.optim.Optimizer))]
    items = list(state)
    modules = [s for s in items if isinstance(s, nn.Module)]
    optimizers = [s for s in items if isinstance(s, torch.optim.Optimizer)]
    if len(modules) + len(optimizers) != len(items):
        raise AotError("`state` takes modules and optimizers only.")
    return modules, optimizers
