"""Records one bounded program: runs the nodes of a graph at the bound and compares after each one
which elements count with what PyTorch's shape inference says."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx

from torch_tpu._compile import bounded_ops
from torch_tpu._compile.plan import DEVICE, Plan
from torch_tpu._compile.sizes import Numbers, UnprovenError, compile_expressions, expression


@dataclass
class Result:
    """One of the graph's results: a tensor of the program, an argument, a number or a constant."""

    kind: str
    value: Any


def outputs(plan: Plan) -> list[Any]:
    assert plan.output is not None
    return list(plan.output.args[0])  # type: ignore[arg-type]


class Recorder:
    """Records one program."""

    def __init__(
        self,
        plan: Plan,
        numbers: Numbers,
        ranges: Sequence[tuple[int, int]],
        equal: Sequence[int],
    ) -> None:
        """`equal`: per symbol, the first one that has its value in every call of the program."""
        self.plan = plan
        self.numbers = numbers
        self.bounds = [bound for bound, _ in ranges]
        self.fixed: dict[sympy.Symbol, sympy.Expr] = {
            symbol: sympy.Integer(bound)
            for symbol, (bound, first) in zip(numbers.symbols, ranges, strict=True)
            if bound == first
        }
        for symbol, first in zip(numbers.symbols, equal, strict=True):
            if numbers.symbols[first] is not symbol and symbol not in self.fixed:
                self.fixed[symbol] = numbers.symbols[first]
        self._sample_values = [tuple(v[first] for first in equal) for v in _samples(ranges)]
        evaluate = compile_expressions(numbers.symbols, numbers.expressions)
        self.samples = [evaluate(*values) for values in self._sample_values]
        self._known: dict[sympy.Expr, tuple[int, list[int]]] = {}
        self.env: dict[fx.Node, Any] = {}
        self.scope: Any = None

    def expression(self, size: Any) -> sympy.Expr:
        """Of an int or SymInt, in what varies in this program."""
        return expression(size).xreplace(self.fixed)

    def at_bound(self, expr: sympy.Expr) -> int:
        """The expression's value where every symbol is at its bound."""
        return self._values(expr)[0]

    def at_samples(self, expr: sympy.Expr) -> list[int]:
        """Its values over the sizes that this program serves."""
        return self._values(expr)[1]

    def _values(self, expr: sympy.Expr) -> tuple[int, list[int]]:
        if expr not in self._known:
            function = compile_expressions(self.numbers.symbols, [expr])
            self._known[expr] = (
                int(function(*self.bounds)[0]),
                [int(function(*values)[0]) for values in self._sample_values],
            )
        return self._known[expr]

    def bind(self, recording: Any, args: list[Any]) -> None:
        """The arguments: at the bound where they vary."""
        bound: list[tuple[fx.Node, Any, bool]] = []
        for node, arg in zip(self.plan.placeholders, args, strict=True):
            value: Any = node.meta.get("val")
            if isinstance(value, torch.SymInt):
                self.env[node] = self.at_bound(self.expression(value))
                continue
            if not isinstance(arg, torch.Tensor) or arg.device.type != DEVICE:
                self.env[node] = arg
                continue
            exprs = [self.expression(size) for size in value.shape]
            varies = any(expr.free_symbols for expr in exprs)
            if varies:
                sizes = [self.at_bound(expr) for expr in exprs]
                bound.append((node, recording.padded(arg, sizes), True))
            else:
                bound.append((node, recording.argument(arg), False))
        for node, value in self.plan.constants.items():
            if isinstance(value, torch.Tensor):
                raise UnprovenError("a constant tensor")
            self.env[node] = value
        self.scope = recording.numbers(len(self.numbers.expressions), len(self.numbers.floats))
        for node, stand_in, varies in bound:
            self.env[node] = self.settle(stand_in, node.meta["val"]) if varies else stand_in

    def run(self) -> None:
        """All nodes in order."""
        nodes = {id(node) for node in [*self.plan.numbers, *self.plan.device]}
        assert self.plan.output is not None
        for node in self.plan.output.graph.nodes:
            if id(node) not in nodes or node in self.env:
                continue
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt):
                self.env[node] = self.at_bound(self.expression(value))
                continue
            if isinstance(value, (torch.SymFloat, torch.SymBool)):
                self.env[node] = None  # known only when the program runs
                continue
            try:
                result, cut = bounded_ops.call(self, node)
                self.env[node] = self.settle(result, value, cut)
            except UnprovenError as error:
                raise UnprovenError(f"{node.target}: {error}") from error
            except Exception as error:
                text = str(error).split("\n", 1)[0]
                raise UnprovenError(f"{node.target}: {text}") from error

    def settle(self, result: Any, meta: Any, cut: bool = False) -> Any:
        """Gives tensors the sizes that `meta` says, if that is right. `cut`: a part of what counts
        may be dropped."""
        if isinstance(result, (list, tuple)):
            pairs = zip(result, meta, strict=True)
            return type(result)(self.settle(item, like, cut) for item, like in pairs)
        if not isinstance(result, torch.Tensor) or not isinstance(meta, torch.Tensor):
            return result
        exprs = [self.expression(size) for size in meta.shape]
        sizes = [self.at_bound(expr) for expr in exprs]
        if list(result.shape) != sizes:
            raise UnprovenError(f"sizes {list(result.shape)} where {sizes} are expected")
        known = self.scope.look(result, self.samples)
        for dim, (expr, (factors, counts)) in enumerate(zip(exprs, known, strict=True)):
            symbolic = bool(expr.free_symbols)
            if factors == 0:
                if symbolic:
                    result = self.scope.vary(result, dim, *self.numbers.extents(expr))
                continue
            expected = self.at_samples(expr)
            fits = counts == expected
            if not fits and cut and factors == 1:
                fits = all(want <= have for want, have in zip(expected, counts, strict=True))
            if not fits:
                raise UnprovenError(f"of dimension {dim} other elements count than {expr}")
            if not symbolic:
                result = self.scope.trust(result, dim)
            elif factors == 1:
                result = self.scope.vary(result, dim, *self.numbers.extents(expr))
        return result

    def varying(self, tensor: Any) -> list[int]:
        """Dimensions that vary."""
        known = self.scope.look(tensor, [])
        return [dim for dim, (factors, _) in enumerate(known) if factors > 0]

    def results(self, visible: int | None) -> tuple[list[Any], list[Result]]:
        """What the program returns, and how the graph's results are made of it."""
        specs: list[Any] = []
        results: list[Result] = []
        positions = {node: i for i, node in enumerate(self.plan.placeholders)}
        for i, node in enumerate(outputs(self.plan)):
            if not isinstance(node, fx.Node):
                results.append(Result("constant", node))
                continue
            meta: Any = node.meta.get("val")
            value = self.env[node]
            if node in positions:
                results.append(Result("argument", positions[node]))
            elif isinstance(meta, torch.SymInt):
                results.append(Result("number", self.numbers[expression(meta)]))
            elif isinstance(value, torch.Tensor):
                seen = visible is None or i < visible
                if seen and _views_argument(node):
                    # AOTAutograd cannot repeat such a view: it asks where the result lies.
                    raise UnprovenError("a view of an argument by numbers that vary")
                results.append(Result("tensor", len(specs)))
                specs.append(self._spec(value, meta, seen))
            elif value is None or isinstance(value, (int, float, bool)):
                results.append(Result("constant", value))
            else:
                raise UnprovenError(f"a result of type {type(value).__name__}")
        return specs, results

    def _spec(self, value: torch.Tensor, meta: torch.Tensor, visible: bool) -> Any:
        exprs = [self.expression(size) for size in meta.shape]
        where = [
            self.numbers[expression(size)] if expr.free_symbols else -1
            for expr, size in zip(exprs, meta.shape, strict=True)
        ]
        sizes = [self.at_bound(expr) for expr in exprs]
        inner = [d for d, at in enumerate(where) if at >= 0 and any(s != 1 for s in sizes[:d])]
        merged = any(factors > 1 for factors, _ in self.scope.look(value, []))
        order = self._order(meta)
        packed = merged or (visible and (bool(inner) or order != sorted(order)))
        if not any(at >= 0 for at in where):
            return value, where, sizes, None
        if packed:
            return self.scope.pack(value.permute(order)), where, sizes, order
        return value.contiguous(), where, sizes, None

    def _order(self, meta: torch.Tensor) -> list[int]:
        """The dims as PyTorch lays them out, from the slowest to the fastest."""
        strides = [self.at_samples(self.expression(stride))[0] for stride in meta.stride()]
        sizes = [self.at_samples(self.expression(size))[0] for size in meta.shape]
        step = 1
        dense = [d for d in range(meta.dim()) if sizes[d] != 1]
        for d in sorted(dense, key=lambda d: strides[d]):
            if strides[d] != step:  # not dense: contiguous will do
                return list(range(meta.dim()))
            step *= sizes[d]
        order = sorted(dense, key=lambda d: -strides[d])
        if order == dense:
            return list(range(meta.dim()))
        return [d for d in range(meta.dim()) if sizes[d] == 1] + order


def _samples(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, ...]]:
    """Values of the symbols over which sizes are compared: the ends and some in between."""
    each = []
    for bound, first in ranges:
        step = max(1, (bound - first) // 12)
        values = {bound, max(bound - 1, first), *range(max(first, 2), bound, step)}
        each.append(sorted(value for value in values if value >= min(first, bound)))
    longest = max(len(values) for values in each)
    # Pairwise with different strides, so that two symbols are not taken for one.
    for i in range(longest):
        yield tuple(values[(i * (k + 1) + k) % len(values)] for k, values in enumerate(each))
    yield from itertools.islice(itertools.product(*[(v[0], v[-1]) for v in each]), 8)


def _views_argument(node: fx.Node) -> bool:
    """Whether it is a view of an argument, taken with a symbolic number."""
    symbolic = False
    while node.op == "call_function":
        schema = getattr(node.target, "_schema", None)
        is_view = schema is not None and any(
            ret.alias_info is not None and not ret.alias_info.is_write for ret in schema.returns
        )
        if not is_view and node.target is not operator.getitem:
            return False
        symbolic |= len(node.all_input_nodes) > 1
        node = node.args[0]  # type: ignore[assignment]
    return symbolic and node.op == "placeholder"
