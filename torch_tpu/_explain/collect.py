"""Asks the native module for everything a report needs, and puts it in order."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch_tpu import _C
from torch_tpu._explain.causes import (
    Cause,
    Family,
    cause_hints,
    causes,
    families,
    family_hints,
)
from torch_tpu._stats import coverage, stats


@dataclass(frozen=True)
class Program:
    """A program in memory."""

    name: str
    fused: bool
    ops: dict[str, int]
    fingerprint: str
    state: str
    reason: str
    origin: str
    runs: int
    hits: int
    compile_seconds: float
    argument_bytes: int
    output_bytes: int
    temp_bytes: int


@dataclass
class Change:
    """Misses of an op that differ from the nearest call before in the same place."""

    label: str
    argument: str
    text: str
    count: int = 0
    values: list[str] = field(default_factory=list)
    where: list[str] = field(default_factory=list)


@dataclass
class OpMisses:
    """Calls of an op for which there was no program yet."""

    op: str
    count: int = 0
    compile_seconds: float = 0.0
    changes: list[Change] = field(default_factory=list)


@dataclass(frozen=True)
class Explanation:
    """What :func:`torch_tpu.explain` found. Prints as a report.

    >>> import torch_tpu
    >>> torch_tpu.explain().to_dict()["summary"]["mode"] in ("debug", "strict", "fused")
    True
    """

    summary: dict[str, Any]
    programs: list[Program]
    cuts: dict[str, int]
    misses: list[OpMisses]
    fallbacks: dict[str, dict[str, float]]
    reads: list[dict[str, Any]]
    causes: list[Cause]
    families: list[Family]
    hints: list[str]
    timeline: dict[str, Any]
    shown_programs: int = 20

    def __str__(self) -> str:
        from torch_tpu._explain.text import report

        return report(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything, in types that JSON knows."""
        out = asdict(self)
        del out["shown_programs"]
        return out

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict())

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """One page with the tables and a timeline. It needs no network and no other file."""
        from torch_tpu._explain.html import page

        Path(path).write_text(page(self), encoding="utf-8")

    def write(self, path: str | os.PathLike[str]) -> None:
        """HTML, JSON or text, by the ending of the name."""
        suffix = Path(path).suffix
        if suffix == ".html":
            self.to_html(path)
        else:
            text = self.to_json() if suffix == ".json" else str(self)
            Path(path).write_text(text + "\n", encoding="utf-8")


def collect(programs: int = 20) -> Explanation:
    """A snapshot of the process."""
    journal = _C._journal_events()
    summary = _summary(journal)
    totals = _C._journal_totals()
    misses = _misses(totals)
    reasons, alike = causes(), families()
    fallbacks = {op: use._asdict() for op, use in coverage().items()}
    return Explanation(
        summary=summary,
        programs=_programs(),
        cuts=dict(sorted(summary["stats"]["cuts"].items(), key=lambda item: -item[1])),
        misses=misses,
        fallbacks=fallbacks,
        reads=_reads(totals),
        causes=reasons,
        families=alike,
        hints=_hints(summary, reasons, alike, fallbacks),
        timeline=_timeline(journal),
        shown_programs=programs,
    )


def _summary(journal: dict[str, Any]) -> dict[str, Any]:
    plugin = "not started"
    if _C._is_initialized():
        device = _C._device_properties()
        plugin = f"{device['name']} ({device['platform_version']})"
    counts = stats()
    calls = counts["hits"] + counts["misses"]
    return {
        "mode": _C._get_mode(),
        "plugin": plugin,
        "seconds": journal["now"],
        "hit_rate": counts["hits"] / calls if calls else None,
        "stats": counts,
    }


def _programs() -> list[Program]:
    rows = [
        Program(
            **{
                **row,
                "ops": dict(row["ops"]),
                "fingerprint": f"{row['fingerprint']:016x}",
            }
        )
        for row in _C._programs(memory=True)
    ]
    return sorted(rows, key=lambda row: (-row.compile_seconds, -row.runs, row.name))


