"""spmd.compile: a Python function, traced once for each kind of arguments, as one program over the
mesh."""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_tpu.spmd import _hlo
from torch_tpu.spmd._eager import assign
from torch_tpu.spmd._program import Argument, Program
from torch_tpu.spmd._tensor import ShardedTensor, leaves
from torch_tpu.spmd._trace import Trace

_MANY = 8


def _made(how: Argument, parts: list[torch.Tensor], program: Program) -> ShardedTensor:
    like = torch.empty(how.shape, dtype=how.dtype, device="meta")
    return ShardedTensor(program.mesh, how.placements, like, parts)


@dataclass
class _Variant:
    """A program, and what it takes and gives beside the function's arguments and results."""

    program: Program
    inputs: list[int | ShardedTensor]  # an argument's place, or a tensor the function knows
    results: list[tuple[str, Any]]  # ("value", object), ("argument", place), ("made", place)
    spec: Any
    grads: list[tuple[ShardedTensor, int]]
    starts: list[tuple[ShardedTensor, ShardedTensor | None, bool]] = field(default_factory=list)

    def fits(self) -> bool:
        """Whether gradients stand as they did when it was traced."""
        for leaf, grad, used in self.starts:
            if (leaf.grad is None) != (grad is None) or used and leaf.grad is not grad:
                return False
        return True

    def run(self, tensors: list[ShardedTensor]) -> Any:
        given = [tensors[i] if isinstance(i, int) else i for i in self.inputs]
        parts = self.program.run([t.parts for t in given])
        made = [
            _made(how, held, self.program)
            for how, held in zip(self.program.results, parts, strict=True)
        ]
        for leaf, place in self.grads:
            leaf.grad = made[place]
        flat = []
        for kind, what in self.results:
            if kind == "value":
                flat.append(what)
            elif kind == "argument":
                flat.append(given[what])
            else:
                flat.append(made[what])
        return tree_unflatten(flat, self.spec)


