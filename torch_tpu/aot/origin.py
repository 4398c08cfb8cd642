"""Where a value of a compiled program comes from: through tuples, loops and copies, for labels and
for values that share their memory."""

from __future__ import annotations

from torch_tpu.aot.hlo import Computation, Instruction, Module
from torch_tpu.aot.trace import Argument

Value = tuple[str, tuple[int, ...]]  # the name of an instruction, and the place in its tuple

# Give on what they are given, perhaps in another form or place.
_MOVES = {
    "copy", "copy-start", "copy-done", "bitcast", "reshape", "transpose", "convert", "slice",
    "dynamic-slice", "async-start", "async-done", "all-gather", "all-gather-start",
    "all-gather-done", "custom-call", "get-tuple-element", "opt-barrier", "pad", "broadcast",
}  # fmt: skip
_COPIES = {"copy", "copy-start", "transpose"}
_FAR = 24  # steps until a label is given up


class Origins:
    """Looks values up in one module."""

    def __init__(self, module: Module, arguments: list[Argument]) -> None:
        self.instructions: dict[str, tuple[Computation, Instruction]] = {}
        self.loops: list[tuple[Computation, Instruction, list[Computation]]] = []
        self._module = module
        self._arguments = arguments
        self._inside: dict[int, tuple[Computation, Instruction]] = {}
        self._users: dict[str, list[str]] = {}
        self._own: dict[str, str] = {}  # the ops that instructions say themselves
        for computation in module.computations.values():
            for i in computation.instructions:
                self.instructions[i.name] = computation, i
                for operand in i.operands:
                    self._users.setdefault(computation.by_id[operand].name, []).append(i.name)
                if i.opcode == "while":
                    called = [module.computations[c] for c in i.called]
                    self.loops.append((computation, i, called))
                for c in i.called:
                    self._inside[c] = computation, i
                if own := i.op_name or (self._inner(i) if i.opcode == "fusion" else ""):
                    self._own[i.name] = own

    def argument(self, name: str) -> Argument | None:
        """What an instruction is among the program's own arguments."""
        computation, i = self.instructions[name]
        if computation is not self._module.entry or i.opcode != "parameter":
            return None
        return self._arguments[i.parameter] if i.parameter < len(self._arguments) else None

    def value(self, name: str, index: tuple[int, ...] = ()) -> Value:
        """The instruction that makes it, where others only take it out of a tuple."""
        while True:
            computation, i = self.instructions[name]
            if i.opcode == "get-tuple-element":
                index = (i.tuple_index, *index)
            elif i.opcode == "tuple" and index:
                name = computation.by_id[i.operands[index[0]]].name
                index = index[1:]
                continue
            elif i.opcode == "copy-done":
                index = (0, *index)
            elif i.opcode not in ("bitcast", "opt-barrier"):
                return name, index
            name = computation.by_id[i.operands[0]].name

    def own(self, name: str) -> str:
        """The op that an instruction, or what is fused into it, belongs to."""
        return self._own.get(name, "")

    def label(self, name: str, index: tuple[int, ...] = ()) -> str:
        """Its own, or that of the op or the argument that it comes from, or else goes to; empty
        where none says."""
        if own := self.own(name):
            return own
        found = self._backwards(name, index)
        if found and self.instructions[name][1].opcode in _COPIES:
            return f"copy of {found}"
        return found or self._forwards(name)

    def _backwards(self, name: str, index: tuple[int, ...]) -> str:
        for _ in range(_FAR):
            computation, i = self.instructions[name]
            if own := self.own(name):
                return own
            if argument := self.argument(name):
                return argument.name
            if i.opcode == "parameter":  # of a loop: what it starts from
                outside = self._inside.get(computation.id)
                if outside is None or outside[1].opcode != "while":
                    return ""
                name = outside[0].by_id[outside[1].operands[0]].name
            elif i.opcode == "tuple" and index:
                name, index = computation.by_id[i.operands[index[0]]].name, index[1:]
            elif i.opcode in _MOVES and i.operands:
                if i.opcode == "get-tuple-element":
                    index = (i.tuple_index, *index)
                elif i.opcode.endswith("-start"):
                    index = ()
                name = computation.by_id[i.operands[0]].name
            else:
                return ""
        return ""

    def _inner(self, fusion: Instruction) -> str:
        for c in fusion.called:
            computation = self._module.computations[c]
            for i in (computation.by_id[computation.root], *computation.instructions):
                if found := i.op_name or (self._inner(i) if i.opcode == "fusion" else ""):
                    return found
        return ""

    def _forwards(self, name: str) -> str:
        for _ in range(_FAR):
            users = [self.instructions[u][1] for u in self._users.get(name, [])]
            for user in users:
                if user.opcode not in ("tuple", "while") and self.own(user.name):
                    return f"for {self.own(user.name)}"
            if len(users) != 1 or users[0].opcode in ("tuple", "while"):
                return ""
            name = users[0].name
        return ""


def label_all(module: Module, arguments: list[Argument]) -> Origins:
    """Gives instructions that say no op the name of what they come from: copies, fetches of
    weights, exchanges."""
    origins = Origins(module, arguments)
    found = {
        name: origins.label(name)
        for name, (_, i) in origins.instructions.items()
        if not i.op_name and i.opcode not in ("parameter", "constant", "tuple", "while")
    }
    for name, label in found.items():
        origins.instructions[name][1].op_name = label
    return origins
