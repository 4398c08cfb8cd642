"""How often the loops of a compiled program run."""

from __future__ import annotations

from torch_tpu._wire import ints_of, message_of
from torch_tpu.aot.hlo import Computation, Instruction, Module

_THROUGH = {"copy", "convert", "bitcast", "reshape", "copy-done", "copy-start"}


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """How often the body runs; None where only the data tell."""
    called = [module.computations[c] for c in loop.called]
    condition = next((c for c in called if c.by_id[c.root].shape.dtype == "pred"), None)
    body = next((c for c in called if c is not condition), None)
    if condition is None or body is None:
        return None
    values = _Values(module, computation, loop)
    test, where = values.unfuse(condition, condition.by_id[condition.root])
    if test.opcode != "compare" or len(test.operands) != 2:
        return None
    sides = [values.of(where, o) for o in test.operands]
    index = next((s[1] for s in sides if s[0] == "carried"), None)
    limit = next((s[1] for s in sides if s[0] == "constant"), None)
    if limit is None:  # both are carried: the limit is the one the body never changes
        for kind, number in sides:
            start = values.start(number) if kind == "carried" else None
            if start is not None and values.step(body, number) is None:
                limit = start
            elif kind == "carried":
                index = number
    if index is None or limit is None:
        return None
    start, step = values.start(index), values.step(body, index)
    if start is None:
        return None
    return max(0, -(-abs(limit - start) // abs(step or 1)))


class _Values:
    """Numbers that a loop starts from and counts by."""

    def __init__(self, module: Module, computation: Computation, loop: Instruction) -> None:
        self._module = module
        self._outside = computation
        self._loop = loop
        self._arguments: dict[int, tuple[Computation, Instruction]] = {}

    def unfuse(
        self, computation: Computation, instruction: Instruction
    ) -> tuple[Instruction, Computation]:
        while instruction.opcode in ("fusion", "call"):
            inner = self._module.computations[instruction.called[0]]
            self._arguments[inner.id] = (computation, instruction)
            computation, instruction = inner, inner.by_id[inner.root]
            while instruction.opcode in _THROUGH:
                instruction = computation.by_id[instruction.operands[0]]
        return instruction, computation

    def of(self, computation: Computation, number: int) -> tuple[str, int]:
        """("constant", value), ("carried", index) or ("", 0)."""
        instruction = computation.by_id[number]
        for _ in range(20):
            if instruction.opcode == "constant":
                value = literal(instruction)
                return ("", 0) if value is None else ("constant", value)
            if instruction.opcode == "parameter" and computation.id in self._arguments:
                outer, caller = self._arguments[computation.id]
                instruction = outer.by_id[caller.operands[instruction.parameter]]
                computation = outer
            elif instruction.opcode == "get-tuple-element":
                return "carried", _tuple_index(instruction)
            elif instruction.opcode in _THROUGH:
                instruction = computation.by_id[instruction.operands[0]]
            elif instruction.opcode == "fusion":
                instruction, computation = self.unfuse(computation, instruction)
            else:
                return "", 0
        return "", 0

    def start(self, index: int) -> int | None:
        init = self._outside.by_id[self._loop.operands[0]]
        if init.opcode != "tuple" or index >= len(init.operands):
            return None
        kind, value = self.of(self._outside, init.operands[index])
        return value if kind == "constant" else None

    def step(self, body: Computation, index: int) -> int | None:
        root = body.by_id[body.root]
        if root.opcode != "tuple" or index >= len(root.operands):
            return None
        item, where = self.unfuse(body, body.by_id[root.operands[index]])
        if item.opcode not in ("add", "subtract"):
            return None
        for operand in item.operands:
            kind, value = self.of(where, operand)
            if kind == "constant" and value:
                return value
        return 1


def _tuple_index(instruction: Instruction) -> int:
    values = ints_of(instruction.fields, 13)
    return values[-1] if values else 0


def literal(instruction: Instruction) -> int | None:
    """The integer that a constant of one element is."""
    fields = message_of(instruction.fields, 8)
    for number in (4, 5, 6, 7):  # s32, s64, u32, u64
        values = ints_of(fields, number)
        if values:
            value = values[0]
            return value - (1 << 32) if number == 4 and value >= 1 << 31 else value
    return 0 if instruction.shape.dtype in ("s32", "s64", "u32", "u64") else None
