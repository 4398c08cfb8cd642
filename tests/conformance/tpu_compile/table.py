"""tests/conformance/tpu_compile.json: what the TPU compiler says to each table entry."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..run import ROOT, Task

TABLE = ROOT / "tests" / "conformance" / "tpu_compile.json"


def reason_of(answer: Task) -> str:
    """The compiler's message in short."""
    text = str(answer.get("detail", ""))
    for noise in ("[PJRT_Compile] ", "UNIMPLEMENTED: ", "INVALID_ARGUMENT: ", "INTERNAL: "):
        text = text.removeprefix(noise)
    what = {"crashes": "the compiler crashes: ", "hangs": "the compiler hangs: "}
    return what.get(answer["status"], "") + text[:200]


def make_table(entries: Iterable[str], answers: Iterable[Task]) -> dict[str, dict[str, Any]]:
    """Per entry: status (ok, partly, refused, not run), programs, seconds, refused by dtypes."""
    by_entry: dict[str, list[Task]] = defaultdict(list)
    for answer in answers:
        by_entry[answer["entry"]].append(answer)
    table: dict[str, dict[str, Any]] = {}
    for entry in sorted(entries):
        found = by_entry.get(entry, [])
        bad = [a for a in found if a["status"] != "ok"]
        row: dict[str, Any] = {
            "status": "not run"
            if not found
            else "ok"
            if not bad
            else "refused"
            if len(bad) == len(found)
            else "partly",
            "programs": len(found),
            "dtypes": sorted({a["signature"] for a in found if a["status"] == "ok"}),
            "seconds": round(sum(a.get("seconds", 0.0) for a in found), 1),
        }
        if bad:
            row["refused"] = {a["signature"]: reason_of(a) for a in bad}
        table[entry] = row
    return table


def write_table(table: dict[str, dict[str, Any]], target: str, path: Path = TABLE) -> None:
    lines = [f"  {json.dumps(entry)}: {json.dumps(row)}" for entry, row in table.items()]
    head = f'{{\n"target": {json.dumps(target)},\n"entries": {{\n'
    path.write_text(head + ",\n".join(lines) + "\n}}\n")