class Compiled:
    """What `compile` gives: called as the function is."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._variants: dict[Any, list[_Variant]] = {}
        self._last: Program | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        flat, spec = tree_flatten((args, kwargs))
        tensors = [v for v in flat if isinstance(v, ShardedTensor)]
        for value in flat:
            if isinstance(value, torch.Tensor) and not isinstance(value, ShardedTensor):
                raise TypeError(
                    f"[spmd] an argument on {value.device}: torch_tpu.spmd.shard puts it over a "
                    "mesh"
                )
        key = self._key(flat, spec, tensors)
        for variant in self._variants.get(key, []):
            if variant.fits():
                self._last = variant.program
                return variant.run(tensors)
        return self._trace(args, kwargs, key, tensors)

    def collectives(self) -> list[_hlo.Collective]:
        """What the program of the last call exchanges between devices."""
        return self._program().collectives()

    def text(self) -> str:
        """The annotated StableHLO module of the last call."""
        return self._program().text

    def _program(self) -> Program:
        if self._last is None:
            raise RuntimeError("[spmd] the function has not been called")
        return self._last

    def _key(self, flat: list[Any], spec: Any, tensors: list[ShardedTensor]) -> Any:
        order: dict[int, int] = {}
        described: list[Any] = []
        for value in flat:
            if isinstance(value, ShardedTensor):
                same = order.setdefault(id(value._parts), len(order))
                what = (same, tuple(value.shape), value.dtype, value.placements, value.mesh)
                described.append((*what, value.requires_grad))
            else:
                described.append((type(value), value))
        state = (torch.is_grad_enabled(), *_watched(self._function))
        return (repr(described), str(spec), repr(state))

    def _trace(self, args: Any, kwargs: Any, key: Any, tensors: list[ShardedTensor]) -> Any:
        before = {id(leaf): (leaf, leaf.grad) for leaf in leaves()}
        trace = Trace(tensors[0].mesh if tensors else None)
        with trace:
            results = self._function(*args, **kwargs)
        flat, spec = tree_flatten(results)
        # The graph behind results keeps what it saved for backward; nobody runs it from here.
        flat = [v.detach() if isinstance(v, ShardedTensor) else v for v in flat]
        slots = [v._slot if isinstance(v, ShardedTensor) and v._parts is None else -1 for v in flat]
        known = {id(t._parts): i for i, t in enumerate(trace.inputs)}
        results = None
        made = [s for s in dict.fromkeys(slots) if s >= 0]
        kept: list[tuple[str, Any]] = []
        for value, slot in zip(flat, slots, strict=True):
            if slot >= 0:
                kept.append(("made", made.index(slot)))
            elif isinstance(value, ShardedTensor):
                if id(value._parts) not in known:
                    trace._slot_of(value)
                    known[id(value._parts)] = len(trace.inputs) - 1
                kept.append(("argument", known[id(value._parts)]))
            else:
                kept.append(("value", value))
        del flat, value
        gc.collect()
        grads: list[tuple[ShardedTensor, int]] = []
        outside: list[ShardedTensor] = []
        owners = {id(leaf.grad): leaf for leaf in leaves() if leaf.grad is not None}
        for tensor in trace.alive():
            if tensor._slot not in made:
                made.append(tensor._slot)
            owner = owners.get(id(tensor))
            if owner is not None:
                grads.append((owner, made.index(tensor._slot)))
            else:
                outside.append(tensor)
        places = {id(t._parts): i for i, t in reversed(list(enumerate(tensors)))}
        inputs: list[int | ShardedTensor] = [places.get(id(t._parts), -1) for t in trace.inputs]
        inputs = [t if i == -1 else i for i, t in zip(inputs, trace.inputs, strict=True)]
        program = trace.program(made, getattr(self._function, "__name__", "spmd"))
        self._last = program
        used = {id(t) for t in trace.inputs}
        taking_part = used | {id(leaf) for leaf, _ in grads}
        variant = _Variant(program, inputs, kept, spec, grads)
        variant.starts = [
            (leaf, grad, id(grad) in used)  # type: ignore[misc]
            for leaf, grad in before.values()
            if id(leaf) in taking_part
        ]
        held = list(outside)
        parts_of = {t._slot: t for t in held}
        del outside
        # What the function keeps for itself (an optimizer's state) is made by this call alone.
        if held:
            slots_held = list(parts_of)
            parts = program.run([t.parts for t in self._given(variant, tensors)])
            for slot in slots_held:
                place = made.index(slot)
                same = [t for t in held if t._slot == slot]
                for tensor in same:
                    assign([tensor], [program.results[place]], [parts[place]])
            return self._finish(variant, parts, tensors)
        found = self._variants.setdefault(key, [])
        found.append(variant)
        total = sum(map(len, self._variants.values()))
        if total == _MANY:
            warnings.warn(
                f"[spmd] {self._function} has {total} programs: numbers that change from call to "
                "call (a learning rate) should be tensors",
                stacklevel=3,
            )
        return variant.run(tensors)

    def _given(self, variant: _Variant, tensors: list[ShardedTensor]) -> list[ShardedTensor]:
        return [tensors[i] if isinstance(i, int) else i for i in variant.inputs]

    def _finish(
        self, variant: _Variant, parts: list[list[torch.Tensor]], tensors: list[ShardedTensor]
    ) -> Any:
        given = self._given(variant, tensors)
        made = [
            _made(how, held, variant.program)
            for how, held in zip(variant.program.results, parts, strict=True)
        ]
        for leaf, place in variant.grads:
            leaf.grad = made[place]
        flat = [
            what if kind == "value" else given[what] if kind == "argument" else made[what]
            for kind, what in variant.results
        ]
        return tree_unflatten(flat, variant.spec)


def _watched(function: Callable[..., Any]) -> list[Any]:
    """What of the Python around a function decides what it does: whether modules train, and the
    numbers of optimizers. A change means tracing again."""
    code = getattr(function, "__code__", None)
    found: list[Any] = []
    objects = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    if code is not None:
        names = getattr(function, "__globals__", {})
        objects += [names[name] for name in code.co_names if name in names]
    owner = getattr(function, "__self__", None)
    for item in [*objects, owner]:
        if isinstance(item, torch.optim.Optimizer):
            for group in item.param_groups:
                numbers = {k: v for k, v in group.items() if isinstance(v, (int, float, tuple))}
                found.append(sorted(numbers.items()))
        elif isinstance(item, nn.Module):
            found.append([module.training for module in item.modules()])
    return found


def compile(function: Callable[..., Any]) -> Compiled:
    """The function as one program over the mesh of its tensors, partitioned by XLA.

    It is traced at the first call with such arguments (their shapes, placements and numbers); later
    calls run the program and no Python. It may use and write tensors of the mesh that it knows from
    outside, call backward and step an optimizer that was made with capturable=True."""
    return Compiled(function)
