"""The report as text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from torch_tpu._explain.causes import place
from torch_tpu._explain.collect import Change, Explanation, Program

_SHOWN_OPS = 12
_SHOWN_CHANGES = 3
_SHOWN_VALUES = 6

Row = Sequence[str]


def report(found: Explanation) -> str:
    """All sections that have something to say."""
    sections = [_summary(found)]
    for title, rows in (
        (_title("Programs", found.shown_programs, len(found.programs)), program_rows(found)),
        ("Cuts", cut_rows(found)),
        (
            _title("Waiting for the compiler", _SHOWN_OPS, len(found.causes)),
            cause_rows(found, _SHOWN_OPS),
        ),
        (
            _title("Sizes that vary", _SHOWN_OPS, len(found.families)),
            family_rows(found, _SHOWN_OPS),
        ),
        (
            _title("Misses", _SHOWN_OPS, len(found.misses)),
            miss_rows(found, _SHOWN_OPS, _SHOWN_CHANGES),
        ),
        ("Ops that ran on the CPU", fallback_rows(found)),
        (_title("Transfers", _SHOWN_OPS, len(found.reads)), read_rows(found, _SHOWN_OPS)),
    ):
        if len(rows) > 1:
            sections.append(f"{title}\n{table(rows)}")
    if found.hints:
        sections.append("\n".join(["Hints", *(f"  - {hint}" for hint in found.hints)]))
    return "\n\n".join(sections)


def _title(name: str, shown: int, total: int) -> str:
    return name if total <= shown else f"{name} (the first {shown} of {total})"


def table(rows: Sequence[Row]) -> str:
    """Columns side by side; numbers to the right, the last column as it is."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    numeric = [
        all(row[i][:1].isdigit() or not row[i] for row in rows[1:]) for i in range(len(widths))
    ]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def seconds(value: float) -> str:
    """Three digits and a unit."""
    for limit, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value * 1e9:.0f} ns" if value > 0 else "0 s"


