"""spmd.compile: a Python function, traced once for each kind of arguments, as one program over the
mesh."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_tpu.spmd._eager import assign
from torch_tpu.spmd._program import OfLastCall, Program
from torch_tpu.spmd._tensor import ShardedTensor, leaves, over_mesh
from torch_tpu.spmd._trace import Trace, settings

_MANY = 8
_SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


@dataclass(frozen=True)
class _Made:
    """A result of the program."""

    place: int


@dataclass(frozen=True)
class _Given:
    """An argument of the program."""

    place: int


@dataclass
class _Variant:
    """A program, and what it takes and gives beside the function's arguments and results."""

    program: Program
    inputs: list[int | ShardedTensor]  # an argument's place, or a tensor the function knows
    results: list[Any]  # _Made, _Given, or an object that is no tensor
    spec: Any
    grads: list[tuple[ShardedTensor, int]]  # leaves, and which result is their gradient
    # Leaves, their gradients when the function was called, and whether it used those.
    starts: list[tuple[ShardedTensor, torch.Tensor | None, bool]]
    # What the function keeps for itself (an optimizer's state), made by one call alone.
    kept: list[tuple[ShardedTensor, int]] = field(default_factory=list)

    def fits(self) -> bool:
        """Whether gradients stand as they did when it was traced."""
        return all(
            leaf.grad is grad if used else (leaf.grad is None) == (grad is None)
            for leaf, grad, used in self.starts
        )

    def run(self, tensors: list[ShardedTensor]) -> Any:
        given = [tensors[i] if isinstance(i, int) else i for i in self.inputs]
        how = self.program.results
        parts = self.program.run([t.parts for t in given])
        for place in self.program.writes:
            torch.autograd.graph.increment_version(given[place])
        for tensor, place in self.kept:
            assign(tensor, how[place], parts[place])
        mesh = self.program.mesh
        made = [over_mesh(mesh, h, p) for h, p in zip(how, parts, strict=True)]
        for leaf, place in self.grads:
            leaf.grad = made[place]
        flat = []
        for result in self.results:
            if isinstance(result, _Made):
                result = made[result.place]
            elif isinstance(result, _Given):
                result = given[result.place]
            flat.append(result)
        return tree_unflatten(flat, self.spec)


class Compiled(OfLastCall):
    """What `compile` gives: called as the function is."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._variants: dict[Any, list[_Variant]] = {}
        self._objects: list[Any] = []  # whose addresses are in keys

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program for such arguments, made now where there is none."""
        flat, spec = tree_flatten((args, kwargs))
        for value in flat:
            if isinstance(value, torch.Tensor) and not isinstance(value, ShardedTensor):
                raise TypeError(
                    f"[spmd] an argument on {value.device}: torch_tpu.spmd.shard puts it over a "
                    "mesh"
                )
        tensors = [v for v in flat if isinstance(v, ShardedTensor)]
        key = self._key(flat, spec)
        found = self._variants.setdefault(key, [])
        variant = next((v for v in found if v.fits()), None)
        if variant is None:
            variant = self._trace(args, kwargs, tensors)
            if not variant.kept:
                found.append(variant)
                self._warn_of_many()
        self._last = variant.program
        return variant.run(tensors)

    def _key(self, flat: list[Any], spec: Any) -> Any:
        order: dict[int, int] = {}
        key: list[Any] = [str(spec), *settings(), repr(_watched(self._function))]
        for value in flat:
            if isinstance(value, ShardedTensor):
                same = order.setdefault(id(value._parts), len(order))
                key.append((same, tuple(value.shape), value.dtype, value.requires_grad))
                key.append((value.placements, value.mesh))
            elif isinstance(value, _SIMPLE):
                key.append((type(value), repr(value)))
            else:
                if not any(value is known for known in self._objects):
                    self._objects.append(value)
                key.append((type(value), id(value)))
        return tuple(key)

    def _warn_of_many(self) -> None:
        total = sum(map(len, self._variants.values()))
        if total == _MANY:
            warnings.warn(
                f"[spmd] {self._function} has {total} programs: numbers that change from call to "
                "call (a learning rate) should be tensors",
                stacklevel=3,
            )

    def _trace(self, args: Any, kwargs: Any, tensors: list[ShardedTensor]) -> _Variant:
        before = [(leaf, leaf.grad) for leaf in leaves()]
        trace = Trace(tensors[0].mesh if tensors else None)
        with trace:
            flat, spec = tree_flatten(self._function(*args, **kwargs))
        slots: list[int] = []  # results of the program
        results: list[Any] = []
        for i, value in enumerate(flat):
            if not isinstance(value, ShardedTensor):
                results.append(value)
            elif value._parts is not None:
                results.append(_Given(trace.place_of(value)))
            else:
                results.append(_Made(_add(slots, value._slot)))
            flat[i] = value = None
        gc.collect()  # what a graph behind the results saved for a backward that nobody will run
        owners = {id(leaf.grad): leaf for leaf in leaves() if leaf.grad is not None}
        grads: list[tuple[ShardedTensor, int]] = []
        kept: list[tuple[ShardedTensor, int]] = []
        for tensor in trace.alive():
            owner = owners.get(id(tensor))
            place = _add(slots, tensor._slot)
            if owner is not None:
                grads.append((owner, place))
            else:
                kept.append((tensor, place))
        program = trace.program(slots, getattr(self._function, "__name__", "function"))
        places = {id(t._parts): i for i, t in reversed(list(enumerate(tensors)))}
        used = {id(t) for t in trace.inputs}
        concerned = used | {id(leaf) for leaf, _ in grads}
        return _Variant(
            program,
            [places.get(id(t._parts), t) for t in trace.inputs],
            results,
            spec,
            grads,
            [(leaf, grad, id(grad) in used) for leaf, grad in before if id(leaf) in concerned],
            kept,
        )


def _add(slots: list[int], slot: int) -> int:
    if slot not in slots:
        slots.append(slot)
    return slots.index(slot)


def _known_to(function: Any, depth: int = 3) -> Iterator[Any]:
    """Objects that a function finds around it, also through functions that it calls."""
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        function = function.func
    yield function
    function = inspect.unwrap(function)
    if isinstance(function, types.MethodType):
        yield function.__self__
        function = function.__func__
    if not isinstance(function, types.FunctionType) or function.__module__.startswith("torch."):
        return
    found = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # a name that is not bound yet
            found.append(cell.cell_contents)
    names = function.__globals__
    found += [names[name] for name in function.__code__.co_names if name in names]
    for item in found:
        yield item
        if depth > 0 and isinstance(item, (types.FunctionType, types.MethodType)):
            yield from _known_to(item, depth - 1)


def _watched(function: Callable[..., Any]) -> list[Any]:
    """What of the Python around a function decides what it does: whether modules train, and the
    numbers of optimizers. A change means tracing again."""
    found: list[Any] = []
    for item in _known_to(function):
        if isinstance(item, torch.optim.Optimizer):
            for group in item.param_groups:
                numbers = {k: v for k, v in group.items() if isinstance(v, (int, float, tuple))}
                found.append(sorted(numbers.items()))
        elif isinstance(item, nn.Module):
            found.append([module.training for module in item.modules()])
        elif isinstance(item, (bool, int, float, str)):
            found.append(item)
    return found


def compile(function: Callable[..., Any]) -> Compiled:
    """The function as one program over the mesh of its tensors, partitioned by XLA.

    It is traced at the first call with such arguments (their shapes, placements and numbers); later
    calls run the program and no Python. It may use and write tensors of the mesh that it knows from
    outside, call backward and step an optimizer that was made with capturable=True."""
    return Compiled(function)
