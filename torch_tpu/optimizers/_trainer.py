"""A training step as one program: loss, gradients and the update of the parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_map_only

from torch_tpu.optimizers._base import Optimizer, State, compiled_alone

Tensors = dict[str, torch.Tensor]


class _LossOf(torch.nn.Module):
    """The loss as a module, so that its parameters can be exchanged."""

    def __init__(self, model: torch.nn.Module, loss_fn: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Tensors]:
        """The loss, and the buffers as they are then: a forward may put others in their place."""
        loss = self.loss_fn(self.model, *args, **kwargs)
        return loss, dict(self.named_buffers())


class SingleTraceTrainer:
    """Calls of `step(*batch)` train a model: `loss_fn(model, *batch)` gives the loss, the
    optimizer's rule is applied to its gradients, and all of it is one program. Gradients are values
    of the program: `.grad` stays None. As with torch.optim, parameters that are frozen or that the
    loss does not use stay as they are.

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
        self._buffers: Tensors = {}
        self._seen: list[list[tuple[int, bool]]] | None = None
        self._batch: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self._sort()
        self._compiled = compiled_alone(self._step)

    def _sort(self) -> None:
        """Into parameters that are trained, by group, and others; again where groups were added or
        parameters frozen. Buffers are those that the model has now."""
        self._buffers = dict(self._loss_of.named_buffers())
        groups = [group["params"] for group in self._optimizer.param_groups]
        seen = [[(id(param), param.requires_grad) for param in params] for params in groups]
        if seen == self._seen:
            return
        known = dict(self._loss_of.named_parameters())
        by_param = {param: name for name, param in known.items()}
        lost = [
            f"number {at} of group {number} {list(param.shape)}"
            for number, params in enumerate(groups)
            for at, param in enumerate(params)
            if param not in by_param
        ]
        if lost:
            raise ValueError(
                f"[SingleTraceTrainer] parameters of the optimizer that the model does not hold: "
                f"{', '.join(lost)}. Make them attributes of the model (or of a loss_fn that is a "
                f"Module), or train with loss.backward() and optimizer.step()."
            )
        self._groups = [[by_param[p] for p in params if p.requires_grad] for params in groups]
        trained = {name for names in self._groups for name in names}
        self._params = {name: known[name] for name in known if name in trained}
        self._others = {name: known[name] for name in known if name not in trained}
        self._seen = seen

    def step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """One step on a batch; gives the loss before it."""
        self._sort()
        optimizer = self._optimizer
        rates, states, settings = [], [], []
        for names, group in zip(self._groups, optimizer.param_groups, strict=True):
            params = [self._params[name] for name in names]
            states.append(optimizer._states(params))
            settings.append(optimizer._settings(group))
            rates.append(optimizer._learning_rate(group, params) if params else None)
        self._batch = (args, kwargs)
        try:
            with torch.no_grad():
                loss: torch.Tensor = self._compiled(rates, states, settings, args, kwargs)
        finally:
            self._batch = ((), {})
        optimizer._opt_called = True  # what schedulers look at before they warn of their order
        return loss

    __call__ = step

    @torch._dynamo.assume_constant_result
    def _used(self) -> list[str]:
        """The parameters that the loss depends on: a gradient of zeros does not tell. Runs while
        the step is traced, on shapes alone, so its answer lives as long as that trace."""
        return self._find_used()

    @torch._dynamo.disable
    def _find_used(self) -> list[str]:
        with (
            torch.compiler.set_stance("force_eager"),  # of models that are compiled themselves
            unset_fake_temporarily(),
            FakeTensorMode(allow_non_fake_inputs=True) as shapes,
        ):
            args, kwargs = tree_map_only(torch.Tensor, shapes.from_tensor, self._batch)
            known = {**self._others, **self._params, **self._buffers}
            given = {name: shapes.from_tensor(tensor) for name, tensor in known.items()}
            with torch.enable_grad():
                loss, _ = torch.func.functional_call(self._loss_of, dict(given), args, kwargs)
            if not self._params or not loss.requires_grad:
                return []
            wanted = [given[name] for name in self._params]
            grads = torch.autograd.grad(loss, wanted, allow_unused=True)
        return [name for name, grad in zip(self._params, grads, strict=True) if grad is not None]

    def _step(
        self,
        rates: list[Any],
        states: list[list[State]],
        settings: list[dict[str, Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> torch.Tensor:
        used = self._used()
        if not used:
            raise RuntimeError(
                "[SingleTraceTrainer] the loss depends on no parameter that is trained: give the "
                "optimizer parameters that the loss uses, with requires_grad=True."
            )

        def loss_of(params: Tensors) -> tuple[torch.Tensor, Tensors]:
            # A forward may write its buffers; no gradient passes through them.
            buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
            given = {**self._others, **unused, **params, **buffers}
            loss, after = torch.func.functional_call(self._loss_of, given, args, kwargs)
            return loss, after

        # Other tensors than the parameters: their gradients are wanted, not their history.
        params = {name: self._params[name].detach() for name in used}
        unused = {name: self._params[name] for name in self._params if name not in used}
        grads, (loss, after) = torch.func.grad_and_value(loss_of, has_aux=True)(params)
        for name, buffer in self._buffers.items():
            _write_back(name, buffer, after.get(name))
        for names, lr, state, group in zip(self._groups, rates, states, settings, strict=True):
            chosen = [(name, held) for name, held in zip(names, state, strict=True) if name in used]
            self._optimizer._update_all(
                [self._params[name] for name, _ in chosen],
                [grads[name] for name, _ in chosen],
                [held for _, held in chosen],
                lr,
                group,
            )
        return loss


def _write_back(name: str, buffer: torch.Tensor, after: torch.Tensor | None) -> None:
    if after is None:
        raise RuntimeError(
            f"[SingleTraceTrainer] the forward took buffer '{name}' away. Keep it, or train with "
            f"loss.backward() and optimizer.step()."
        )
    if after.shape != buffer.shape or after.dtype != buffer.dtype:
        raise RuntimeError(
            f"[SingleTraceTrainer] the forward made buffer '{name}' {list(after.shape)} "
            f"{after.dtype}; it was {list(buffer.shape)} {buffer.dtype}. Keep its shape and dtype, "
            f"or train with loss.backward() and optimizer.step()."
        )
    buffer.copy_(after)
