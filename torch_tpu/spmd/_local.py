"""per_device: a function of one device's parts, run on all devices of a mesh as one program. What
the devices exchange are the functional collectives in it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor.placement_types import Placement
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_tpu.spmd._gradient import Differentiable
from torch_tpu.spmd._inline import run
from torch_tpu.spmd._mesh import Mesh, Placements
from torch_tpu.spmd._parts import How, Local, part_of, record
from torch_tpu.spmd._program import OfLastCall
from torch_tpu.spmd._tensor import ShardedTensor
from torch_tpu.spmd._trace import pause, settings, tracing


class Call:
    """The user's function for one kind of arguments, as a function of tensors to tensors."""

    def __init__(self, function: Callable[..., Any], flat: list[Any], spec: Any) -> None:
        self._function = function
        self._flat = flat
        self._spec = spec
        self._out_spec: Any = None
        self._others: list[Any] = []  # of the results: (the object,), or None for a tensor

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        left = iter(tensors)
        args = tree_unflatten(
            [next(left) if v is None else v[0] for v in self._flat],
            self._spec,
        )
        found, self._out_spec = tree_flatten(self._function(*args))
        is_tensor = [isinstance(value, torch.Tensor) for value in found]
        self._others = [None if t else (v,) for t, v in zip(is_tensor, found, strict=True)]
        return [value for value in found if isinstance(value, torch.Tensor)]

    def results(self, tensors: Sequence[Any]) -> Any:
        """What the function returns, given its tensors."""
        left = iter(tensors)
        return tree_unflatten(
            [next(left) if other is None else other[0] for other in self._others], self._out_spec
        )


class PerDevice(OfLastCall):
    """What `per_device` gives: called with tensors of the mesh."""

    def __init__(
        self,
        function: Callable[..., Any],
        mesh: Mesh,
        results: Placements | Sequence[Placements],
        arguments: Placements | Sequence[Placements] | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._mesh = mesh
        self._given = results
        self._arguments = arguments
        self._variants: dict[Any, tuple[Call, Local | Differentiable]] = {}

    def __call__(self, *args: Any) -> Any:
        """Runs the program for such arguments, made now where there is none."""
        flat, spec = tree_flatten(args)
        tensors: list[ShardedTensor] = []
        for value in flat:
            if isinstance(value, torch.Tensor):
                if not isinstance(value, ShardedTensor) or value.mesh != self._mesh:
                    raise TypeError(
                        f"[spmd] an argument on {value.device}, not of {self._mesh}: "
                        "torch_tpu.spmd.shard puts it there"
                    )
                tensors.append(value)
        hows = self._taken(tensors)
        key: list[Any] = [str(spec), *settings()]
        for tensor, how in zip(tensors, hows, strict=True):
            key.append((tuple(tensor.shape), tensor.dtype, how, tensor.requires_grad))
        key += [(type(v), repr(v)) for v in flat if not isinstance(v, torch.Tensor)]
        variant = self._variants.get(tuple(key))
        if variant is None:
            variant = self._variants[tuple(key)] = self._make(flat, spec, tensors, hows)
        call, made = variant
        if isinstance(made, Differentiable):
            found = made(tensors)
            self._remember(made.forward, tensors)
        else:
            found = run(made, tensors)
            self._remember(made, tensors)
        return call.results(found)

    def _remember(self, local: Local, tensors: list[ShardedTensor]) -> None:
        if tracing() is None:
            self._last = local.program([t.placements for t in tensors])

    def _make(
        self, flat: list[Any], spec: Any, tensors: list[ShardedTensor], hows: list[How]
    ) -> tuple[Call, Local | Differentiable]:
        others = [None if isinstance(v, torch.Tensor) else (v,) for v in flat]
        call = Call(self._function, others, spec)
        name = getattr(self._function, "__name__", "function")
        mesh = self._mesh
        inputs = [part_of(mesh, t, how) for t, how in zip(tensors, hows, strict=True)]
        with pause():
            if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
                wanted = [t.requires_grad for t in tensors]
                return call, Differentiable(mesh, name, inputs, wanted, call, self._results)
            return call, record(mesh, name, inputs, call, self._results)

    def _taken(self, tensors: list[ShardedTensor]) -> list[How]:
        """How the function takes its arguments."""
        if self._arguments is not None:
            return self._several(self._arguments, len(tensors), "arguments")
        for tensor in tensors:
            if tensor._parts is None:
                raise RuntimeError(
                    "[spmd] a value inside spmd.compile is divided as the compiler likes. Say "
                    "how a function for each device takes it: per_device(..., arguments=...)"
                )
        return [tensor.placements for tensor in tensors]

    def _results(self, count: int) -> list[How]:
        return self._several(self._given, count, "results")

    def _several(self, given: Any, count: int, what: str) -> list[How]:
        several = isinstance(given, (list, tuple)) and not (
            given and all(isinstance(p, Placement) for p in given)
        )
        if not several:
            return [self._mesh.placements(given)] * count
        if len(given) != count:
            raise ValueError(f"[spmd] placements of {len(given)} {what}, not {count}")
        return [self._mesh.placements(some) for some in given]


def per_device(
    function: Callable[..., Any],
    mesh: Mesh,
    results: Placements | Sequence[Placements],
    arguments: Placements | Sequence[Placements] | None = None,
) -> PerDevice:
    """The function on every device of the mesh, as one program. It gets the parts of its arguments
    that lie there, and what it returns are parts: `results` says of what, for all results or one by
    one. `arguments` says the same of the arguments; without, they are taken as they are divided.
    Devices exchange what the function says, with torch.distributed's functional collectives
    over `mesh.group(axis)`; the compiler sees them and overlaps them with other work. Where
    arguments require gradients, backward is another such program. Inside a function of
    `spmd.compile` both are parts of its program."""
    return PerDevice(function, mesh, results, arguments)
