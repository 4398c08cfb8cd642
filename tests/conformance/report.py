"""docs/operators.md from the results of a conformance run."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from .op_checks import DTYPES, OPS, dtypes_of, has_gradient
from .reasons import NOTES, REASONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operators.md"
TPU_COMPILE = ROOT / "tests" / "conformance" / "tpu_compile.json"

Result = dict[str, Any]
SHORT = {
    "float32": "f32",
    "float64": "f64",
    "bfloat16": "bf16",
    "float16": "f16",
    "int64": "i64",
    "int32": "i32",
    "uint8": "u8",
    "bool": "bool",
    "complex64": "c64",
}
SUITES = {
    "op": "Values and gradients, (op, dtype) pairs",
    "forms": "In-place, out=, non-contiguous, inference mode, strides",
    "transforms": "vmap and jvp",
    "errors": "Ops whose error inputs all raise the CPU's exception type",
    "compile": "torch.compile: values, gradients and writes",
    "module": "ModuleInfo, forward and gradients, train and eval",
    "optimizer": "OptimizerInfo, all implementations",
}


def write_report(results: dict[str, Result]) -> None:
    by_op: dict[str, dict[tuple[str, str], Result]] = defaultdict(dict)
    for result in results.values():
        by_op[result["name"]][result["suite"], result["dtype"]] = result
    lines = [
        "# Operators",
        "",
        "Written by `make conformance` from PyTorch's own test data (OpInfo, ModuleInfo and",
        "OptimizerInfo of `torch.testing._internal`), on XLA:CPU against PyTorch's CPU kernels.",
        "Right means: within PyTorch's tolerances of the CPU's result, or no further from the",
        "float64 result than twice the CPU's own error.",
        "",
        *_summary(results, by_op),
        *_not_right(results),
        *_op_by_op(results),
        *_tpu(),
        *_table(by_op),
    ]
    PAGE.write_text("\n".join(lines) + "\n")
    print(f"wrote {PAGE.relative_to(ROOT)}")


def _summary(results: dict[str, Result], by_op: dict[str, Any]) -> list[str]:
    lines = ["## Summary", "", "| what | right | of | not applicable |", "|---|---|---|---|"]
    for suite, title in SUITES.items():
        counts = Counter(r["status"] for r in results.values() if r["suite"] == suite)
        total = sum(counts.values()) - counts["skipped"]
        if total:
            right = counts["right"]
            share = f"{right} ({100 * right / total:.1f} %)"
            lines.append(f"| {title} | {share} | {total} | {counts['skipped']} |")
    first = [_first(name, by_op[name]) for name in OPS]
    right = sum(1 for r in first if r.get("status") == "right")
    lines.append(f"| OpInfo entries in float32 (or their first dtype) | {right} | {len(OPS)} | |")
    errors = [r for r in results.values() if r["suite"] == "errors" and "inputs" in r]
    inputs, types, words = (
        sum(r[k] for r in errors) for k in ("inputs", "same_type", "same_message")
    )
    if inputs:
        lines.append(
            f"| Single error inputs: same type | {types} ({100 * types / inputs:.1f} %) "
            f"| {inputs} | |"
        )
        lines.append(
            f"| Single error inputs: same message | {words} ({100 * words / inputs:.1f} %) "
            f"| {inputs} | |"
        )
    tiers = Counter(_tier(by_op[name]) for name in OPS)
    lines += ["", "Tiers of the OpInfo entries: "]
    lines[-1] += ", ".join(f"{tier} {count}" for tier, count in sorted(tiers.items())) + "."
    return [*lines, ""]


def _first(name: str, found: dict[tuple[str, str], Result]) -> Result:
    for dtype in DTYPES:
        if ("op", dtype) in found:
            return found["op", dtype]
    return {}


def _tier(found: dict[tuple[str, str], Result]) -> str:
    runs = [r for (suite, _), r in found.items() if suite == "op"]
    if not any(r["status"] in ("right", "wrong") for r in runs):
        return "not supported"
    first = runs[0]
    if first.get("fallback"):
        return "CPU fallback"
    return "decomposed" if first.get("decomposed") else "native"


def _not_right(results: dict[str, Result]) -> list[str]:
    lines = ["## What is not right, and why", "", "| task | what happens |", "|---|---|"]
    for key in sorted(results):
        result = results[key]
        if result["status"] in ("right", "skipped"):
            continue
        known = REASONS.get(result["name"]) or NOTES.get(result["name"])
        detail = known or result.get("detail", "")[:160]
        lines.append(f"| {key.rstrip(':')} | {result['status']}: {_escape(detail)} |")
    skipped = sorted({r["name"] for r in results.values() if r["status"] == "skipped"} & set(OPS))
    never = [n for n in skipped if all(_status(results, n, d) != "right" for d in DTYPES)]
    lines += ["", "Entries that the CPU itself cannot run here: " + ", ".join(never) + ".", ""]
    return lines


def _op_by_op(results: dict[str, Result]) -> list[str]:
    """What torch.compile makes of the entries beside being right."""
    runs = {r["name"]: r for r in results.values() if r["suite"] == "compile" and "graphs" in r}
    if not runs:
        return []
    none = sorted(name for name, run in runs.items() if run["graphs"] == 0)
    parts = {name: run["op_by_op"] for name, run in runs.items() if run["op_by_op"]}
    whole = len(runs) - len(none) - len(parts)
    lines = [
        "## Under torch.compile",
        "",
        f"Each graph of {whole} entries is one program. Dynamo makes no graph of {len(none)},",
        "which read values or have sizes that depend on them: " + ", ".join(none) + ".",
        "",
    ]
    if parts:
        lines += ["| runs op by op | reason |", "|---|---|"]
        for name, reasons in sorted(parts.items()):
            lines.append(f"| {name} | {_escape('; '.join(reasons))[:200]} |")
        lines.append("")
    return lines


def _status(results: dict[str, Result], name: str, dtype: str) -> str:
    return str(results.get(f"op:{name}:{dtype}:", {}).get("status", ""))


def _tpu() -> list[str]:
    if not TPU_COMPILE.exists():
        return []
    page = json.loads(TPU_COMPILE.read_text())
    entries: dict[str, Any] = page["entries"]
    bad = {name: entry for name, entry in entries.items() if entry["status"] != "ok"}
    share = 100 * (len(entries) - len(bad)) / len(entries)
    lines = [
        "## Lowerings and the TPU compiler",
        "",
        f"{len(entries) - len(bad)} of {len(entries)} entries of the op table ({share:.1f} %)",
        f"compile for {page['target']} (libtpu, ahead of time; `make tpu-compile-test`).",
        "",
    ]
    if bad:
        lines += ["| entry | what the compiler says |", "|---|---|"]
        for name, entry in sorted(bad.items()):
            why = entry.get("reason") or json.dumps(entry.get("refused", entry["status"]))
            lines.append(f"| {name} | {_escape(str(why))[:200]} |")
        lines.append("")
    return lines


def _tpu_by_name() -> dict[str, str]:
    """Per ATen name without overload: do all its entries compile?"""
    if not TPU_COMPILE.exists():
        return {}
    found: dict[str, str] = {}
    for entry, row in json.loads(TPU_COMPILE.read_text())["entries"].items():
        name = entry.partition(".")[0]
        answer = {"ok": "yes", "partly": "not float64"}.get(row["status"], "no")
        found[name] = answer if found.get(name, "yes") == "yes" else found[name]
    return found


def _table(by_op: dict[str, dict[tuple[str, str], Result]]) -> list[str]:
    lines = [
        "## Every OpInfo entry",
        "",
        "dtypes: right ones; in brackets those the CPU has and we get wrong. Gradient: in float32.",
        "",
        "TPU: the table entries of that ATen name compile for v5e; empty: a composite of others.",
        "",
        "| op | tier | dtypes | gradient | forms | vmap, jvp | compile | TPU | notes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    tpu = _tpu_by_name()
    for name in sorted(OPS):
        found = by_op[name]
        dtypes = [_dtype(found, d) for d in dtypes_of(OPS[name]) if ("op", d) in found]
        gradient = "yes" if has_gradient(OPS[name], DTYPES["float32"]) else "-"
        first = _first(name, found)
        notes = ", ".join(op.removeprefix("aten::") for op in first.get("fallback", []))
        lines.append(
            f"| {name} | {_tier(found)} | {' '.join(filter(None, dtypes))} | {gradient} "
            f"| {_mark(found, 'forms')} | {_mark(found, 'transforms')} "
            f"| {_mark(found, 'compile')} "
            f"| {tpu.get(OPS[name].aten_name, '')} "
            f"| {'on the CPU: ' + notes if notes else REASONS.get(name, '')} |"
        )
    return lines


def _dtype(found: dict[tuple[str, str], Result], dtype: str) -> str:
    status = found["op", dtype]["status"]
    if status == "skipped":
        return ""
    return SHORT[dtype] if status == "right" else f"({SHORT[dtype]})"


def _mark(found: dict[tuple[str, str], Result], suite: str) -> str:
    for (kind, _), result in found.items():
        if kind == suite:
            return {"right": "yes", "skipped": "-"}.get(result["status"], "no")
    return ""


def _escape(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
