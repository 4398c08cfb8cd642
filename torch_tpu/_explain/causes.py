"""What waiting for the compiler cost, by cause: a call site and what changed there. And pieces of
Fused Eager that differ only in sizes: which sizes were met, and what serves them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_tpu import _C

_WORTH_SECONDS = 0.1  # waited, before a change is worth a hint
_MANY_VALUES = 4  # or so many values, however quickly they compiled
_MUCH_PADDING = 1.5
_LONG_START = 2.0
_MAX_HINTS = 10


@dataclass(frozen=True)
class Cause:
    """All programs that were compiled for one reason."""

    kind: str  # "first", "change" or "order"
    text: str  # "batch 32 → 8"
    advice: str
    where: str  # the Python line of the first of its calls
    name: str  # and that call's op
    label: str  # the field that changed: "input[0].shape[0]"
    values: list[str]  # that it took
    value_waited: list[float]  # seconds, for each of them
    ops: list[str]
    calls: int
    programs: int
    waited_seconds: float
    compile_seconds: float  # also on threads of the background


@dataclass
class Family:
    """Pieces of the trace that differ only in sizes."""

    where: str
    ops: int
    sizes: dict[int | str, int] = field(default_factory=dict)  # how often each was met
    bounds: list[dict[str, Any]] = field(default_factory=list)
    compile_seconds: float = 0.0
    runs: int = 0  # as bounded programs
    padding: float = 1.0  # work done over work asked for, by runs
    pieces: int = 0  # that were met
    own_programs: int = 0  # compiled for one of them
    static_because: str = ""


def causes() -> list[Cause]:
    """Those that were waited for longest first."""
    rows = []
    for row in _C._causes():
        row = {**row, "ops": sorted(row["ops"])}
        rows.append(Cause(**{name: row[name] for name in Cause.__dataclass_fields__}))
    return sorted(rows, key=lambda c: (-c.waited_seconds, -c.programs, -c.calls, c.where))


def families() -> list[Family]:
    """Those that have met several sizes, or have a bounded program."""
    found: dict[int, Family] = {}
    weights: dict[int, float] = {}
    for program in _C._fused_programs():
        number = program["family"]
        if number is None:
            continue
        family = found.setdefault(number, Family(program["where"], len(program["ops"])))
        family.compile_seconds += program["compile_seconds"]
        if program["bound"] is None:
            family.pieces += 1
            family.static_because = family.static_because or program["static_because"]
            if program["state"] == "ready":
                family.own_programs += 1
            continue
        members = program["members"] or {}
        for size, times in members.items():
            label = size if isinstance(size, int) else " x ".join(map(str, size))
            family.sizes[label] = family.sizes.get(label, 0) + times
        family.runs += program["runs"]
        padding = program["padding"] or 1.0
        weights[number] = weights.get(number, 0.0) + padding * program["runs"]
        family.bounds.append(
            {
                "bound": program["bound"],
                "compile_seconds": program["compile_seconds"],
                "runs": program["runs"],
                "padding": padding,
            }
        )
    out = []
    for number, family in found.items():
        if not family.bounds and family.pieces < 2:
            continue
        family.sizes = dict(sorted(family.sizes.items(), key=lambda item: _order(item[0])))
        family.bounds.sort(key=lambda bound: _order(bound["bound"]))
        family.padding = weights.get(number, 0.0) / family.runs if family.runs else 1.0
        out.append(family)
    return sorted(out, key=lambda f: -f.compile_seconds)


def _order(size: int | str | tuple[int, int]) -> tuple[int, ...]:
    """One size that varies, or two (as text, "3 x 40")."""
    if isinstance(size, str):
        return tuple(map(int, size.split(" x ")))
    return (size,) if isinstance(size, int) else size


def place(where: str) -> str:
    """The line without its text: "train.py:45 in train"."""
    head, middle, tail = where.partition(" in ")
    return head + middle + tail.partition(": ")[0]


def cause_hints(found: list[Cause], caches: bool) -> list[str]:
    """What changed, ranked by the seconds it cost."""
    hints = []
    for cause in found:
        hint = _change_hint(cause) if cause.kind == "change" else _other_hint(cause, caches)
        if hint:
            hints.append(hint)
    return hints[:_MAX_HINTS]


def _change_hint(cause: Cause) -> str:
    if cause.waited_seconds < _WORTH_SECONDS and len(cause.values) < _MANY_VALUES:
        return ""
    ops = "1 op" if len(cause.ops) == 1 else f"{len(cause.ops)} ops"
    values = f" and {len(cause.values)} values" if len(cause.values) > 2 else ""
    text = f"{cause.text}{_at(cause.where)}: {_waited(cause)} for {ops}{values}."
    return f"{text} {cause.advice}".rstrip()


def _at(where: str) -> str:
    return f" at {place(where)}".replace(f"{Path.cwd()}/", "", 1) if where else ""


def _waited(cause: Cause) -> str:
    programs = "1 program" if cause.programs == 1 else f"{cause.programs} programs"
    return f"waited {cause.waited_seconds:.2g} s ({programs})"


def _other_hint(cause: Cause, caches: bool) -> str:
    if cause.waited_seconds < _LONG_START:
        return ""
    where = _at(cause.where)
    if cause.kind == "order":
        return f"{cause.text}{where}: {_waited(cause)}. {cause.advice}"
    if caches:
        return ""
    return (
        f"first step{where}: {_waited(cause)}. A cache on disk (TORCH_TPU_CACHE_DIR) would spare "
        "the next process that."
    )


def family_hints(found: list[Family]) -> list[str]:
    """Sizes that vary and are served badly."""
    hints = []
    for family in found:
        where = _at(family.where)
        if family.bounds and family.padding > _MUCH_PADDING and family.runs > 1:
            bounds = ", ".join(str(bound["bound"]) for bound in family.bounds)
            hints.append(
                f"Sizes {_range(family)} of {family.ops} ops{where} run in buffers for {bounds}: "
                f"{family.padding:.2g} times the work. Pad to sizes just below them, or keep "
                "lengths close together."
            )
        if family.static_because and family.pieces > 2:
            hints.append(
                f"{family.ops} ops{where} came with {family.pieces} sizes, and no program serves "
                f"several of them: {family.static_because}."
            )
    return hints[:_MAX_HINTS]


def _range(family: Family) -> str:
    sizes = list(family.sizes)
    return f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else ", ".join(map(str, sizes))
