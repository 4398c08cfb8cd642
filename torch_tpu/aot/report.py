"""The report on a program compiled ahead of time: what the compiler said, and what follows."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch_tpu.aot.compiler import Compiled
from torch_tpu.aot.costs import Collective, Costs, Part, analyse
from torch_tpu.aot.hlo import parse_dump, parse_module
from torch_tpu.aot.live import Buffer, largest_arguments, largest_buffers
from torch_tpu.aot.mxu import SlotUse, parse_profile
from torch_tpu.aot.origin import label_all
from torch_tpu.aot.padding import Waste, find_waste
from torch_tpu.aot.topologies import GENERATIONS, GIB, Topology
from torch_tpu.aot.trace import Argument, Traced

_NEEDED = re.compile(r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)")
_WORTH = 64 * 1024  # bytes of a copy below which nobody cares
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass
class Report:
    """Figures are per device. `text()`, `to_json()` and `html()` show them."""

    name: str
    topology: str
    devices: int  # that the program runs on
    generation: str
    compiler: str
    trace_seconds: float
    compile_seconds: float
    fits: bool
    hbm: dict[str, int]  # the compiler's memory analysis, and `limit`
    largest: list[Buffer] = field(default_factory=list)
    flops: float = 0.0
    bytes: int = 0
    compiler_costs: dict[str, float] = field(default_factory=dict)
    roofline_seconds: float = 0.0
    compiler_seconds: float = 0.0
    device_seconds: float = 0.0  # part by part the larger of both
    link_seconds: float = 0.0
    bound: str = ""
    mxu: float | None = None  # None: not asked for, or nothing multiplies
    parts: list[Part] = field(default_factory=list)
    padding: list[Waste] = field(default_factory=list)
    moves: list[Part] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    sparse_core: int = 0
    parameters: int = 0
    risks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    module: str = field(default="", repr=False)  # the StableHLO text
    executable: Any = field(default=None, repr=False)  # bytes, when it was asked for
    fingerprint: list[tuple[str, str]] = field(default_factory=list, repr=False)

    @property
    def seconds(self) -> float:
        """The estimate of a step: links are taken to work beside the cores."""
        return max(self.device_seconds, self.link_seconds)

    @property
    def needed(self) -> int:
        """Bytes of HBM that a run takes."""
        h = self.hbm
        if "needed" in h:
            return h["needed"]
        total = h["argument_bytes"] + h["output_bytes"] - h["alias_bytes"]
        return total + h["temp_bytes"] + h["code_bytes"]

    @property
    def wasted(self) -> int:
        """Bytes of HBM that hold no element, arguments only."""
        return sum(w.waste for w in self.padding if w.kind != "temporary")

    def to_dict(self) -> dict[str, Any]:
        """Everything but the program itself."""
        skip = ("module", "executable", "fingerprint")
        out = asdict(self)
        for key in skip:
            del out[key]
        for waste, of in zip(out["padding"], self.padding, strict=True):
            waste["waste"] = of.waste
        g = GENERATIONS[self.topology.partition(":")[0]]
        for part, part_of in zip(out["parts"], self.parts, strict=True):
            part |= {"seconds": part_of.time(g), "bound": part_of.bound(g)}
        out |= {"seconds": self.seconds, "needed": self.needed, "wasted": self.wasted}
        return out

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def text(self) -> str:
        from torch_tpu.aot.text import show

        return show(self)

    __str__ = text

    def html(self, path: str | Path | None = None) -> str:
        """A page of its own; also written to `path`."""
        from torch_tpu.aot.html import page

        made = page([self])
        if path is not None:
            Path(path).write_text(made, encoding="utf-8")
        return made


def make_report(traced: Traced, topology: Topology, compiled: Compiled, seconds: float) -> Report:
    """Of a program that the compiler took."""
    g = topology.generation
    module = parse_module(compiled.optimized)
    origins = label_all(module, traced.arguments)
    costs = analyse(module, traced.devices)
    use = parse_profile(compiled.profile.splitlines())
    _add_mxu(costs, use)
    figures = compiled.figures
    hbm = {k: v for k, v in figures.items() if k.endswith("_bytes")}
    hbm["limit"] = g.hbm
    report = Report(
        traced.name,
        topology.name,
        traced.devices,
        g.title,
        compiled.compiler,
        round(seconds, 3),
        compiled.seconds,
        True,
        hbm,
        largest_buffers(compiled.live, module, origins),
        costs.flops,
        costs.bytes,
        {k: v for k, v in figures["costs"].items() if not re.search(r"\d|\{", k)},
        sum(p.seconds(g) for p in costs.parts),
        costs.cycles / g.clock,
        sum(p.time(g) for p in costs.parts),
        sum(c.link_bytes for c in costs.collectives) / g.link,
        _bound(costs, topology),
        _mxu(costs, topology),
        sorted(costs.parts, key=lambda p: -p.time(g)),
        find_waste(module, traced.arguments),
        sorted((m for m in costs.moves if m.bytes >= _WORTH), key=lambda p: -p.bytes),
        sorted(costs.collectives, key=lambda c: -c.link_bytes),
        costs.sparse_core,
        sum(_elements(a) for a in traced.arguments if a.kind == "parameter"),
        list(traced.risks),
        list(traced.notes),
        traced.text,
        compiled.serialized,
        compiled.fingerprint,
    )
    report.fits = report.needed <= hbm["limit"]
    if costs.unknown_loops:
        report.notes.append(
            f"{costs.unknown_loops} loops whose number of turns only the data tell are counted once"
        )
    if costs.unknown_kernels:
        report.notes.append(
            f"{costs.unknown_kernels} Pallas kernel(s) do not say what they compute: no FLOPs are "
            "counted for them. Give pallas_call a cost_estimate"
        )
    return report


def _add_mxu(costs: Costs, use: dict[str, SlotUse]) -> None:
    """Fusions that are alike share their code, and the dump has it once."""
    known = {}

    def form(part: Part) -> tuple[Any, ...]:
        return part.opcode, part.shape, part.flops / part.times, part.cycles // part.times

    for part in costs.parts:
        if part.name in use and (part.flops or use[part.name].mxu):
            part.mxu = known[form(part)] = use[part.name].mxu
    for part in costs.parts:
        if part.mxu is None and part.flops:
            part.mxu = known.get(form(part))


def too_large(
    traced: Traced,
    topology: Topology,
    text: str,
    seconds: tuple[float, float],
    live: str = "",
    optimized: bytes = b"",
) -> Report:
    """Of a program that the compiler refused for its size, with what it dumped before."""
    g = topology.generation
    hbm = {"limit": g.hbm, "needed": 0}
    found = _NEEDED.search(text)
    if found:
        hbm["needed"] = int(float(found[1]) * _UNITS[found[2]])
        hbm["limit"] = int(float(found[3]) * _UNITS[found[4]])
    report = Report(
        traced.name, topology.name, traced.devices, g.title, "", seconds[0], seconds[1], False, hbm
    )
    if live and optimized:
        module = parse_dump(optimized)
        report.largest = largest_buffers(live, module, label_all(module, traced.arguments))
    else:
        report.largest = largest_arguments(traced.arguments, traced.devices)
    report.parameters = sum(_elements(a) for a in traced.arguments if a.kind == "parameter")
    report.risks, report.module = list(traced.risks), traced.text
    report.notes = [" ".join(text.split())[:600], *traced.notes]
    return report


def _elements(argument: Argument) -> int:
    return argument.bytes // argument.dtype.itemsize


def _bound(costs: Costs, topology: Topology) -> str:
    g = topology.generation
    by_kind = {"compute": 0.0, "memory": 0.0}
    for part in costs.parts:
        by_kind[part.bound(g)] += part.time(g)
    links = sum(c.link_bytes for c in costs.collectives) / g.link
    if links > sum(by_kind.values()):
        return "links"
    return "compute" if by_kind["compute"] >= by_kind["memory"] else "memory"


def _mxu(costs: Costs, topology: Topology) -> float | None:
    """Of the parts with products, weighted by how long they take."""
    g = topology.generation
    weighted = total = 0.0
    for part in costs.parts:
        if part.mxu is not None:
            seconds = part.time(g)
            weighted += part.mxu * seconds
            total += seconds
    return weighted / total if total else None


def gib(value: float) -> float:
    return value / GIB
