"""The rules, as torch.optim has them, with its arguments in its order, which are also the settings
of its groups. Those that only choose how torch.optim runs (foreach, fused, capturable) choose
nothing here; those in `_base._ABSENT` raise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torch_tpu.optimizers._base import Optimizer, State


class AdamW(Optimizer):
    """torch.optim.AdamW in one program.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.ones(2, device="tpu"))
    >>> w.grad = torch.ones(2, device="tpu")
    >>> torch.tpu.optimizers.AdamW([w], lr=0.5, weight_decay=0.0).step()
    >>> w.data
    tensor([0.5000, 0.5000], device='tpu:0')
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def start(self, param: torch.Tensor) -> State:
        """Step number, and the averages of gradients and of their squares."""
        return {
            "step": torch.zeros((), dtype=torch.float32, device=param.device),
            "exp_avg": torch.zeros_like(param),
            "exp_avg_sq": torch.zeros_like(param),
        }

    def update(
        self,
        param: torch.Tensor,
        grad: torch.Tensor,
        state: State,
        lr: torch.Tensor,
        group: dict[str, Any],
    ) -> None:
        """One step."""
        beta1, beta2 = group["betas"]
        step = state["step"].add_(1).to(torch.promote_types(lr.dtype, torch.float32))
        param.mul_(1 - lr * group["weight_decay"])
        first = state["exp_avg"].lerp_(grad, 1 - beta1)
        second = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        size = lr / (1 - beta1**step)
        root = (second / (1 - beta2**step)).sqrt()
        param.sub_(size * first / (root + group["eps"]))


class Sgd(Optimizer):
    """torch.optim.SGD in one program.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.ones(2, device="tpu"))
    >>> w.grad = torch.ones(2, device="tpu")
    >>> torch.tpu.optimizers.Sgd([w], lr=0.25).step()
    >>> w.data
    tensor([0.7500, 0.7500], device='tpu:0')
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        if nesterov and momentum <= 0:
            raise ValueError("Nesterov momentum requires a momentum")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def start(self, param: torch.Tensor) -> State:
        """The momentum, which begins at 0: the first step is then the gradient's own."""
        return {"momentum_buffer": torch.zeros_like(param)}

    def update(
        self,
        param: torch.Tensor,
        grad: torch.Tensor,
        state: State,
        lr: torch.Tensor,
        group: dict[str, Any],
    ) -> None:
        """One step."""
        step = grad + group["weight_decay"] * param if group["weight_decay"] else grad
        if group["momentum"]:
            buffer = state["momentum_buffer"].mul_(group["momentum"]).add_(step)
            step = step + group["momentum"] * buffer if group["nesterov"] else buffer
        param.sub_(lr * step)


class Muon(Optimizer):
    """torch.optim.Muon in one program: momentum made orthogonal, for matrices.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.ones(4, 4, device="tpu"))
    >>> optimizer = torch.tpu.optimizers.Muon([w], lr=1e-2)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(params, defaults)
        for group in self.param_groups:
            for param in group["params"]:
                if param.dim() != 2:
                    raise ValueError(
                        f"Muon only supports 2D parameters, whereas we found one of size "
                        f"{list(param.shape)}"
                    )

    def start(self, param: torch.Tensor) -> State:
        """The momentum."""
        return {"momentum_buffer": torch.zeros_like(param)}

    def update(
        self,
        param: torch.Tensor,
        grad: torch.Tensor,
        state: State,
        lr: torch.Tensor,
        group: dict[str, Any],
    ) -> None:
        """One step."""
        momentum = group["momentum"]
        buffer = state["momentum_buffer"].lerp_(grad, 1 - momentum)
        step = grad.lerp(buffer, momentum) if group["nesterov"] else buffer
        step = _orthogonal(step, group["ns_coefficients"], group["ns_steps"], group["eps"])
        rows, columns = param.shape
        param.mul_(1 - lr * group["weight_decay"])
        param.sub_(lr * max(1.0, rows / columns) ** 0.5 * step.to(param.dtype))


def _orthogonal(
    matrix: torch.Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> torch.Tensor:
    """About the nearest orthogonal matrix, by Newton-Schulz iteration in bfloat16."""
    a, b, c = coefficients
    x = matrix.bfloat16()
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
