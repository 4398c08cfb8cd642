"""What each part of a compiled program costs, from its instructions: FLOPs, bytes of HBM, how often
it runs. The compiler's own totals count the body of a loop once, these as often as it runs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch_tpu._hlo_names import COLLECTIVES
from torch_tpu._wire import ints_of
from torch_tpu.aot.hlo import Computation, Instruction, Module, Shape
from torch_tpu.aot.loops import trip_count
from torch_tpu.aot.topologies import Generation

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# Cost nothing, or are counted where their parts are.
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "while",
    "conditional", "call", "async-start", "async-update", "async-done", "copy-done", "partition-id",
    "replica-id", "iota", "all-gather-done", "all-reduce-done", "collective-permute-done",
    "opt-barrier", "send-done", "recv-done", "add-dependency",
}  # fmt: skip
_KERNEL = "tpu_custom_call"
_ESTIMATED = re.compile(r'"(flops|bytes_accessed)":\s*"?(\d+)')
_MOVES = {"copy", "copy-start", "transpose", "pad", "concatenate"}


@dataclass
class Part:
    """One instruction that the device runs, and its cost over the whole program."""

    name: str
    opcode: str
    op_name: str  # "layers.0.attn/aten::mm at model.py:12"
    shape: str
    times: int
    flops: float
    bytes: int
    cycles: int  # the compiler's estimate, 0 where it has none
    mxu: float | None = None  # the part of the matrix units' slots that are used

    def seconds(self, generation: Generation) -> float:
        """No device of the generation can be faster."""
        return max(self.flops / generation.flops, self.bytes / generation.bandwidth)

    def time(self, generation: Generation) -> float:
        """The estimate: that, or the compiler's cycles where they are more. It has none for a
        kernel of Pallas; how full the slots of the matrix units are tells more there."""
        if not self.cycles and self.mxu:
            return max(self.seconds(generation), self.flops / generation.flops / self.mxu)
        return max(self.seconds(generation), self.cycles / generation.clock)

    def bound(self, generation: Generation) -> str:
        """By what it is; "memory" is HBM, so what stays in VMEM is bound by compute."""
        by_bytes = self.bytes / generation.bandwidth
        return "memory" if by_bytes > self.flops / generation.flops else "compute"


@dataclass
class Collective:
    """One exchange between devices."""

    kind: str
    op_name: str
    shape: str
    times: int
    group: int
    link_bytes: int  # that each device sends, in all


@dataclass
class Costs:
    parts: list[Part] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    moves: list[Part] = field(default_factory=list)  # that no op asked for
    sparse_core: int = 0  # instructions on SparseCores
    unknown_loops: int = 0
    unknown_kernels: int = 0  # of Pallas, that say nothing of their products

    @property
    def flops(self) -> float:
        return sum(part.flops for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def cycles(self) -> int:
        return sum(part.cycles for part in self.parts)


def analyse(module: Module, devices: int = 1) -> Costs:
    """Walks through the program as it runs."""
    costs = Costs()
    seen: set[tuple[str, int]] = set()  # pieces of one exchange have one number
    for computation, times in _runs(module, module.entry, 1, costs):
        for instruction in computation.instructions:
            _add(module, computation, instruction, times, devices, costs, seen)
    return costs


def _runs(
    module: Module, computation: Computation, times: int, costs: Costs
) -> Iterator[tuple[Computation, int]]:
    """Computations whose instructions run one by one, and how often."""
    yield computation, times
    for instruction in computation.instructions:
        if instruction.opcode == "while":
            count = trip_count(module, computation, instruction)
            if count is None:
                costs.unknown_loops += 1
            called = [module.computations[c] for c in instruction.called]
            for inner in called:
                # The condition costs nothing worth counting.
                if not inner.instructions or inner.by_id[inner.root].shape.dtype == "pred":
                    continue
                yield from _runs(module, inner, times * (count or 1), costs)
        elif instruction.opcode in ("conditional", "call") or instruction.opcode == "async-start":
            for c in instruction.called:
                yield from _runs(module, module.computations[c], times, costs)


def _add(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    times: int,
    devices: int,
    costs: Costs,
    seen: set[tuple[str, int]],
) -> None:
    if _on_sparse_core(computation, instruction):
        costs.sparse_core += 1
    for inner in _with_fused(module, instruction):
        _add_collective(module, inner, times, devices, costs, seen)
    if instruction.opcode in _FREE or instruction.opcode.removesuffix("-start") in COLLECTIVES:
        return
    if instruction.opcode == "custom-call" and _is_note(instruction):
        return
    flops = sum(_flops(module, c, i) for c, i in _pairs(module, computation, instruction))
    size = _bytes(module, computation, instruction)
    if instruction.target == _KERNEL:
        known = _estimate(instruction)
        costs.unknown_kernels += known is None
        flops, size = known[0] if known else 0.0, min(known[1], size) if known else size
    cycles = _CYCLES.search(instruction.config)
    part = Part(
        instruction.name,
        instruction.opcode,
        instruction.op_name or _inner_name(module, instruction),
        str(instruction.shape.parts[0] if instruction.shape.parts else instruction.shape),
        times,
        flops * times,
        size * times,
        int(cycles[1]) * times if cycles else 0,
    )
    if part.bytes == 0 and part.flops == 0 and part.cycles == 0:
        return
    costs.parts.append(part)
    if _is_move(computation, instruction):
        costs.moves.append(part)


def _on_sparse_core(computation: Computation, instruction: Instruction) -> bool:
    if instruction.opcode in ("parameter", "constant", "tuple", "get-tuple-element"):
        return False
    return "sparse" in computation.thread or "SPARSECORE" in instruction.config.upper()


def _is_move(computation: Computation, instruction: Instruction) -> bool:
    """From HBM to HBM, computing nothing. Fetching something into VMEM ahead of its use is none."""
    if instruction.opcode == "fusion":
        named = instruction.name.startswith(("copy", "transpose"))
        return named and bool(instruction.shape.in_hbm)
    if instruction.opcode == "copy-start":
        return all(part.space == 0 for part in instruction.shape.parts[:2])
    return instruction.opcode in _MOVES and bool(instruction.shape.in_hbm)


def _is_note(instruction: Instruction) -> bool:
    return instruction.target in (
        "Sharding", "ConcatBitcast", "AllocateBuffer", "AsyncCollectiveStart",
        "AsyncCollectiveDone", "AssumeGatherIndicesInBound", "X64SplitLow", "X64SplitHigh",
        "X64Combine",
    )  # fmt: skip


def _with_fused(module: Module, instruction: Instruction) -> Iterator[Instruction]:
    yield instruction
    if instruction.opcode == "fusion":
        for c in instruction.called:
            for inner in module.computations[c].instructions:
                yield from _with_fused(module, inner)


def _pairs(
    module: Module, computation: Computation, instruction: Instruction
) -> Iterator[tuple[Computation, Instruction]]:
    yield computation, instruction
    if instruction.opcode == "fusion":
        for c in instruction.called:
            inner = module.computations[c]
            for item in inner.instructions:
                yield from _pairs(module, inner, item)


def _inner_name(module: Module, instruction: Instruction) -> str:
    for inner in _with_fused(module, instruction):
        if inner.op_name:
            return inner.op_name
    return ""


def _estimate(kernel: Instruction) -> tuple[float, int] | None:
    """FLOPs and bytes of a kernel of Pallas, where pallas_call was given them."""
    _, found, rest = kernel.config.partition('"cost_estimate":')
    if not found:
        return None
    figures = dict(_ESTIMATED.findall(rest.partition("}")[0]))
    return float(figures.get("flops", 0)), int(figures.get("bytes_accessed", 0))


# --- FLOPs --------------------------------------------------------------------------------------


def _flops(module: Module, computation: Computation, instruction: Instruction) -> float:
    if instruction.opcode == "dot":
        left = computation.by_id[instruction.operands[0]].shape
        summed = math.prod(left.dims[d] for d in instruction.contracting()[0])
        return 2.0 * instruction.shape.elements * summed
    if instruction.opcode == "convolution":
        return _convolution_flops(computation, instruction)
    return 0.0


def _convolution_flops(computation: Computation, instruction: Instruction) -> float:
    """Multiplications with what lies in the padding are not counted: a product of batches is a
    convolution that has almost nothing else."""
    image = computation.by_id[instruction.operands[0]].shape
    kernel = computation.by_id[instruction.operands[1]].shape
    out = instruction.shape
    if out.parts:
        out = out.parts[0]
    numbers = instruction.convolution()
    total = 2.0 * kernel.dims[numbers["kernel_input"][0]]
    total *= out.dims[numbers["output_batch"][0]] * out.dims[numbers["output_feature"][0]]
    total /= instruction.batch_groups
    for i, window in enumerate(instruction.window()):
        total *= _taps(
            image.dims[numbers["input_spatial"][i]],
            kernel.dims[numbers["kernel_spatial"][i]],
            out.dims[numbers["output_spatial"][i]],
            window,
        )
    return total


def _taps(size: int, kernel: int, out: int, window: dict[str, int]) -> int:
    """Pairs of a place of the result and one of the kernel that meet an element."""
    stride, dilation = max(1, window["stride"]), max(1, window["window_dilation"])
    base = max(1, window["base_dilation"])
    span = (size - 1) * base + 1
    count = 0
    for k in range(kernel):
        shift = k * dilation - window["low"]
        # places o with 0 <= o * stride + shift < span, on an element
        first = (stride - 1 - shift) // stride if shift < 0 else 0
        last = min(out - 1, (span - 1 - shift) // stride)
        if last < first:
            continue
        if base == 1:
            count += last - first + 1
        else:
            count += sum((o * stride + shift) % base == 0 for o in range(first, last + 1))
    return count


# --- bytes --------------------------------------------------------------------------------------


def _bytes(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Of HBM that it reads and writes; VMEM is free."""
    if instruction.opcode in ("dynamic-slice", "slice", "gather"):
        return 2 * instruction.shape.in_hbm
    if instruction.opcode in ("dynamic-update-slice", "scatter"):
        return 2 * computation.by_id[instruction.operands[1]].shape.in_hbm
    if instruction.opcode == "copy-start":
        return sum(part.in_hbm for part in instruction.shape.parts[:2])
    fused = _fused(module, instruction)
    total = instruction.shape.in_hbm
    if fused is not None and total:
        total = _written(module, fused, fused.by_id[fused.root], instruction.shape)
    for number, operand in enumerate(instruction.operands):
        source = computation.by_id.get(operand)
        if source is None or source.opcode == "constant":
            continue
        whole = source.shape.in_hbm
        if fused is not None and whole:
            whole = min(whole, _read(module, fused, number, whole))
        total += whole
    return total


