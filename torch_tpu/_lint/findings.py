"""The hints themselves, and how they are shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from torch_tpu._lint.collect import Run, collect
from torch_tpu.aot.text import duration, size
from torch_tpu.aot.topologies import GENERATIONS, AotError


@dataclass
class Finding:
    """One hint."""

    rule: str  # "head_dim", "tile", "f32", "host_read", "shape", "fallback"
    file: str
    line: int
    source: str
    module: str
    message: str
    fix: str
    cost_seconds: float  # a step
    cost_bytes: int = 0
    count: int = 1
    cost: str = ""  # in words

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else "?"
        times = f" ({self.count} times)" if self.count > 1 else ""
        lines = [f"{where}: {self.rule}: {self.message}{times}"]
        if self.source:
            lines.append(f"    {self.source}")
        lines.append(f"  cost: {self.cost}")
        lines.append(f"  fix:  {self.fix}")
        return "\n".join(lines)


@dataclass
class Lint:
    """All hints, the dearest first; empty when there are none."""

    generation: str
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        parts = [str(f) for f in self.findings] or ["nothing to say"]
        if self.findings:
            total = sum(f.cost_seconds for f in self.findings)
            parts.append(
                f"{_counted(len(self.findings))}, about {duration(total)} a step on a "
                f"{self.generation}"
            )
        return "\n\n".join([*parts, *(f"note: {n}" for n in self.notes)])


def _counted(hints: int) -> str:
    return "1 hint" if hints == 1 else f"{hints} hints"


def run(
    function: Callable[..., Any],
    sample: tuple[Any, ...] | list[tuple[Any, ...]],
    kwargs: dict[str, Any],
    generation: str,
) -> Lint:
    """Collects, then asks each rule."""
    from torch_tpu._lint.rules import RULES
    from torch_tpu._lint.shapes import changing_shapes

    if generation not in GENERATIONS:
        raise AotError(f"no generation '{generation}'. Known ones: {', '.join(GENERATIONS)}.")
    if not callable(function):
        raise AotError(f"expected a module or a function, got {type(function).__name__}.")
    samples = sample if isinstance(sample, list) else [sample]
    if not samples or not all(isinstance(s, tuple) for s in samples):
        raise AotError("`sample` must be a tuple of arguments, `(x,)` for one, or a list of such.")
    out = Lint(generation)
    runs: list[Run] = []
    for one in samples:
        found, _ = collect(function, one, kwargs)
        runs.append(found)
        if found.error:
            out.notes.append(
                f"the run without memory ended at {found.error_line}: {found.error[:300]}; what "
                "comes after it was not looked at" + _advice(found)
            )
            break
    g = GENERATIONS[generation]
    for rule in RULES:
        out.findings += rule(runs[0], g)
    out.findings += changing_shapes(samples, kwargs)
    out.findings = _merged(out.findings)
    out.findings.sort(key=lambda f: -f.cost_seconds)
    for finding in out.findings:
        if not finding.cost:
            extra = f", {size(finding.cost_bytes)} of HBM" if finding.cost_bytes else ""
            finding.cost = f"about {duration(finding.cost_seconds)} a step{extra} on a {generation}"
    return out


def _advice(run: Run) -> str:
    if "device" not in run.error or run.reads or run.data_shapes:
        return ""
    return (
        ". Where it makes a tensor, say device=x.device, or let the module have it as a buffer: on "
        "a TPU two devices in one op are an error too"
    )


def _merged(findings: list[Finding]) -> list[Finding]:
    """The same hint at the same line, as layers repeat."""
    merged: dict[tuple[str, str, int, str], Finding] = {}
    for f in findings:
        key = (f.rule, f.file, f.line, f.message)
        if key in merged:
            first = merged[key]
            first.count += f.count
            first.cost_seconds += f.cost_seconds
            first.cost_bytes += f.cost_bytes
        else:
            merged[key] = f
    return list(merged.values())


def bits(dtype: torch.dtype) -> int:
    return dtype.itemsize * 8