def _misses(totals: list[dict[str, Any]]) -> list[OpMisses]:
    by_op: dict[str, OpMisses] = {}
    for total in totals:
        if total["kind"] in ("miss", "compile"):
            op = by_op.setdefault(total["text"], OpMisses(total["text"]))
            if total["kind"] == "miss":
                op.count = total["count"]
            else:
                op.compile_seconds = total["seconds"]
    for miss in _C._misses():
        op = by_op.setdefault(miss["op"], OpMisses(miss["op"]))
        _add_change(op, miss)
    for op in by_op.values():
        op.changes.sort(key=lambda change: -change.count)
    found = [op for op in by_op.values() if op.count > 0]
    return sorted(found, key=lambda op: (-op.count, -op.compile_seconds, op.op))


def _add_change(op: OpMisses, miss: dict[str, Any]) -> None:
    """Changes of one field belong together; without a field, those with the same words."""
    for change in op.changes:
        if change.label == miss["label"] and (miss["label"] or change.text == miss["text"]):
            break
    else:
        change = Change(miss["label"], miss["argument"], miss["text"])
        op.changes.append(change)
    change.count += 1
    if miss["label"]:
        new = [v for v in (miss["before"], miss["after"]) if v not in change.values]
        change.values.extend(new)
    if miss["where"] and miss["where"] not in change.where:
        change.where.append(miss["where"])


def _reads(totals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = [total for total in totals if total["kind"] in ("host_read", "upload")]
    return sorted(rows, key=lambda row: -row["seconds"])


def _hints(
    summary: dict[str, Any],
    causes: list[Cause],
    families: list[Family],
    fallbacks: dict[str, dict[str, float]],
) -> list[str]:
    counts = summary["stats"]
    hints = cause_hints(causes, caches=bool(_C._cache_dir())) + family_hints(families)
    for name, use in fallbacks.items():
        times = f"{use['calls']} times" if use["calls"] > 1 else "once"
        hints.append(
            f"{name} ran on the CPU {times} ({use['seconds']:.3g} s): each call waits "
            "for the device and moves its tensors."
        )
    waited = counts["host_read_seconds"]
    if counts["host_reads"] >= 100 and waited > 0.1 * summary["seconds"]:
        hints.append(
            f"{counts['host_reads']} reads by the host waited {waited:.3g} s of "
            f"{summary['seconds']:.3g} s. Read less often (`item()`, `cpu()`, `print`)."
        )
    traces = sum(counts["cuts"].values())
    reads = counts["cuts"].get("host read", 0)
    if traces >= 100 and reads > 0.5 * traces:
        hints.append(f"{reads} of {traces} traces ended at a read by the host.")
    if counts["evictions"]:
        hints.append(
            f"{counts['evictions']} programs were dropped for want of room: raise "
            "TORCH_TPU_CACHE_SIZE."
        )
    return hints


def _timeline(journal: dict[str, Any]) -> dict[str, Any]:
    """The events in a compact form: names once, rows of numbers, microseconds."""
    kinds: dict[str, int] = {}
    texts: dict[str, int] = {}
    programs: dict[int, int] = {0: 0}
    rows = []
    for kind, thread, text, start, duration, program, nodes, size in journal["events"]:
        rows.append(
            (
                kinds.setdefault(kind, len(kinds)),
                thread,
                texts.setdefault(text, len(texts)),
                round(start * 1e6, 1),
                round(duration * 1e6, 1),
                programs.setdefault(program, len(programs)),
                nodes,
                size,
            )
        )
    return {
        "columns": ["kind", "thread", "text", "start", "duration", "program", "nodes", "bytes"],
        "kinds": list(kinds),
        "texts": list(texts),
        "threads": list(journal["threads"]),
        "programs": [f"{program:016x}" if program else "" for program in programs],
        "rows": rows,
        "dropped": journal["dropped"],
    }
