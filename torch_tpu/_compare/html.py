"""The comparison as one page that needs nothing else: the table, and each step's time."""

from __future__ import annotations

from html import escape
from pathlib import Path

from torch_tpu._compare.measure import Row, Settings
from torch_tpu._compare.report import COLUMNS, _measured, cells, number, seconds

_WIDTH, _HEIGHT = 640, 160


def page(rows: list[Row], settings: Settings) -> str:
    """The whole document."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    ran = [row for row in rows if row.steps_per_second is not None]
    title = f"{escape(settings.script.name)} on {', '.join(escape(row.device) for row in rows)}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{style}</style></head><body><main>",
        f"<h1>{title}</h1><p>{escape(_measured(ran, settings))}</p>",
        _bars(ran),
        _table(rows),
        *(_chart(row, ran) for row in ran),
        *(
            f'<p class="failed"><b>{escape(row.device)}</b>: {escape(row.failure)}</p>'
            for row in rows
            if row.failure
        ),
        "</main></body></html>",
    ]
    return "\n".join(parts)


def _bars(ran: list[Row]) -> str:
    best = max((row.steps_per_second or 0 for row in ran), default=1) or 1
    lines = []
    for row in ran:
        value = row.steps_per_second or 0
        lines.append(
            f'<div class="bar"><span class="name">{escape(row.device)}</span>'
            f'<span class="track"><span style="width:{100 * value / best:.1f}%"></span></span>'
            f'<span class="value">{number(value)} steps/s</span></div>'
        )
    return f'<section aria-label="steps per second">{"".join(lines)}</section>'


def _table(rows: list[Row]) -> str:
    shown = [row for row in rows if row.steps_per_second is not None]
    if not shown:
        return ""
    lines = [cells(row, rows) for row in shown]
    used = [n for n in range(len(COLUMNS)) if any(line[n] != "-" for line in lines)]
    head = "".join(f"<th>{escape(COLUMNS[n])}</th>" for n in used)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(line[n])}</td>" for n in used) + "</tr>" for line in lines
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )


def _chart(row: Row, ran: list[Row]) -> str:
    """Each step's time; the same scale for all devices would hide the faster ones' shape."""
    top = max(row.latencies)
    count = len(row.latencies)
    points = " ".join(
        f"{_WIDTH * n / max(1, count - 1):.1f},{_HEIGHT - (_HEIGHT - 8) * value / top:.1f}"
        for n, value in enumerate(row.latencies)
    )
    return (
        f"<figure><figcaption>{escape(row.device)}: each of {count} steps, up to {seconds(top)}; "
        f"{escape(row.device_name)}, torch {escape(row.torch)}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="time of each step on {escape(row.device)}">'
        f'<line x1="0" y1="{_HEIGHT}" x2="{_WIDTH}" y2="{_HEIGHT}"/>'
        f'<polyline points="{points}"/></svg></figure>'
    )
