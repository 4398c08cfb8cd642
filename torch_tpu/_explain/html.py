"""The report as one page: tables, and a timeline drawn from the JSON it carries. Style and script
are page.css and page.js beside this file, put inline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from torch_tpu._explain import text
from torch_tpu._explain.collect import Explanation

_HERE = Path(__file__).parent
_MAX_PROGRAMS = 1000


def page(found: Explanation) -> str:
    """The whole page."""
    summary = found.summary
    title = f"TorchTPU: {summary['stats']['launches']} launches, {summary['mode']} mode"
    sections = [
        _section("Hints", _list(found.hints)),
        _section("Timeline", _timeline(found)),
        _section("Waiting for the compiler", _table(text.cause_rows(found))),
        _section("Sizes that vary", _table(text.family_rows(found))),
        _section("Misses", _table(text.miss_rows(found))),
        _section("Programs", _table(text.program_rows(found, _MAX_PROGRAMS))),
        _section("Cuts", _table(text.cut_rows(found))),
        _section("Ops that ran on the CPU", _table(text.fallback_rows(found))),
        _section("Transfers", _table(text.read_rows(found))),
    ]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{_read('page.css')}</style></head><body>",
            "<h1>What TorchTPU compiled and ran</h1>",
            f"<p>{escape(summary['mode'])} mode, {escape(summary['plugin'])}, after "
            f"{text.seconds(summary['seconds'])}</p>",
            _list(list(text.summary_lines(found))),
            *sections,
            f'<script type="application/json" id="data">{_embed(found)}</script>',
            f"<script>\n{_read('page.js')}</script>",
            "</body></html>\n",
        ]
    )


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _embed(found: Explanation) -> str:
    """JSON that no element of the page can end: "<" only occurs within its strings."""
    return json.dumps(found.to_dict()).replace("<", "\\u003c")


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _list(items: Sequence[str]) -> str:
    rows = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{rows}</ul>" if items else ""


def _table(rows: Sequence[text.Row]) -> str:
    """Empty when there is only the header."""
    if len(rows) < 2:
        return ""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:]
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _timeline(found: Explanation) -> str:
    timeline = found.timeline
    if not timeline["rows"]:
        return ""
    dropped = f" {timeline['dropped']} older events made room." if timeline["dropped"] else ""
    return (
        "<p>Wheel: zoom. Drag: move. Double click: all."
        f"{dropped} Launches of single ops appear with "
        "<code>torch_tpu.debug.record_launches()</code> or TORCH_TPU_EXPLAIN.</p>"
        '<div id="legend"></div><canvas id="timeline"></canvas>'
        '<div id="tip"></div>'
    )
