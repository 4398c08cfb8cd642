"""The comparison as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch_tpu._compare.measure import Row, Settings

COLUMNS = (
    *("device", "steps/s", "ratio", "p50", "p90", "p99", "first step", "device memory"),
    *("host memory", "energy/step", "tokens/s", "cost/1M tokens"),
)


def seconds(value: float | None) -> str:
    """0.0123 as "12.3 ms".

    >>> seconds(0.0123), seconds(None)
    ('12.3 ms', '-')
    """
    if value is None:
        return "-"
    if value >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"


def size(value: int | None) -> str:
    """Bytes in MiB."""
    return "-" if value is None else f"{value / (1 << 20):.1f} MiB"


def number(value: float | None) -> str:
    """Four digits, never as a power of ten.

    >>> number(1310.4), number(1.25), number(41920.0)
    ('1310', '1.25', '41920')
    """
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def energy(row: Row) -> str:
    """By source."""
    return ", ".join(f"{value:.3g} J {name}" for name, value in row.joules_per_step.items()) or "-"


def cost(row: Row) -> str:
    """With its currency."""
    if row.cost_per_million_tokens is None:
        return "-"
    return f"{row.cost_per_million_tokens:.4g} {row.currency}"


def ratio(row: Row, rows: list[Row]) -> float | None:
    """Its steps per second over those of the first device that ran."""
    first = next((r.steps_per_second for r in rows if r.steps_per_second), None)
    if first is None or row.steps_per_second is None:
        return None
    return row.steps_per_second / first


def cells(row: Row, rows: list[Row]) -> list[str]:
    """One per column."""
    times = ratio(row, rows)
    return [
        row.device,
        number(row.steps_per_second),
        "-" if times is None else f"{times:.2f}x",
        *(seconds(row.percentiles.get(p)) for p in ("p50", "p90", "p99")),
        seconds(row.first_step),
        size(row.device_peak_bytes),
        size(row.host_peak_bytes),
        energy(row),
        number(row.tokens_per_second),
        cost(row),
    ]


def text(rows: list[Row], settings: Settings) -> str:
    """The table, and below it who failed and why. Columns without a figure are left out."""
    ran = [row for row in rows if row.steps_per_second is not None]
    lines = [f"{settings.script}: {_measured(ran, settings)}", ""]
    if ran:
        table = [list(COLUMNS), *(cells(row, rows) for row in ran)]
        used = [n for n in range(len(COLUMNS)) if any(line[n] != "-" for line in table[1:])]
        widths = [max(len(line[n]) for line in table) for n in used]
        for line in table:
            shown = [
                f"{line[n]:<{w}}" if n == 0 else f"{line[n]:>{w}}"
                for n, w in zip(used, widths, strict=True)
            ]
            lines.append("  ".join(shown).rstrip())
        lines.append("")
        lines += [f"{row.device}: {row.device_name}, torch {row.torch}" for row in ran]
    lines += [f"{row.device}: {row.failure}" for row in rows if row.failure]
    return "\n".join(lines)


def _measured(ran: list[Row], settings: Settings) -> str:
    if not ran:
        return "nothing was measured"
    names = {"marked": "marks of the script", "optimizer": "optimizer steps", "module": "forwards"}
    what = ", ".join(dict.fromkeys(names[row.source] for row in ran))
    counts = sorted({row.steps for row in ran})
    count = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    how = "waited for one by one" if settings.sync else "not waited for"
    return f"{count} steps ({what}), {how}, after {max(1, settings.warmup)} of warm-up"


def document(rows: list[Row], settings: Settings) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "script": str(settings.script),
        "arguments": settings.arguments,
        "warmup": settings.warmup,
        "sync": settings.sync,
        "devices": [{**asdict(row), "ratio": ratio(row, rows)} for row in rows],
    }
