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
from torch_tpu.spmd._mesh import Mesh, Placements
from torch_tpu.spmd._parts import How, make_program, part_of
from torch_tpu.spmd._program import OfLastCall, Program
from torch_tpu.spmd._tensor import ShardedTensor, over_mesh
from torch_tpu.spmd._trace import settings, tracing


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
        self, function: Callable[..., Any], mesh: Mesh, results: Placements | Sequence[Placements]
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._mesh = mesh
        self._given = results
        self._variants: dict[Any, tuple[Call, Program | Differentiable]] = {}

    def __call__(self, *args: Any) -> Any:
        """Runs the program for such arguments, made now where there is none."""
        if tracing():
            raise RuntimeError(
                "[spmd] a function of per_device inside one of spmd.compile. Call the one after "
                "the other."
            )
        flat, spec = tree_flatten(args)
        tensors = []
        key: list[Any] = [str(spec), *settings()]
        for value in flat:
            if not isinstance(value, torch.Tensor):
                key.append((type(value), repr(value)))
                continue
            if not isinstance(value, ShardedTensor) or value.mesh != self._mesh:
                raise TypeError(
                    f"[spmd] an argument on {value.device}, not of {self._mesh}: "
                    "torch_tpu.spmd.shard puts it there"
                )
            tensors.append(value)
            key.append((tuple(value.shape), value.dtype, value.placements, value.requires_grad))
        variant = self._variants.get(tuple(key))
        if variant is None:
            variant = self._variants[tuple(key)] = self._make(flat, spec, tensors)
        call, program = variant
        if isinstance(program, Differentiable):
            self._last = program.forward
            return call.results(program(tensors))
        self._last = program
        parts = program.run([t.parts for t in tensors])
        made = [over_mesh(self._mesh, h, p) for h, p in zip(program.results, parts, strict=True)]
        return call.results(made)

    def _make(
        self, flat: list[Any], spec: Any, tensors: list[ShardedTensor]
    ) -> tuple[Call, Program | Differentiable]:
        others = [None if isinstance(v, torch.Tensor) else (v,) for v in flat]
        call = Call(self._function, others, spec)
        name = getattr(self._function, "__name__", "function")
        inputs = [part_of(self._mesh, t) for t in tensors]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            wanted = [t.requires_grad for t in tensors]
            return call, Differentiable(self._mesh, name, inputs, wanted, call, self._results)
        return call, make_program(self._mesh, name, inputs, call, self._results)

    def _results(self, count: int) -> list[How]:
        given: Any = self._given
        several = isinstance(given, (list, tuple)) and not (
            given and all(isinstance(p, Placement) for p in given)
        )
        if not several:
            return [self._mesh.placements(given)] * count
        if len(given) != count:
            raise ValueError(f"[spmd] placements of {len(given)} results, not {count}")
        return [self._mesh.placements(some) for some in given]


def per_device(
    function: Callable[..., Any], mesh: Mesh, results: Placements | Sequence[Placements]
) -> PerDevice:
    """The function on every device of the mesh, as one program. It gets the parts of its arguments
    that lie there, and what it returns are parts: `results` says of what, for all results or one by
    one. Devices exchange what the function says, with torch.distributed's functional collectives
    over `mesh.group(axis)`; the compiler sees them and overlaps them with other work. Where
    arguments require gradients, backward is another such program."""
    return PerDevice(function, mesh, results)
