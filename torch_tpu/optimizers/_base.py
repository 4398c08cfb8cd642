"""What the optimizers share: states on the device, and a step that is compiled once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

State = dict[str, torch.Tensor]


class Optimizer(torch.optim.Optimizer):
    """A rule for one parameter, applied to all of them in one program. Subclasses give `start` and
    `update`; the learning rate is a number of the program, so a schedule compiles nothing."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if "lr" not in defaults or defaults["lr"] < 0:
            raise ValueError(f"Invalid learning rate: {defaults.get('lr')}")
        super().__init__(params, defaults)
        self._compiled: Callable[..., None] | None = None

    def start(self, param: torch.Tensor) -> State:
        """The state of a parameter before its first step."""
        raise NotImplementedError

    def update(
        self,
        param: torch.Tensor,
        grad: torch.Tensor,
        state: State,
        lr: torch.Tensor,
        group: dict[str, Any],
    ) -> None:
        """One step, in place, in ops that can be traced. `group` has the other settings."""
        raise NotImplementedError

    def _states(self, params: Sequence[torch.Tensor]) -> list[State]:
        for param in params:
            if not self.state[param]:
                self.state[param] = self.start(param)
        return [self.state[param] for param in params]

    def _learning_rate(self, group: dict[str, Any], like: torch.Tensor) -> torch.Tensor:
        lr = group["lr"]
        if isinstance(lr, torch.Tensor):
            return lr.to(like.device)
        return torch.full((), float(lr), device=like.device)

    def _settings(self, group: dict[str, Any]) -> dict[str, Any]:
        """All but the parameters and the learning rate: constants of the program."""
        return {name: group[name] for name in self.defaults if name != "lr"}

    def _update_all(
        self,
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        states: list[State],
        lr: torch.Tensor,
        group: dict[str, Any],
    ) -> None:
        for param, grad, state in zip(params, grads, states, strict=True):
            self.update(param, grad, state, lr, group)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step by the gradients that are there, a program for each group of parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._compiled is None:
            self._compiled = torch.compile(self._update_all)
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if not params:
                continue
            grads = [param.grad for param in params]
            lr = self._learning_rate(group, params[0])
            self._compiled(params, grads, self._states(params), lr, self._settings(group))
        return loss
