"""A report as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_tpu.aot.topologies import GENERATIONS

if TYPE_CHECKING:
    from torch_tpu.aot.report import Report


def count(value: float, unit: str = "") -> str:
    """12.3 T and so on.

    >>> count(2147483648, "FLOP"), count(0)
    ('2.15 GFLOP', '0')
    """
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}{unit}"
    return f"{value:.3g} {unit}".strip()


def size(value: float) -> str:
    """Bytes.

    >>> size(1536), size(3 << 30)
    ('1.5 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def duration(seconds: float) -> str:
    """
    >>> duration(0.00213), duration(75)
    ('2.13 ms', '75 s')
    """
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def share(part: float | None) -> str:
    """
    >>> share(0.93), share(None)
    ('93%', '-')
    """
    return "-" if part is None else f"{part:.0%}"


def show(report: Report, rows: int = 8) -> str:
    """The whole report, the first `rows` of each list."""
    out = [
        f"{report.name} on {report.topology} ({report.generation}), "
        f"{report.devices} device{'s' if report.devices > 1 else ''}",
        f"  {count(report.parameters)} parameters; traced in {report.trace_seconds:.1f} s, "
        f"compiled in {report.compile_seconds:.1f} s",
        "",
        *_memory(report, rows),
    ]
    if report.parts:
        out += ["", *_time(report, rows)]
    for title, lines in (
        ("Padding", _padding(report, rows)),
        ("Copies and transposes the compiler added", _moves(report, rows)),
        ("Between devices", _links(report, rows)),
        ("May be compiled again", [f"  {r}" for r in report.risks]),
        ("Notes", [f"  {n}" for n in report.notes]),
    ):
        if lines:
            out += ["", title, *lines]
    return "\n".join(out)


def _memory(report: Report, rows: int) -> list[str]:
    h = report.hbm
    verdict = "fits" if report.fits else "DOES NOT FIT"
    share = f", {report.needed / h['limit']:.0%}" if report.needed else ""
    out = [f"HBM: {verdict}. Needs {size(report.needed)} of {size(h['limit'])} per device{share}"]
    if "argument_bytes" in h:
        out.append(
            f"  arguments {size(h['argument_bytes'])}, results {size(h['output_bytes'])} "
            f"(in arguments' memory: {size(h['alias_bytes'])}), "
            f"temporaries {size(h['temp_bytes'])}, code {size(h['code_bytes'])}"
        )
    if report.largest:
        out.append("  largest at the peak:")
    out += [
        f"    {size(b.bytes):>10}  {b.kind:<10} {b.name[:60]}  {b.shape[:48]}"
        for b in report.largest[:rows]
    ]
    if not report.fits:
        out += [
            "  What helps: a topology with more devices and shard='fsdp', bf16 weights and states,",
            "  a smaller batch, activation checkpointing (scan= does it), or a larger generation.",
        ]
    return out


def _time(report: Report, rows: int) -> list[str]:
    g = GENERATIONS[report.topology.partition(":")[0]]
    out = [
        f"Time: about {duration(report.seconds)} a step, bound by {report.bound}",
        f"  {count(report.flops, 'FLOP')}, {count(report.bytes, 'B')} of HBM a device; at best "
        f"{duration(report.roofline_seconds)} (roofline: {count(g.flops, 'FLOP/s')}, "
        f"{count(g.bandwidth, 'B/s')}), {duration(report.compiler_seconds)} by the compiler's "
        f"cycles, {duration(report.link_seconds)} over links",
        f"  matrix units: {share(report.mxu)} of their slots in the parts that multiply; "
        f"{_utilization(report, g.flops):.0%} of the peak over the step",
        "  what takes longest:",
        "       time  bound    MXU   what",
    ]
    for p in report.parts[:rows]:
        seconds = p.time(g)
        mxu = "   -" if p.mxu is None else f"{p.mxu:4.2f}"
        times = f" x{p.times}" if p.times > 1 else ""
        label = p.op_name or p.opcode
        out.append(
            f"  {duration(seconds):>9}  {p.bound(g):<7} {mxu}  {p.name}{times} {p.shape}  "
            f"{label[:70]}"
        )
    out.append(
        f"  SparseCore: {report.sparse_core} instruction{'s' if report.sparse_core > 1 else ''}"
        if report.sparse_core
        else "  SparseCore: not used"
        + ("" if g.sparse_cores else f" ({report.generation} has none)")
    )
    return out


def _utilization(report: Report, peak: float) -> float:
    return report.flops / peak / report.seconds if report.seconds else 0.0


def _padding(report: Report, rows: int) -> list[str]:
    out = [
        f"  {size(w.waste):>10} of {size(w.padded_bytes * w.count)}  {w.kind} {w.name[:56]} "
        f"{w.shape}"
        + (f" x{w.count}" if w.count > 1 else "")
        + (f"\n{'':14}{w.fix}" if w.fix else "")
        for w in report.padding[:rows]
    ]
    return out


def _moves(report: Report, rows: int) -> list[str]:
    if not report.moves:
        return []
    total = sum(m.bytes for m in report.moves)
    out = [f"  {len(report.moves)}, {size(total)} of HBM in all"]
    out += [
        f"    {size(m.bytes):>10}  {m.opcode} {m.shape}{f' x{m.times}' if m.times > 1 else ''}  "
        f"{m.op_name[:70]}"
        for m in report.moves[: rows // 2]
        if m.bytes
    ]
    return out


def _links(report: Report, rows: int) -> list[str]:
    kinds: dict[str, list[int]] = {}
    for c in report.collectives:
        sums = kinds.setdefault(c.kind, [0, 0])
        sums[0] += c.times
        sums[1] += c.link_bytes
    return [
        f"  {kind}: {n} times, {size(b)} sent by each device"
        for kind, (n, b) in sorted(kinds.items(), key=lambda k: -k[1][1])
    ] + ([f"  {duration(report.link_seconds)} over the links"] if kinds else [])


def compare(reports: list[Report]) -> str:
    """Topologies side by side."""
    rows: list[tuple[str, list[str]]] = [
        ("", [r.topology for r in reports]),
        ("devices", [str(r.devices) for r in reports]),
        ("fits", ["yes" if r.fits else "NO" for r in reports]),
        ("HBM needed", [size(r.needed) for r in reports]),
        ("HBM there is", [size(r.hbm["limit"]) for r in reports]),
        ("time a step", [duration(r.seconds) if r.parts else "-" for r in reports]),
        ("bound by", [r.bound or "-" for r in reports]),
        ("MXU use", [share(r.mxu) for r in reports]),
        ("padding of arguments", [size(r.wasted) if r.parts else "-" for r in reports]),
        (
            "copies added",
            [size(sum(m.bytes for m in r.moves)) if r.parts else "-" for r in reports],
        ),
        (
            "sent by a device",
            [size(sum(c.link_bytes for c in r.collectives)) if r.parts else "-" for r in reports],
        ),
        ("compiled in", [f"{r.compile_seconds:.1f} s" for r in reports]),
    ]
    left = max(len(name) for name, _ in rows)
    widths = [max(len(cells[i]) for _, cells in rows) for i in range(len(reports))]
    return "\n".join(
        f"{name:<{left}}  " + "  ".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))
        for name, cells in rows
    )