def _fused(module: Module, instruction: Instruction) -> Computation | None:
    return module.computations[instruction.called[0]] if instruction.opcode == "fusion" else None


def _read(module: Module, fused: Computation, number: int, whole: int) -> int:
    """Of a parameter of a fusion: slices of it, where it takes no more."""
    total, escapes = _used(module, fused, _parameter(fused, number), whole)
    return whole if escapes else min(total, whole)


def _parameter(fused: Computation, number: int) -> int:
    return next(
        (i.id for i in fused.instructions if i.opcode == "parameter" and i.parameter == number), -1
    )


def _used(module: Module, fused: Computation, source: int, whole: int) -> tuple[int, bool]:
    """Bytes of an array that are used inside, and whether all of it goes out again."""
    total, escapes = 0, source == fused.root
    for user in fused.instructions:
        if source not in user.operands:
            continue
        if user.opcode in ("dynamic-slice", "slice", "gather") and user.operands[0] == source:
            total += user.shape.padded_bytes
        elif user.opcode == "dynamic-update-slice" and user.operands[0] == source:
            continue  # its memory is written in place
        elif user.opcode in COLLECTIVES or (user.opcode == "tuple" and user.id == fused.root):
            continue  # an exchange that goes on beside it; the links count that
        elif user.opcode in ("bitcast", "reshape"):
            more, out = _used(module, fused, user.id, whole)
            total, escapes = total + more, escapes or out
        elif (inner := _fused(module, user)) is not None:
            for number, operand in enumerate(user.operands):
                if operand != source:
                    continue
                more, out = _used(module, inner, _parameter(inner, number), whole)
                total += more
                if out:
                    more, out = _used(module, fused, user.id, whole)
                    total, escapes = total + more, escapes or out
        else:
            return whole, False
    return total, escapes


