"""tests/conformance/tpu_compile.json: what the TPU compiler says to each table entry."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..children import ROOT, Task
from .known import KNOWN

Table = dict[str, dict[str, Any]]
TABLE = ROOT / "tests" / "conformance" / "tpu_compile.json"


def reason_of(answer: Task) -> str:
    """The compiler's message in short."""
    text = str(answer.get("detail", ""))
    for noise in ("[PJRT_Compile] ", "UNIMPLEMENTED: ", "INVALID_ARGUMENT: ", "INTERNAL: "):
        text = text.removeprefix(noise)
    what = {"crashes": "the compiler crashes: ", "hangs": "the compiler hangs: "}
    return what.get(answer["status"], "") + text[:200]


def make_table(entries: Iterable[str], answers: Iterable[Task]) -> Table:
    """Per entry: status (ok, partly, refused, not run), programs, seconds, refusals by dtypes."""
    by_entry: dict[str, list[Task]] = defaultdict(list)
    for answer in answers:
        by_entry[answer["entry"]].append(answer)
    table: Table = {}
    for entry in sorted(entries):
        found = by_entry[entry]
        bad = [a for a in found if a["status"] != "ok"]
        good = [a for a in found if a["status"] == "ok"]
        known = KNOWN.get(entry, {})
        row: dict[str, Any] = {
            "status": ("partly" if good and bad else "refused" if bad else "ok")
            if found
            else "not run",
            "programs": len(found),
            "dtypes": sorted({a["signature"] for a in good}),
            "seconds": round(sum(a.get("seconds", 0.0) for a in found), 1),
        }
        if bad:
            row["refused"] = {
                a["signature"]: known.get(a["signature"]) or reason_of(a) for a in bad
            }
        table[entry] = row
    return table


def surprises(table: Table) -> list[str]:
    """What is refused and not known to be, what was never run, and what is refused no longer."""
    lines = []
    for entry, row in table.items():
        known, refused = KNOWN.get(entry, {}), row.get("refused", {})
        if row["status"] == "not run":
            lines.append(f"{entry}: no program was recorded; add a call to cases.py")
        for dtypes in sorted(refused.keys() - known.keys()):
            lines.append(f"{entry} ({dtypes}): {refused[dtypes]}")
        for dtypes in sorted(known.keys() - refused.keys()):
            if row["status"] != "not run":
                lines.append(f"{entry} ({dtypes}): compiles, but known.py says it does not")
    return lines


def write_table(table: Table, target: str, path: Path = TABLE) -> None:
    lines = [f"  {json.dumps(entry)}: {json.dumps(row)}" for entry, row in table.items()]
    head = f'{{\n"target": {json.dumps(target)},\n"entries": {{\n'
    path.write_text(head + ",\n".join(lines) + "\n}}\n")
