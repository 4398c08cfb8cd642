"""Sizes that vary, as sympy expressions: which numbers a bounded program gets, and how its sizes
are made of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.printers import PythonPrinter

Extents = tuple[int, list[tuple[int, int]]]  # a constant and (number, factor)

SMALLEST = 16
_printer = PythonPrinter()


class UnprovenError(RuntimeError):
    """No bounded program: a static one per size serves instead."""


def expression(size: Any) -> sympy.Expr:
    """Of an int or SymInt."""
    if isinstance(size, torch.SymInt):
        return size.node.expr
    return sympy.Integer(int(size))


def bucket(size: int, lowest: int, highest: int) -> tuple[int, int]:
    """The bound for a size and the smallest size that has it: powers of two within the range."""
    bound = max(SMALLEST, 1 << (size - 1).bit_length()) if size > 0 else SMALLEST
    first = 0 if bound == SMALLEST else bound // 2 + 1
    return min(bound, highest), max(first, lowest)


def compile_expressions(symbols: Sequence[sympy.Symbol], expressions: Sequence[sympy.Expr]) -> Any:
    """A function of the symbols' values that returns the values of the expressions."""
    names = {symbol: sympy.Symbol(f"n{i}", integer=True) for i, symbol in enumerate(symbols)}
    texts = [_printer.doprint(e.xreplace(names)) for e in expressions]
    arguments = ", ".join(str(name) for name in names.values())
    scope = {"math": math, "torch": torch, "min": min, "max": max, "floor": math.floor}
    return eval(f"lambda {arguments}: [{', '.join(texts)}]", scope)


class Numbers:
    """What a program gets when it runs: the symbols, then what is no sum of them."""

    def __init__(self, symbols: Iterable[sympy.Symbol]) -> None:
        self.symbols = list(symbols)
        self.expressions: list[sympy.Expr] = list(self.symbols)
        self.floats: list[sympy.Expr] = []
        self._index: dict[sympy.Expr, int] = {s: i for i, s in enumerate(self.symbols)}

    def add(self, expr: sympy.Expr) -> int:
        """The position of this number in the list that the program gets."""
        if expr not in self._index:
            if not expr.free_symbols <= set(self.symbols):
                raise UnprovenError(f"a size of its own, {expr}")
            self._index[expr] = len(self.expressions)
            self.expressions.append(expr)
        return self._index[expr]

    def add_float(self, expr: sympy.Expr) -> None:
        """A number that is no integer."""
        if expr not in self.floats:
            if not expr.free_symbols <= set(self.symbols):
                raise UnprovenError(f"a number of its own, {expr}")
            self.floats.append(expr)

    def __getitem__(self, expr: sympy.Expr) -> int:
        if expr not in self._index:
            raise UnprovenError(f"a size that was not foreseen, {expr}")
        return self._index[expr]

    def linear(self, expr: sympy.Expr) -> Extents | None:
        """As a sum of symbols, or None."""
        constant, terms = 0, []
        for term in sympy.Add.make_args(sympy.expand(expr)):
            factor, rest = term.as_coeff_Mul()
            if not factor.is_integer:
                return None
            if rest == 1:
                constant += int(factor)
            elif rest in self._index and rest.is_Symbol:
                terms.append((self._index[rest], int(factor)))
            else:
                return None
        return constant, terms

    def extents(self, expr: sympy.Expr) -> Extents:
        """As the program computes it."""
        found = self.linear(expr)
        return found if found is not None else (0, [(self[expr], 1)])

    def need(self, expr: sympy.Expr) -> None:
        """Before the program is recorded: this will be a size in it."""
        if self.linear(expr) is None:
            self.add(expr)
