"""One function per rule: from what a run showed to hints."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torch_tpu._lint.collect import HostRead, OpCall, Run
from torch_tpu._lint.findings import Finding
from torch_tpu._user_line import Line
from torch_tpu.aot.topologies import Generation

LANES, SUBLANES = 128, 8
# A read waits until the device has nothing left to do, and the device then waits for the host.
_READ_SECONDS = 200e-6
_FALLBACK_SECONDS = 1e-3
# float32 products are exact by default: six passes of bf16 instead of one.
_F32_PASSES = {"highest": 6, "high": 3, "medium": 1}
_MATMULS = ("mm", "addmm", "bmm", "baddbmm", "linear")


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


def _finding(rule: str, line: Line, module: str, **more: Any) -> Finding:
    return Finding(rule, line.file, line.number, line.source, module, **more)


def _base(call: OpCall) -> str:
    return call.name.partition("::")[2].partition(".")[0]


def head_dims(run: Run, g: Generation) -> list[Finding]:
    """Attention reads and writes heads as tiles of 128."""
    out = []
    for a in run.attention:
        dim = a.query[-1]
        if dim % LANES == 0:
            continue
        padded = _up(dim, LANES)
        heads = math.prod(a.query[:-2])
        # Twice the products of queries, keys and values; forward.
        flops = 4.0 * heads * a.query[-2] * a.key[-2] * (padded - dim)
        elements = math.prod(a.query[:-1]) * 2 + math.prod(a.key[:-1]) * 2
        wasted = elements * (padded - dim) * a.dtype.itemsize
        out.append(
            _finding(
                "head_dim",
                a.line,
                a.module,
                message=f"a head dim of {dim} fills {dim / padded:.0%} of each tile",
                fix=f"heads of {padded} (and {padded / dim:.3g} times fewer of them): the model is "
                "as large and as many products are done",
                cost_seconds=_work(run) * (flops / g.flops + wasted / g.bandwidth),
                cost_bytes=wasted,
            )
        )
    return out


def _product(call: OpCall) -> tuple[int, int, int, int] | None:
    """(batch, rows, summed, columns) of a product."""
    base = _base(call)
    if base not in _MATMULS or not call.outputs:
        return None
    tensors = [t for t in call.inputs if t.dim() >= 2]
    if len(tensors) < 2:
        return None
    a, b = tensors[-2:] if base in ("addmm", "baddbmm") else tensors[:2]
    out = call.outputs[0]
    if base == "linear":
        return 1, math.prod(a.shape[:-1]), a.shape[-1], b.shape[0]
    return math.prod(out.shape[:-2]), out.shape[-2], a.shape[-1], out.shape[-1]


def tiles(run: Run, g: Generation) -> list[Finding]:
    """Products whose sizes no tile divides."""
    out = []
    for call in run.ops:
        sizes = _product(call) if call.forward else None
        if sizes is None or _is_attention(call, run):
            continue
        batch, rows, summed, columns = sizes
        padded = (_up(rows, SUBLANES), _up(summed, LANES), _up(columns, LANES))
        extra = math.prod(padded) / max(1, rows * summed * columns) - 1
        if extra < 0.0005:
            continue
        parts = []
        for what, value, full in (
            ("rows", rows, padded[0]),
            ("summed dimension", summed, padded[1]),
            ("columns", columns, padded[2]),
        ):
            if value != full:
                parts.append((what, value, full))
        flops = 2.0 * batch * rows * summed * columns * extra
        share = extra / (1 + extra)
        fixes = [f"{_name(what, value)} {value} -> {full}" for what, value, full in parts]
        words = ", ".join(f"{value} {what}" for what, value, _ in parts)
        out.append(
            _finding(
                "tile",
                call.line,
                call.module,
                message=f"a product with {words}: tiles are {SUBLANES}x{LANES}, {share:.1%} of the "
                "work is padding",
                fix="; ".join(fixes),
                cost_seconds=_work(run) * flops * _passes(call) / g.flops,
                cost_bytes=int(
                    (padded[1] * padded[2] - summed * columns)
                    * batch
                    * call.outputs[0].dtype.itemsize
                ),
            )
        )
    return out


def _is_attention(call: OpCall, run: Run) -> bool:
    return any(a.line == call.line for a in run.attention)


def _name(what: str, value: int) -> str:
    if what == "columns" and value >= 8192:
        return "pad the vocabulary:"
    if what == "rows":
        return "the batch (rows in all):"
    return "the layer's width:"


def _passes(call: OpCall) -> int:
    if call.inputs and call.inputs[-1].dtype == torch.float32:
        return _F32_PASSES[torch.get_float32_matmul_precision()]
    return 1


def f32(run: Run, g: Generation) -> list[Finding]:
    """Products of float32."""
    out = []
    work = _work(run)
    for call in run.ops:
        sizes = _product(call) if call.forward else None
        if sizes is None or not call.inputs or call.inputs[-1].dtype != torch.float32:
            continue
        if any(a.line == call.line and a.dtype != torch.float32 for a in run.attention):
            continue  # the form it has without memory; on the device it multiplies in its dtype
        flops = 2.0 * math.prod(sizes) * work
        passes = _passes(call)
        moved = sum(t.numel() for t in (*call.inputs, *call.outputs)) * 2 * work
        if flops < 1e6:
            continue
        out.append(
            _finding(
                "f32",
                call.line,
                call.module,
                message=f"a product in float32: {passes} passes of the matrix units and twice the "
                "bytes of bf16",
                fix='with torch.autocast("tpu", dtype=torch.bfloat16): around forward and loss, or '
                'model.to(torch.bfloat16); torch.set_float32_matmul_precision("medium") for one '
                "pass in float32",
                cost_seconds=max(flops * (passes - 1) / g.flops, moved / g.bandwidth),
                cost_bytes=moved,
            )
        )
    return out


def _work(run: Run) -> int:
    """Backward has two products for each of forward."""
    return 3 if any(not call.forward for call in run.ops) else 1


def host_reads(run: Run, g: Generation) -> list[Finding]:
    """Contents of tensors that the host asks for."""
    return [
        _finding(
            "host_read",
            r.line,
            r.module,
            message=f"the host reads a tensor: {r.how}",
            fix="keep it on the device: torch.where instead of a branch; collect losses in a "
            "tensor and read them every hundred steps",
            cost_seconds=_READ_SECONDS,
            cost=f"the device runs dry, about {_READ_SECONDS * 1e6:.0f} us, and the program is "
            "cut in two",
        )
        for r in run.reads
    ]


def data_shapes(run: Run, g: Generation) -> list[Finding]:
    """Sizes that depend on contents."""

    def one(r: HostRead) -> Finding:
        return _finding(
            "shape",
            r.line,
            r.module,
            message=f"the size of the result depends on the data: {r.how}",
            fix="torch.where with a mask of fixed size, or torch.nonzero_static(size=...)",
            cost_seconds=_READ_SECONDS,
            cost=f"a read by the host (about {_READ_SECONDS * 1e6:.0f} us), and what follows is "
            "compiled for each new size",
        )

    return [one(r) for r in run.data_shapes]


def fallbacks(run: Run, g: Generation) -> list[Finding]:
    """Ops that run on the CPU."""
    from torch_tpu import _C

    forms = {name if "::" in name else f"aten::{name}" for name in _C._op_forms()}
    out = []
    verdicts: dict[str, bool] = {}
    for call in run.ops:
        if call.name not in verdicts:
            verdicts[call.name] = _falls_back(call.name, forms)
        if not verdicts[call.name]:
            continue
        moved = sum(t.numel() * t.dtype.itemsize for t in (*call.inputs, *call.outputs))
        out.append(
            _finding(
                "fallback",
                call.line,
                call.module,
                message=f"{call.name} has no lowering: it runs on the CPU",
                fix="use ops that have one (docs/operators.md), or write it as a custom kernel",
                cost_seconds=_FALLBACK_SECONDS + moved / 10e9,
                cost_bytes=moved,
            )
        )
    return out


def _falls_back(name: str, forms: set[str]) -> bool:
    from torch_tpu import _decompositions

    if name in forms:
        return False
    for key in ("PrivateUse1", "CompositeImplicitAutograd", "CompositeExplicitAutograd"):
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            return False
    for key in ("CompositeExplicitAutogradNonFunctional",):
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            return False
    functional = name.replace("_.", ".", 1) if "_." in name else name.removesuffix("_")
    return not (_decompositions.has(name) or functional in forms)


RULES: tuple[Callable[[Run, Generation], list[Finding]], ...] = (
    head_dims,
    tiles,
    f32,
    host_reads,
    data_shapes,
    fallbacks,
)
