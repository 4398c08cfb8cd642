"""A training step as one program: loss, gradients and the update of the parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_tpu.optimizers._base import Optimizer, State

Tensors = dict[str, torch.Tensor]


class _LossOf(torch.nn.Module):
    """The loss as a module, so that its parameters can be exchanged."""

    def __init__(self, model: torch.nn.Module, loss_fn: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.loss_fn(self.model, *args, **kwargs)


class SingleTraceTrainer:
    """Calls of `step(*batch)` train a model: `loss_fn(model, *batch)` gives the loss, the
    optimizer's rule is applied to its gradients, and all of it is one program. Gradients are values
    of the program: `.grad` stays None.

    >>> import torch
    >>> model = torch.nn.Linear(4, 1).to("tpu")
    >>> optimizer = torch.tpu.optimizers.Sgd(model.parameters(), lr=0.1)
    >>> loss_fn = lambda model, x: model(x).square().mean()
    >>> trainer = torch.tpu.optimizers.SingleTraceTrainer(model, optimizer, loss_fn)
    >>> losses = [trainer.step(torch.ones(2, 4, device="tpu")).item() for _ in range(3)]
    >>> losses == sorted(losses, reverse=True)
    True
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer,
        loss_fn: Callable[..., torch.Tensor],
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"[SingleTraceTrainer] expected an optimizer of torch_tpu.optimizers, got "
                f"{type(optimizer).__name__}. Others train in one program under Fused Eager: call "
                f"loss.backward() and optimizer.step() as usual."
            )
        self._loss_of = _LossOf(model, loss_fn)
        self._optimizer = optimizer
        known = dict(self._loss_of.named_parameters())
        by_param = {param: name for name, param in known.items()}
        self._groups = [
            [by_param[param] for param in group["params"] if param in by_param]
            for group in optimizer.param_groups
        ]
        trained = {name for names in self._groups for name in names}
        self._params = {name: known[name] for name in known if name in trained}
        self._others = {name: known[name] for name in known if name not in trained}
        self._buffers = dict(self._loss_of.named_buffers())
        self._compiled = torch.compile(self._step)

    def step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """One step on a batch; gives the loss before it."""
        optimizer = self._optimizer
        rates, states, settings = [], [], []
        for names, group in zip(self._groups, optimizer.param_groups, strict=True):
            params = [self._params[name] for name in names]
            states.append(optimizer._states(params))
            settings.append(optimizer._settings(group))
            rates.append(optimizer._learning_rate(group, params[0]) if params else None)
        with torch.no_grad():
            loss: torch.Tensor = self._compiled(rates, states, settings, args, kwargs)
        return loss

    __call__ = step

    def _step(
        self,
        rates: list[Any],
        states: list[list[State]],
        settings: list[dict[str, Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> torch.Tensor:
        def loss_of(params: Tensors) -> tuple[torch.Tensor, Tensors]:
            # A forward may write its buffers; no gradient passes through them.
            buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
            given = {**self._others, **params, **buffers}
            loss = torch.func.functional_call(self._loss_of, given, args, kwargs)
            return loss, buffers

        # Other tensors than the parameters: their gradients are wanted, not their history.
        params = {name: param.detach() for name, param in self._params.items()}
        grads, (loss, buffers) = torch.func.grad_and_value(loss_of, has_aux=True)(params)
        for name, buffer in buffers.items():
            self._buffers[name].copy_(buffer)
        for names, lr, state, group in zip(self._groups, rates, states, settings, strict=True):
            chosen: list[torch.Tensor] = [self._params[name] for name in names]
            self._optimizer._update_all(chosen, [grads[n] for n in names], state, lr, group)
        return loss
