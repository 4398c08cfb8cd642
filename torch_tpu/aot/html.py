"""A report as one page without any other file: charts are SVG in it, no script is needed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from torch_tpu.aot.text import count, duration, share, size
from torch_tpu.aot.topologies import GENERATIONS

if TYPE_CHECKING:
    from torch_tpu.aot.report import Report

_ROWS = 20
_NONE = "-"


def page(reports: Sequence[Report]) -> str:
    """One report, or several side by side and then each."""
    style = files("torch_tpu.aot").joinpath("page.css").read_text(encoding="utf-8")
    title = f"{reports[0].name} on {', '.join(r.topology for r in reports)}"
    parts = [f"<h1>{escape(reports[0].name)} on TPU</h1>"]
    if len(reports) > 1:
        parts.append(_comparison(reports))
    parts += [_one(report, len(reports) > 1) for report in reports]
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body>"
        f"<main>{''.join(parts)}</main></body></html>\n"
    )


def _comparison(reports: Sequence[Report]) -> str:
    rows = [
        ("fits", ["yes" if r.fits else "no" for r in reports]),
        ("devices", [str(r.devices) for r in reports]),
        ("HBM needed", [size(r.needed) for r in reports]),
        ("HBM there is", [size(r.hbm["limit"]) for r in reports]),
        ("time a step", [duration(r.seconds) if r.parts else _NONE for r in reports]),
        ("bound by", [r.bound or _NONE for r in reports]),
        ("MXU use", [_NONE if r.mxu is None else share(r.mxu) for r in reports]),
        ("padding of arguments", [size(r.wasted) for r in reports]),
        ("copies added", [size(sum(m.bytes for m in r.moves)) for r in reports]),
        ("sent by a device", [size(sum(c.link_bytes for c in r.collectives)) for r in reports]),
    ]
    bars = [(r.topology, r.seconds, duration(r.seconds), "a") for r in reports if r.parts]
    memory = [
        (r.topology, r.needed / r.hbm["limit"], f"{r.needed / r.hbm['limit']:.0%}",
         "b" if r.fits else "bad")
        for r in reports
    ]  # fmt: skip
    return (
        "<h2>Side by side</h2>"
        + _table(["", *(r.topology for r in reports)], [[n, *c] for n, c in rows])
        + _figure("Time a step", _bars(bars))
        + _figure("Share of the HBM", _bars(memory, 1.0))
    )


def _one(report: Report, several: bool) -> str:
    g = GENERATIONS[report.topology.partition(":")[0]]
    head = f"<h2 class=topology>{escape(report.topology)} <small>{escape(report.generation)}, "
    head += f"{report.devices} device{'s' * (report.devices > 1)}</small></h2>"
    tiles = [
        ("HBM", "fits" if report.fits else "does not fit",
         f"{size(report.needed)} of {size(report.hbm['limit'])}",
         "good" if report.fits else "bad"),
    ]  # fmt: skip
    if report.parts:
        of_peak = report.flops / g.flops / report.seconds if report.seconds else 0.0
        tiles += [
            ("a step", duration(report.seconds), f"bound by {report.bound}", ""),
            ("work", count(report.flops, "FLOP"), f"{count(report.bytes, 'B')} of HBM", ""),
            ("matrix units", share(report.mxu), f"{of_peak:.0%} of the peak", ""),
            ("parameters", count(report.parameters), f"compiled in {report.compile_seconds:.0f} s",
             ""),
        ]  # fmt: skip
    out = [head, _tiles(tiles), _memory(report)]
    if report.parts:
        out += [_roofline(report), _parts(report)]
    out += [_padding(report), _moves(report), _links(report)]
    if report.parts:
        used = f"{report.sparse_core} instructions" if report.sparse_core else "not used"
        out.append(f"<p>SparseCore: {used}.</p>")
    for title, lines in (("May be compiled again", report.risks), ("Notes", report.notes)):
        if lines:
            items = "".join(f"<li>{escape(line)}" for line in lines)
            out.append(f"<h3>{title}</h3><ul>{items}</ul>")
    return f"<section>{''.join(out)}</section>"


def _tiles(tiles: Iterable[tuple[str, str, str, str]]) -> str:
    made = "".join(
        f'<div class="tile {kind}"><span>{escape(name)}</span><b>{escape(value)}</b>'
        f"<small>{escape(more)}</small></div>"
        for name, value, more, kind in tiles
    )
    return f"<div class=tiles>{made}</div>"


def _memory(report: Report) -> str:
    h = report.hbm
    out = "<h3>Memory of a device</h3>"
    if "argument_bytes" in h:
        pieces = [
            ("arguments", h["argument_bytes"], "a"),
            ("results of their own", h["output_bytes"] - h["alias_bytes"], "c"),
            ("temporaries", h["temp_bytes"], "b"),
            ("code", h["code_bytes"], "d"),
        ]
        out += _stack(pieces, max(h["limit"], report.needed))
    if report.largest:
        out += "<h4>Largest at the peak</h4>" + _table(
            ["bytes", "kind", "what", "shape"],
            [[size(b.bytes), b.kind, b.name, b.shape] for b in report.largest[:_ROWS]],
        )
    return out


def _parts(report: Report) -> str:
    g = GENERATIONS[report.topology.partition(":")[0]]
    with_mxu = [p for p in report.parts if p.mxu is not None][:12]
    bars = [
        (p.name, p.mxu or 0.0, f"{p.mxu or 0:.2f}", "a" if (p.mxu or 0) > 0.5 else "b")
        for p in with_mxu
    ]
    rows = [
        [
            duration(p.time(g)),
            p.bound(g),
            _NONE if p.mxu is None else f"{p.mxu:.2f}",
            count(p.flops),
            size(p.bytes),
            f"{p.name}{f' x{p.times}' if p.times > 1 else ''}",
            p.op_name,
        ]
        for p in report.parts[:_ROWS]
    ]
    return (
        "<h3>What takes longest</h3>"
        + (_figure("Use of the matrix units", _bars(bars, 1.0)) if bars else "")
        + _table(["time", "bound", "MXU", "FLOP", "HBM", "fusion", "from"], rows)
    )


def _padding(report: Report) -> str:
    if not report.padding:
        return ""
    rows = [
        [size(w.waste), size(w.padded_bytes * w.count), w.kind, w.name,
         w.shape + (f" x{w.count}" if w.count > 1 else ""), w.fix]
        for w in report.padding[:_ROWS]
    ]  # fmt: skip
    return "<h3>Padding</h3>" + _table(["waste", "of", "kind", "what", "shape", "fix"], rows)


def _moves(report: Report) -> str:
    if not report.moves:
        return ""
    total = sum(m.bytes for m in report.moves)
    rows = [
        [size(m.bytes), m.opcode, m.shape + (f" x{m.times}" if m.times > 1 else ""), m.op_name]
        for m in report.moves[:10]
    ]
    return (
        "<h3>Copies and transposes the compiler added</h3>"
        f"<p>{len(report.moves)}, {size(total)} of HBM in all.</p>"
        + _table(["bytes", "what", "shape", "from"], rows)
    )


def _links(report: Report) -> str:
    if not report.collectives:
        return ""
    kinds: dict[str, int] = {}
    for c in report.collectives:
        kinds[c.kind] = kinds.get(c.kind, 0) + c.link_bytes
    bars = [(k, v, size(v), "c") for k, v in sorted(kinds.items(), key=lambda k: -k[1])]
    rows = [
        [size(c.link_bytes), c.kind, f"{c.shape} x{c.times}", str(c.group), c.op_name]
        for c in report.collectives[:_ROWS]
    ]
    return (
        "<h3>Between devices</h3>"
        f"<p>{duration(report.link_seconds)} over the links.</p>"
        + _figure("Sent by each device", _bars(bars))
        + _table(["sent", "what", "shape", "devices", "from"], rows)
    )


# --- charts -------------------------------------------------------------------------------------


def _figure(title: str, svg: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"


def _bars(bars: Sequence[tuple[str, float, str, str]], most: float | None = None) -> str:
    """(label, value, text, color) each."""
    if not bars:
        return ""
    top = most or max(value for _, value, _, _ in bars) or 1.0
    rows = "".join(
        f"<div class=bar><span>{escape(label)}</span><i>"
        f'<b class={color} style="width:{100 * min(1.0, value / top):.1f}%"></b></i>'
        f"<em>{escape(text)}</em></div>"
        for label, value, text, color in bars
    )
    return f"<div class=bars>{rows}</div>"


def _stack(pieces: Sequence[tuple[str, int, str]], total: int) -> str:
    x, made, legend = 0.0, "", ""
    for name, value, color in pieces:
        width = 1000 * value / total
        made += (
            f"<rect class={color} x={x:.2f} y=0 width={width:.2f} height=40>"
            f"<title>{escape(name)}: {size(value)}</title></rect>"
        )
        legend += f"<span><i class={color}></i>{escape(name)} {size(value)}</span>"
        x += width
    return (
        '<svg class=stack viewBox="0 0 1000 40" preserveAspectRatio=none>'
        f"<rect class=free x=0 y=0 width=1000 height=40></rect>{made}</svg>"
        f"<div class=legend>{legend}</div>"
    )


def _roofline(report: Report) -> str:
    """FLOPs per byte against FLOP/s that are possible, one dot per part."""
    g = GENERATIONS[report.topology.partition(":")[0]]
    dots = [p for p in report.parts if p.flops > 0][:60]
    if not dots:
        return ""
    low, high = -1.0, 5.0  # powers of ten of FLOPs per byte
    floor, ceiling = math.log10(g.flops) - 5, math.log10(g.flops) + 0.3

    def x(intensity: float) -> float:
        at = (math.log10(max(intensity, 1e-9)) - low) / (high - low)
        return 30 + 530 * min(1.0, max(0.0, at))

    def y(rate: float) -> float:
        at = (math.log10(max(rate, 1.0)) - floor) / (ceiling - floor)
        return 224 - 210 * min(1.0, max(0.0, at))

    ridge = g.flops / g.bandwidth
    left = 10**low
    corners = ((left, left * g.bandwidth), (ridge, g.flops), (1e5, g.flops))
    line = " ".join(f"{x(i):.1f},{y(rate):.1f}" for i, rate in corners)
    marks = "".join(
        f"<text x={x(10**p):.0f} y=240 text-anchor=middle>{count(10**p)}</text>"
        for p in range(-1, 6)
    )
    circles = ""
    for p in dots:
        seconds = p.time(g)
        rate = p.flops / seconds if seconds else 0.0
        radius = 3 + 9 * math.sqrt(seconds / report.seconds) if report.seconds else 3
        color = "a" if p.bound(g) == "compute" else "b"
        circles += (
            f"<circle class={color} cx={x(p.flops / max(p.bytes, 1)):.1f} cy={y(rate):.1f} "
            f"r={radius:.1f}>"
            f"<title>{escape(p.name)} {escape(p.op_name)}: {count(p.flops, 'FLOP')}, "
            f"{size(p.bytes)}, {duration(seconds)}</title></circle>"
        )
    svg = (
        f'<svg class=roofline viewBox="0 -14 600 278"><polyline points="{line}"/>{circles}{marks}'
        f"<text x=295 y=260 text-anchor=middle>FLOPs per byte of HBM</text>"
        f"<text x=560 y=4 text-anchor=end>{count(g.flops, 'FLOP/s')}</text></svg>"
    )
    legend = (
        "<div class=legend><span><i class=a></i>bound by compute</span>"
        "<span><i class=b></i>bound by memory</span><span>at the right edge: VMEM only</span></div>"
    )
    return _figure("Roofline: each dot is a part of the program, its size the time", svg + legend)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(h)}" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}" for c in row) for row in rows)
    return f"<div class=scroll><table><thead><tr>{top}</thead><tbody>{body}</tbody></table></div>"
