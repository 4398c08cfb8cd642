"""Programs that serve every size up to a bound.

A graph with symbolic sizes is recorded with each symbol at its bound. What does not count in a
tensor is masked by the builder (csrc/stablehlo/axis.h); the true sizes are arguments of the
program. Each node's `val` says which sizes its result must have: that is compared after every node,
over the sizes that the program will serve. Whatever is not proven raises, and the graph gets a
static program per size instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx

from torch_tpu import _C
from torch_tpu._compile.bounded_recorder import Recorder, Result, outputs
from torch_tpu._compile.plan import DEVICE, Plan, tensors_of
from torch_tpu._compile.sizes import (
    SMALLEST,
    Numbers,
    UnprovenError,
    bucket,
    compile_expressions,
    expression,
)

_log = logging.getLogger("torch_tpu.compile")
_HUGE = 1 << 31


@dataclass
class _Program:
    graph: Any
    results: list[Result]


class BoundedGraph:
    """The bounded programs of one graph."""

    def __init__(self, plan: Plan, name: str, visible: int | None) -> None:
        """`visible`: how many of the first results the caller sees; the others are for backward."""
        self._plan = plan
        self._name = name
        self._visible = visible
        self._programs: dict[tuple[Any, ...], list[_Program]] = {}
        self._together = False  # whether symbols of one value are taken for one
        self.keep_small = True
        self._numbers, self._sources = _numbers_of(plan)
        self._ranges = _ranges_of(plan, self._numbers.symbols)
        self._seen = [0] * len(self._ranges)  # the only value so far; -1: there were several
        self._exact: list[set[int]] = [set() for _ in self._ranges]  # small ones with a program
        self._prepare()
        self._evaluate = compile_expressions(self._numbers.symbols, self._numbers.expressions)
        self._floats = compile_expressions(self._numbers.symbols, self._numbers.floats)

    @staticmethod
    def wanted(plan: Plan) -> bool:
        """Whether sizes vary here at all."""
        return any(
            expression(size).free_symbols
            for node in plan.placeholders
            for tensor in tensors_of(node.meta.get("val"))
            for size in tensor.shape
        )

    def _prepare(self) -> None:
        for node in [*self._plan.placeholders, *self._plan.device, *self._plan.numbers]:
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt):
                self._numbers.add(expression(value))
            elif isinstance(value, torch.SymFloat):
                self._numbers.add_float(value.node.expr)
            for tensor in tensors_of(value):
                for size in tensor.shape:
                    self._numbers.need(expression(size))
        for node in outputs(self._plan):
            for tensor in tensors_of(node.meta.get("val") if isinstance(node, fx.Node) else None):
                for size in tensor.shape:
                    if expression(size).free_symbols:
                        self._numbers.add(expression(size))

    def __call__(self, args: list[Any]) -> list[Any]:
        """Raises UnprovenError."""
        values = [source(args) for source in self._sources]
        ranges = tuple(self._range(i, value) for i, value in enumerate(values))
        key = (ranges, self._equal(values, ranges))
        numbers = self._evaluate(*values)
        tensors = _on_device(args)
        floats = self._floats(*values)
        program, results = self._find(key, tensors, numbers, floats)
        if results is None:
            try:
                program = self._record(args, *key)
            except UnprovenError:
                # Two arguments that are always equally long may have a symbol each: a mask and
                # what it is for.
                together = (ranges, _first_of_each(values, ranges))
                if together == key:
                    raise
                program = self._record(args, *together)
                self._together, key = True, together
            self._programs.setdefault((key, program.graph.settings), []).append(program)
            results = program.graph.run_bounded(tensors, numbers, floats)
            assert results is not None
        out = []
        for result in program.results:
            if result.kind == "tensor":
                out.append(results[result.value])
            elif result.kind == "argument":
                out.append(args[result.value])
            elif result.kind == "number":
                out.append(numbers[result.value])
            else:
                out.append(result.value)
        args.clear()
        return out

    def _range(self, i: int, value: int) -> tuple[int, int]:
        """The bound and the smallest size it serves. A small size that was never another one may
        well be a constant, and would be padded most: it is taken as it is, and stays so where
        others follow: the last batch of an epoch has its program."""
        seen = self._seen[i]
        if seen == 0:
            self._seen[i] = seen = value
        elif value != seen:
            self._seen[i] = seen = -1
        if value in self._exact[i]:
            return value, value
        if seen > 0 and value < SMALLEST and self.keep_small:
            self._exact[i].add(value)
            return value, value
        return bucket(value, *self._ranges[i])

    def _equal(self, values: list[int], ranges: Any) -> tuple[int, ...]:
        return _first_of_each(values, ranges) if self._together else tuple(range(len(values)))

    def _find(
        self, key: tuple[Any, ...], tensors: Any, numbers: Any, floats: Any
    ) -> tuple[Any, Any]:
        """A program of these bounds that takes arguments lying so in memory, and its results."""
        for program in self._programs.get((key, _C._settings_word()), ()):
            results = program.graph.run_bounded(tensors, numbers, floats)
            if results is not None:
                return program, results
        return None, None

    def _record(
        self, args: list[Any], ranges: tuple[tuple[int, int], ...], equal: tuple[int, ...]
    ) -> _Program:
        tensors = _on_device(args)
        device = tensors[0].device
        index = device.index if device.index is not None else _C._current_device()
        with (
            torch._C._AutoDispatchBelowAutograd(),
            torch._C._DisableAutocast(),
            _C._Recording(index) as recording,
        ):
            try:
                recorder = Recorder(self._plan, self._numbers, ranges, equal)
                recorder.bind(recording, args)
                recorder.run()
                specs, results = recorder.results(self._visible)
                graph = recording.compile_bounded(f"{self._name}_bounded", specs)
            except UnprovenError:
                raise
            except Exception as error:
                raise UnprovenError(str(error).split("\n", 1)[0]) from error
        _log.debug("%s: bounds %s, %.3f s", self._name, ranges, graph.compile_seconds)
        return _Program(graph, results)


def _on_device(args: list[Any]) -> list[torch.Tensor]:
    """A tensor on the CPU goes through as it is, and tells sizes."""
    return [arg for arg in args if isinstance(arg, torch.Tensor) and arg.device.type == DEVICE]


def _first_of_each(values: list[int], ranges: Any) -> tuple[int, ...]:
    """Per symbol, the first one with the same value and bound."""
    known = list(zip(values, ranges, strict=True))
    return tuple(known.index(one) for one in known)


def _numbers_of(plan: Plan) -> tuple[Numbers, list[Callable[[list[Any]], int]]]:
    """The free symbols, and how to find each one's value among the arguments."""
    sources: dict[sympy.Symbol, Callable[[list[Any]], int]] = {}

    def from_number(i: int) -> Callable[[list[Any]], int]:
        return lambda args: int(args[i])

    def from_tensor(i: int, dim: int) -> Callable[[list[Any]], int]:
        return lambda args: int(args[i].shape[dim])

    free: set[sympy.Symbol] = set()
    for i, node in enumerate(plan.placeholders):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            expr = expression(value)
            free |= expr.free_symbols
            if expr.is_Symbol:
                sources.setdefault(expr, from_number(i))
        elif isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                expr = expression(size)
                free |= expr.free_symbols
                if expr.is_Symbol:
                    sources.setdefault(expr, from_tensor(i, dim))
        elif value is not None and not isinstance(value, (int, float, bool, str)):
            raise UnprovenError(f"an argument of type {type(value).__name__}")
    symbols = sorted(free, key=str)
    for symbol in symbols:
        if symbol not in sources:
            raise UnprovenError(f"no argument says what {symbol} is")
    return Numbers(symbols), [sources[symbol] for symbol in symbols]


def _ranges_of(plan: Plan, symbols: list[sympy.Symbol]) -> list[tuple[int, int]]:
    shape_env = next(
        size.node.shape_env for node in plan.placeholders for size in _symints(node.meta.get("val"))
    )
    out = []
    for symbol in symbols:
        found = shape_env.var_to_range.get(symbol)
        low, high = 0, _HUGE
        if found is not None:
            low = int(found.lower) if found.lower.is_Integer else 0
            high = int(found.upper) if found.upper.is_Integer else _HUGE
        out.append((max(low, 0), high))
    return out


def _symints(value: Any) -> Iterator[torch.SymInt]:
    if isinstance(value, torch.SymInt):
        yield value
    for tensor in tensors_of(value):
        sizes: Any = tensor.shape
        yield from (size for size in sizes if isinstance(size, torch.SymInt))