def _written(module: Module, fused: Computation, root: Instruction, shape: Shape) -> int:
    """What a fusion leaves in HBM: where it writes into an array, only what it writes."""
    if shape.parts and root.opcode == "tuple":
        pairs = zip(root.operands, shape.parts, strict=False)
        return sum(_written(module, fused, fused.by_id[o], part) for o, part in pairs)
    if not shape.in_hbm or root.opcode == "parameter" or root.opcode in COLLECTIVES:
        return 0
    while root.opcode in ("bitcast", "reshape"):
        root = fused.by_id[root.operands[0]]
    if root.opcode == "dynamic-update-slice":
        return fused.by_id[root.operands[1]].shape.padded_bytes
    inner = _fused(module, root)
    if inner is not None:
        return _written(module, inner, inner.by_id[inner.root], shape)
    return shape.in_hbm


# --- between devices ----------------------------------------------------------------------------


def _add_collective(
    module: Module,
    instruction: Instruction,
    times: int,
    devices: int,
    costs: Costs,
    seen: set[tuple[str, int]],
) -> None:
    kind = instruction.opcode.removesuffix("-start")
    if kind not in COLLECTIVES:
        return
    channel = (ints_of(instruction.fields, 26) or [0])[-1]
    if channel and (kind, channel) in seen:
        return
    seen.add((kind, channel))
    group = instruction.group_size() or devices
    shape = instruction.shape
    if shape.parts:
        arrays = [p for p in shape.parts if p.dims]
        shape = max(arrays or list(shape.parts), key=lambda p: p.bytes)
    costs.collectives.append(
        Collective(
            kind,
            instruction.op_name,
            str(shape),
            times,
            group,
            int(_sent(kind, shape.bytes, group)) * times,
        )
    )


def _sent(kind: str, size: int, group: int) -> float:
    """What a device sends in the usual ring algorithms, for a result of this size."""
    share = (group - 1) / group
    if kind == "all-reduce":
        return 2 * size * share
    if kind == "reduce-scatter":
        return size * (group - 1)
    if kind in ("all-gather", "all-to-all", "ragged-all-to-all"):
        return size * share
    return size