def size(value: int) -> str:
    """Bytes, with a binary unit."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 1 << shift:
            return f"{value / (1 << shift):.3g} {unit}"
    return f"{value} B"


def summary_lines(found: Explanation) -> Iterator[str]:
    """The numbers at the top."""
    s = found.summary["stats"]
    rate = found.summary["hit_rate"]
    known = "" if rate is None else f", {rate:.1%} of calls had their program in memory"
    yield f"{s['launches']} launches, {s['programs']} programs in memory{known}"
    line = f"{s['compiles']} compiled in {seconds(s['compile_seconds'])}"
    if s["background_compiles"]:
        line += f", {s['background_compiles']} of them in the background"
    if s["disk_hits"]:
        line += f"; {s['disk_hits']} loaded from disk"
    if s["compile_failures"]:
        line += f"; {s['compile_failures']} failed"
    yield line
    if s["fused_launches"] or s["replays"]:
        yield (
            f"{s['fused_launches']} launches of fused programs, {s['replays']} traces run as "
            f"single ops, {sum(s['cuts'].values())} cuts"
        )
    yield (
        f"{s['host_reads']} reads by the host ({size(s['host_read_bytes'])}, "
        f"{seconds(s['host_read_seconds'])}), {s['uploads']} uploads ({size(s['upload_bytes'])}, "
        f"{seconds(s['upload_seconds'])})"
    )
    yield f"{s['fallback_calls']} calls run on the CPU ({seconds(s['fallback_seconds'])})"


def _summary(found: Explanation) -> str:
    top = found.summary
    head = f"TorchTPU, {top['mode']} mode, {top['plugin']}, after {seconds(top['seconds'])}"
    return "\n".join([head, *(f"  {line}" for line in summary_lines(found))])


def program_rows(found: Explanation, limit: int | None = None) -> list[Row]:
    """The table of programs, with its header."""
    shown = found.programs[: found.shown_programs if limit is None else limit]
    head = ("program", "ops", "runs", "compile", "origin", "arguments", "results", "temporary")
    return [(*head, "fingerprint", "state"), *(_program_row(row) for row in shown)]


def _program_row(row: Program) -> Row:
    return (
        row.name,
        str(sum(row.ops.values())),
        str(row.runs),
        seconds(row.compile_seconds),
        row.origin,
        size(row.argument_bytes),
        size(row.output_bytes),
        size(row.temp_bytes),
        row.fingerprint,
        f"{row.state}: {row.reason}" if row.reason else row.state,
    )


def cut_rows(found: Explanation) -> list[Row]:
    """Why traces ended."""
    return [("reason", "cuts"), *((reason, str(n)) for reason, n in found.cuts.items())]


def miss_rows(found: Explanation, ops: int | None = None, changes: int | None = None) -> list[Row]:
    """Misses by op: what was different from the nearest call before."""
    rows: list[Row] = [("op", "misses", "compile", "times", "because", "where")]
    for op in found.misses[:ops]:
        first = (op.op, str(op.count), seconds(op.compile_seconds))
        for change in op.changes[:changes]:
            where = _shorten(change.where[0]) if change.where else ""
            rows.append((*first, str(change.count), describe(change), where))
            first = ("", "", "")
        if changes is not None and len(op.changes) > changes:
            left = op.changes[changes:]
            rows.append(("", "", "", str(sum(c.count for c in left)), "other differences", ""))
    return rows


def cause_rows(found: Explanation, limit: int | None = None) -> list[Row]:
    """What was waited for the compiler, by what changed and where."""
    rows: list[Row] = [("waited", "compile", "programs", "ops", "because", "where")]
    for cause in found.causes[:limit]:
        rows.append(
            (
                seconds(cause.waited_seconds),
                seconds(cause.compile_seconds),
                str(cause.programs),
                str(len(cause.ops)),
                cause.text,
                _shorten(place(cause.where)),
            )
        )
    return rows


def family_rows(found: Explanation, limit: int | None = None) -> list[Row]:
    """Pieces that differ in sizes only: the sizes, and what serves them."""
    rows: list[Row] = [
        ("ops", "compile", "runs", "padding", "sizes met", "buffers for", "where"),
    ]
    for family in found.families[:limit]:
        sizes = [str(size) for size in family.sizes]
        more = len(sizes) - _SHOWN_VALUES
        bounds = [f"{b['bound']} ({seconds(b['compile_seconds'])})" for b in family.bounds]
        rows.append(
            (
                str(family.ops),
                seconds(family.compile_seconds),
                str(family.runs),
                f"{family.padding:.2f}x",
                ", ".join(sizes[:_SHOWN_VALUES]) + (f" and {more} more" if more > 0 else ""),
                ", ".join(bounds) or f"one size each: {family.static_because or 'few met'}",
                _shorten(place(family.where)),
            )
        )
    return rows


def _shorten(where: str) -> str:
    """A file below the current folder by its path from there."""
    return where.replace(f"{Path.cwd()}/", "", 1)


def describe(change: Change) -> str:
    """One miss in its own words, several by the values they took."""
    name = change.argument if change.label.startswith("input[") else ""
    named = f" ({name})" if name else ""
    if len(change.values) <= 2:
        return change.text + named
    shown = ", ".join(change.values[:_SHOWN_VALUES])
    more = len(change.values) - _SHOWN_VALUES
    return f"{change.label}: {shown}{f' and {more} more' if more > 0 else ''}{named}"


def fallback_rows(found: Explanation) -> list[Row]:
    """Ops without a lowering."""
    rows = [
        (op, str(int(use["calls"])), seconds(use["seconds"])) for op, use in found.fallbacks.items()
    ]
    return [("op", "calls", "time"), *rows]


def read_rows(found: Explanation, limit: int | None = None) -> list[Row]:
    """Transfers by what asked for them."""
    rows = [
        (_shorten(row["text"]), str(row["count"]), size(row["bytes"]), seconds(row["seconds"]))
        for row in found.reads[:limit]
    ]
    return [("what", "times", "bytes", "time"), *rows]
