"""Layers that are alike as one loop: their parameters are stacked, so a compiler sees one layer
instead of all of them. Each layer's activations are computed again in backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from torch_tpu import _C
from torch_tpu.aot.topologies import AotError


class ScannedLayers(nn.Module):
    """Stands in a ModuleList for all its layers: called once, it goes through them.

    They must take the running value first, give the next one (or a tuple that starts with it), and
    otherwise get the same arguments.
    """

    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        if len(layers) == 0:
            raise AotError("there are no layers to go through")
        first = layers[0]
        shapes = {n: (p.shape, p.dtype) for n, p in first.named_parameters()}
        for i, layer in enumerate(layers):
            if {n: (p.shape, p.dtype) for n, p in layer.named_parameters()} != shapes:
                raise AotError(
                    f"layer {i} has other parameters than layer 0: they cannot be one loop"
                )
        self.length = len(layers)
        self.layer = [first]  # in a list: no part of the tree of modules
        self.names = [n for n, _ in first.named_parameters()]
        for name in self.names:
            like = first.get_parameter(name)
            stack = torch.empty((self.length, *like.shape), dtype=like.dtype, device="meta")
            self.register_parameter(
                name.replace(".", "__"), nn.Parameter(stack, requires_grad=like.requires_grad)
            )
        self.constrain: Callable[[torch.Tensor], torch.Tensor] = lambda x: x

    def stacks(self) -> list[nn.Parameter]:
        return [self.get_parameter(n.replace(".", "__")) for n in self.names]

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        flat, spec = torch.utils._pytree.tree_flatten((args, kwargs))
        extra = [v for v in flat if isinstance(v, torch.Tensor)]

        def rebuild(tensors: list[torch.Tensor]) -> tuple[Any, Any]:
            rest = iter(tensors)
            values = [next(rest) if isinstance(v, torch.Tensor) else v for v in flat]
            return torch.utils._pytree.tree_unflatten(values, spec)

        self._tuple = False
        out = _Scan.apply(self, rebuild, len(extra), x, *extra, *self.stacks())
        return (out,) if self._tuple else out

    def call_layer(
        self, x: torch.Tensor, rebuilt: tuple[Any, Any], weights: list[torch.Tensor]
    ) -> torch.Tensor:
        """One layer, with these weights."""
        args, kwargs = rebuilt
        out = torch.func.functional_call(
            self.layer[0], dict(zip(self.names, weights, strict=True)), (x, *args), kwargs
        )
        self._tuple = isinstance(out, tuple)
        if self._tuple:
            out = out[0]
        if not isinstance(out, torch.Tensor) or out.shape != x.shape:
            raise AotError(
                "a layer of the loop gives something else than it takes. Only layers of the form "
                "`x = layer(x, ...)` can be one loop; leave out `scan`."
            )
        return self.constrain(out.to(x.dtype))


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, module: ScannedLayers, rebuild: Any, extras: int, x: Any, *tensors: Any
    ) -> torch.Tensor:
        extra, stacks = list(tensors[:extras]), list(tensors[extras:])
        rebuilt = rebuild(extra)

        def body(values: list[torch.Tensor]) -> list[torch.Tensor | None]:
            carry, *weights = values
            return [module.call_layer(carry, rebuilt, weights), carry]

        last, inputs = _C._record_scan([module.constrain(x)], stacks, module.length, body)
        ctx.module, ctx.rebuild, ctx.extras = module, rebuild, extras
        ctx.save_for_backward(inputs, *tensors)
        return last

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        module: ScannedLayers = ctx.module
        inputs, *tensors = ctx.saved_tensors
        extra, stacks = tensors[: ctx.extras], tensors[ctx.extras :]
        wanted = [i for i, need in enumerate(ctx.needs_input_grad[4 : 4 + ctx.extras]) if need]
        zeros = [torch.zeros_like(extra[i]) for i in wanted]

        def body(values: list[torch.Tensor]) -> list[torch.Tensor | None]:
            carry, *sums = values[: 1 + len(wanted)]
            x, *weights = (v.detach().requires_grad_() for v in values[1 + len(wanted) :])
            used = [v.detach() for v in extra]
            for i in wanted:
                used[i].requires_grad_()
            with torch.enable_grad():
                out = module.call_layer(x, ctx.rebuild(used), weights)
                grads = torch.autograd.grad(
                    out, [x, *(used[i] for i in wanted), *weights], carry, allow_unused=True
                )
            n = 1 + len(wanted)
            added = [s if g is None else s + g for s, g in zip(sums, grads[1:n], strict=True)]
            of_weights = [
                torch.zeros_like(w) if g is None else g
                for w, g in zip(weights, grads[n:], strict=True)
            ]
            return [module.constrain(grads[0]), *added, *of_weights]

        out = _C._record_scan(
            [grad.contiguous(), *zeros], [inputs, *stacks], module.length, body, reverse=True
        )
        n = 1 + len(wanted)
        of_extra: list[Any] = [None] * ctx.extras
        for i, value in zip(wanted, out[1:n], strict=True):
            of_extra[i] = value
        return (None, None, None, out[0], *of_extra, *out[n:])


def find_stacks(module: nn.Module) -> Iterator[tuple[str, nn.ModuleList]]:
    """Lists of at least four layers that are alike."""
    for name, child in module.named_modules():
        if isinstance(child, nn.ModuleList) and len(child) >= 4:
            forms = {
                tuple((n, p.shape, p.dtype) for n, p in layer.named_parameters()) for layer in child
            }
            if len(forms) == 1 and next(iter(forms)):
                yield name, child
