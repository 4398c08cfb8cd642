"""ModuleInfo and OptimizerInfo entries, on the device against the CPU."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db

from .compare import DEVICE, check_layout, check_values, move, tensors_of, tolerances_of, widen
from .op_checks import SkipError, gradients

MODULES = {info.formatted_name: info for info in module_db}
OPTIMIZERS = {info.optim_cls.__name__: info for info in optim_db}

# Random in training mode: only layouts can agree there.
RANDOM_MODULES = ("Dropout", "RReLU", "FractionalMaxPool", "Transformer", "RNN", "LSTM", "GRU")


def check_module(name: str, dtype: torch.dtype, training: bool) -> int:
    """Forward, and the gradients of inputs and parameters, with the same weights."""
    info = MODULES[name]
    if dtype not in info.dtypes:
        raise SkipError(f"has no {dtype}")
    rtol, atol = tolerances_of(info, dtype)
    torch.manual_seed(0)
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    compared = 0
    for entry in inputs:
        build = entry.constructor_input
        torch.manual_seed(0)
        module = info.module_cls(*build.args, **build.kwargs).to(dtype).train(training)
        random = training and any(part in name for part in RANDOM_MODULES)
        if random:
            for part in module.modules():
                if isinstance(getattr(part, "p", None), float):
                    part.p = 0.0
                if isinstance(getattr(part, "dropout", None), float):
                    part.dropout = 0.0
        if entry.forward_input is None:
            continue
        call = entry.forward_input
        args = (tuple(call.args), dict(call.kwargs))
        try:  # lazy modules get their weights in the first call
            module(*args[0], **args[1])
        except Exception:
            continue
        module.zero_grad()
        cpu_module = copy.deepcopy(module)
        dev_module = copy.deepcopy(module).to(DEVICE)
        cpu_args, dev_args = move(args, "cpu"), move(args, DEVICE)
        torch.manual_seed(0)
        expected = cpu_module(*cpu_args[0], **cpu_args[1])
        torch.manual_seed(0)
        actual = dev_module(*dev_args[0], **dev_args[1])
        check_layout(actual, expected, meta=partial(_on_meta, module, args))
        if ("RReLU" not in name and "FractionalMaxPool" not in name) or not training:
            exact = _ExactModule(module, args)
            check_values(actual, expected, rtol, atol, exact.outputs)
            theirs = gradients((cpu_args, list(cpu_module.parameters())), tensors_of(expected))
            if theirs is not None:
                ours = gradients((dev_args, list(dev_module.parameters())), tensors_of(actual))
                check_values(ours, theirs, rtol, atol, exact.gradients, "gradient")
        compared += 1
    if compared == 0:
        raise SkipError("the CPU runs none of its inputs")
    return compared


def _on_meta(module: torch.nn.Module, args: Any) -> Any:
    args = move(args, "meta")
    return copy.deepcopy(module).to("meta")(*args[0], **args[1])


class _ExactModule:
    """The module in double precision on the CPU."""

    def __init__(self, module: torch.nn.Module, args: Any) -> None:
        self.module, self.args = module, args

    def outputs(self) -> Any:
        return self._run()[0]

    def gradients(self) -> Any:
        return self._run()[1]

    def _run(self) -> tuple[Any, Any]:
        module = copy.deepcopy(self.module).double()
        args = widen(self.args)
        torch.manual_seed(0)
        outputs = module(*args[0], **args[1])
        return outputs, gradients((args, list(module.parameters())), tensors_of(outputs))


def check_optimizer(name: str, dtype: torch.dtype) -> int:
    """Three steps with every set of arguments and every implementation the CPU has too."""
    info = OPTIMIZERS[name]
    rtol, atol = tolerances_of(info, dtype)
    compared = 0
    for entry in info.optim_inputs_func(device="cpu", dtype=dtype):
        for impl in ("for-loop", *info.supported_impls):
            kwargs = dict(entry.kwargs)
            if impl in ("foreach", "fused") and "foreach" in info.supported_impls:
                kwargs["foreach"] = impl == "foreach"
            if impl == "fused":
                kwargs["fused"] = True
            if impl == "differentiable":
                continue  # the loss must be differentiated through the step
            try:
                expected = _train(info, kwargs, dtype, "cpu")
            except Exception:
                continue
            actual = _train(info, kwargs, dtype, DEVICE)
            try:
                exact = partial(_train, info, kwargs, torch.float64, "cpu")
                check_values(actual, expected, max(rtol, 1e-5), max(atol, 1e-5), exact)
            except Exception as error:
                raise type(error)(f"{entry.desc or 'defaults'}, {impl}: {error}") from error
            compared += 1
    if compared == 0:
        raise SkipError("the CPU runs none of its inputs")
    return compared


def _train(info: Any, kwargs: dict[str, Any], dtype: torch.dtype, device: str) -> Any:
    generator = torch.Generator().manual_seed(0)
    weights = [
        torch.randn(shape, generator=generator).to(dtype).to(device).requires_grad_()
        for shape in ((10, 5), (10,), (3, 4))
    ]
    inputs = torch.randn(5, generator=generator).to(dtype).to(device)
    if info.only_supports_sparse_grads:
        raise SkipError("sparse gradients only")
    moved = {k: move(v, device) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
    params: Any = weights
    if info.optim_cls.__name__ == "Muon":
        params = [w for w in weights if w.dim() == 2]
    optimizer = info.optim_cls(params, **moved)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weights[0].mv(inputs) + weights[1]).pow(2).sum() + weights[2].sin().sum()
        loss.backward()
        return loss

    for _ in range(3):
        if info.step_requires_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    state = [x for w in params for x in tensors_of(optimizer.state.get(w, {}))]
    if info.optim_cls is torch.optim.LBFGS:
        state = []  # its history near the minimum is rounding noise
    return [x.detach().cpu() for x in (*weights, *state)]
