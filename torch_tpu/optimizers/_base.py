"""What the optimizers share: states on the device, and a step that is compiled once."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

State = dict[str, torch.Tensor]

# Options of torch.optim that no rule here has, with the values that ask for nothing.
_ABSENT: dict[str, tuple[Any, ...]] = {
    "amsgrad": (False,),
    "dampening": (0,),
    "maximize": (False,),
    "differentiable": (False,),
    "adjust_lr_fn": (None, "original"),
}


def _refuse_absent(rule: str, options: Mapping[str, Any]) -> None:
    """Raises for the first option that would change numbers and is not here."""
    for name, neutral in _ABSENT.items():
        if name in options and options[name] not in neutral:
            raise NotImplementedError(
                f"[{rule}] {name}={options[name]!r} is not in torch_tpu.optimizers: leave it at "
                f"{neutral[0]!r}, or use the optimizer of torch.optim, which runs on 'tpu' too."
            )


def compiled_alone(method: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile of a method by a code object of its own: Dynamo compiles one so often and then
    runs it op by op, and a class's is shared by all its objects."""
    assert isinstance(method, types.MethodType)
    shared = method.__func__
    own = types.FunctionType(shared.__code__.replace(), shared.__globals__, shared.__name__)
    return torch.compile(types.MethodType(own, method.__self__))


class Optimizer(torch.optim.Optimizer):
    """A rule for one parameter, applied to all of them in one program. Subclasses give `start` and
    `update`; the learning rate is a number of the program, so a schedule compiles nothing."""

    # By the number of the group. Of the class, as copies and pickles begin without them.
    _programs: dict[int, Callable[..., None]] | None = None
    _opt_called: bool  # of torch.optim's schedulers

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if "lr" not in defaults or defaults["lr"] < 0:
            raise ValueError(f"Invalid learning rate: {defaults.get('lr')}")
        _refuse_absent(type(self).__name__, defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch.optim's; refuses options that are not here."""
        _refuse_absent(type(self).__name__, param_group)
        super().add_param_group(param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What copies, pickles and load_state_dict end in; the state may be torch.optim's, which
        keeps `step` on the CPU and None for a momentum that has not begun."""
        for group in state["param_groups"]:
            _refuse_absent(type(self).__name__, group)
        super().__setstate__(state)
        for group in self.param_groups:
            for param in group["params"]:
                held = self.state.get(param, {})
                if any(value is None for value in held.values()):
                    del self.state[param]
                    continue
                for name, value in held.items():
                    held[name] = value.to(param.device)

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

    def _learning_rate(self, group: dict[str, Any], params: Sequence[torch.Tensor]) -> torch.Tensor:
        """On the device, and as exact as the widest parameter."""
        lr, device = group["lr"], params[0].device
        if isinstance(lr, torch.Tensor):
            return lr.to(device)
        wide = any(param.dtype in (torch.float64, torch.complex128) for param in params)
        dtype = torch.float64 if wide else torch.float32
        return torch.full((), float(lr), dtype=dtype, device=device)

    def _settings(self, group: dict[str, Any]) -> dict[str, Any]:
        """All but the parameters and the learning rate: constants of the program."""
        # torch adds names to the defaults (`differentiable`) that its groups need not have.
        return {name: group[name] for name in self.defaults if name != "lr" and name in group}

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
        programs = self._programs = self._programs or {}
        for number, group in enumerate(self.param_groups):
            params = [param for param in group["params"] if param.grad is not None]
            if not params:
                continue
            grads = [param.grad for param in params]
            lr = self._learning_rate(group, params)
            if number not in programs:
                programs[number] = compiled_alone(self._update_all)
            programs[number](params, grads, self._states(params), lr, self._settings(group))
        return loss
