"""Results of a run, as tables and as JSON."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

RELATIVE_TOLERANCE = 2e-2


@dataclass
class Result:
    """What one contestant did on one workload, in seconds. A block holds the calls of one turn;
    `cpu` is the CPU time of a call over all threads, per turn.
    """

    contestant: str
    kind: str
    mode: str
    about: str = ""
    first: float = math.nan
    second: float = math.nan
    again: float = math.nan
    blocks: list[list[float]] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    compiles: list[int] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    failure: str = ""

    def prepared(self, answer: dict[str, Any]) -> None:
        """Takes what a worker says of its first calls."""
        self.first, self.values = answer["first_seconds"], answer["values"]
        self.second = answer["second_seconds"] or math.nan
        self.compiles = answer["compiles"]

    @property
    def peak(self) -> float:
        """The most device memory that was in use at once while calls were timed, in MiB."""
        return self.stats.get("peak_bytes", math.nan) / 2**20

    @property
    def fused(self) -> str:
        """Fused programs that are compiled, and how many of them serve many sizes."""
        counts = self.stats.get("fused")
        return f"{counts['ready']}, {counts['bounded']} bounded" if counts else "-"

    @property
    def times(self) -> list[float]:
        """All single calls."""
        return [t for block in self.blocks for t in block]

    @property
    def best(self) -> float:
        """The fastest call."""
        return min(self.times, default=math.nan)

    @property
    def median(self) -> float:
        """The median call."""
        return statistics.median(self.times) if self.blocks else math.nan


@dataclass
class Table:
    """All results of one workload, in the order of the contestants."""

    workload: str
    what: str
    results: list[Result]

    def rivals(self, ours: Result) -> dict[str, Result]:
        """Whom one of our rows is compared with: torch, the peer in the same mode, jitted JAX, and
        our own strict mode.
        """
        found: dict[str, Result] = {}
        for other in self.results:
            if other.kind == "torch" or (other.kind == "jax" and other.mode == "jit"):
                found[other.contestant] = other
            elif other.kind == "peer" and other.mode == ours.mode:
                found["peer"] = other
            elif other.contestant == "ours-strict" and other is not ours:
                found["strict"] = other
        return found

    def ratios(self) -> dict[str, dict[str, dict[str, float]]]:
        """Our time over each rival's: {contestant: {rival: {"first": ..., "best": ...}}}."""
        return {
            ours.contestant: {
                name: {
                    "first": ours.first / rival.first,
                    "second": ours.second / rival.second,
                    "best": ours.best / rival.best,
                    "median": ours.median / rival.median,
                }
                for name, rival in self.rivals(ours).items()
                if not rival.failure
            }
            for ours in self.results
            if ours.kind == "ours" and not ours.failure
        }

    def disagreements(self) -> list[str]:
        """A line for each contestant whose numbers are not those of the first one."""
        done = [r for r in self.results if r.values]
        lines = []
        for other in done[1:]:
            for i, (right, got) in enumerate(zip(done[0].values, other.values, strict=False)):
                if not math.isclose(right, got, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-3):
                    lines.append(
                        f"{other.contestant} computes something else: call {i + 1} gave {got:.6g}, "
                        f"{done[0].contestant} {right:.6g}"
                    )
                    break
        return lines

    def text(self) -> str:
        """The workload's block: one row per contestant, ratios for our rows."""
        ratios = self.ratios()
        rivals = sorted({name for row in ratios.values() for name in row}, key=_rival_order)
        head = [
            "",
            "first s",
            "second s",
            "best ms",
            "median ms",
            "CPU ms",
            "compiles",
            "fused",
            "peak MiB",
        ]
        head += [f"/{name}" for name in rivals]
        rows = [head]
        for r in self.results:
            if r.failure:
                rows.append([r.contestant, f"failed: {r.failure}"])
                continue
            row = [r.contestant, _number(r.first), _number(r.second)]
            row += [_number(t * 1e3) for t in (r.best, r.median, min(r.cpu, default=math.nan))]
            row += ["/".join(map(str, r.compiles[:2])) or "-", r.fused, _number(r.peak)]
            mine = ratios.get(r.contestant, {})
            row += [_number(mine[name]["best"]) if name in mine else "" for name in rivals]
            rows.append(row)
        lines = [f"{self.workload}: {self.what}", *_aligned(rows)]
        for r in self.results:
            if not math.isnan(r.again):
                lines.append(f"  {r.contestant} in a second process: first {_number(r.again)} s")
            for op, calls in r.stats.get("fallbacks", {}).items():
                lines.append(f"  {r.contestant} ran {op} on the CPU {calls} times")
        lines += [f"  {line}" for line in self.disagreements()]
        return "\n".join(lines)

    def json(self) -> dict[str, Any]:
        """Everything measured."""
        rows = {
            r.contestant: {
                "about": r.about,
                "first": _finite(r.first),
                "second": _finite(r.second),
                "again": _finite(r.again),
                "best": _finite(r.best),
                "median": _finite(r.median),
                "blocks": r.blocks,
                "cpu": r.cpu,
                "values": r.values,
                "compiles": r.compiles,
                "peak_mib": _finite(r.peak),
                "stats": r.stats,
                "failure": r.failure,
            }
            for r in self.results
        }
        return {"what": self.what, "results": rows, "ratios": self.ratios()}


def summary(tables: list[Table], which: str) -> str:
    """Our ratios over all workloads, from the first, best or median times."""
    rivals: set[str] = set()
    rows: list[tuple[str, str, dict[str, float]]] = []
    for table in tables:
        for ours, ratios in table.ratios().items():
            rivals |= set(ratios)
            picked = {name: ratio[which] for name, ratio in ratios.items()}
            rows.append((table.workload, ours, picked))
    order = sorted(rivals, key=_rival_order)
    cells = [["", *(f"/{name}" for name in order)]]
    for workload, ours, picked in rows:
        values = [_number(picked[name]) if name in picked else "" for name in order]
        cells.append([f"{workload} {ours}", *values])
    title = f"Our {which} time over theirs (below 1: we are faster)"
    return "\n".join([title, *_aligned(cells)])


def _rival_order(name: str) -> tuple[bool, bool, str]:
    return (name.startswith("jax"), not name.startswith("torch"), name)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _aligned(rows: list[list[str]]) -> list[str]:
    """The first column to the left, the others to the right; a row may be short."""
    columns = max(map(len, rows))
    full = [r for r in rows if len(r) == columns]
    widths = [max(len(r[i]) for r in full) for i in range(columns)]
    widths[0] = max(len(r[0]) for r in rows)
    lines = []
    for row in rows:
        if len(row) < columns:
            lines.append(f"  {row[0]:<{widths[0]}}  " + "  ".join(row[1:]))
            continue
        rest = "  ".join(
            f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)
        )
        lines.append(f"  {row[0]:<{widths[0]}}  {rest}".rstrip())
    return lines
