"""torch-tpu flight FILES...: lines up what the flight recorders of several ranks wrote, and says
which rank is missing where."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch_tpu.cli._common import add_json, show

_DESCRIPTION = """\
Reads the files rank<N>.json that ranks write into TORCH_TPU_FLIGHT when a collective fails or takes
too long, and puts the collectives of each group side by side. FILES may be folders."""


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "flight",
        help="line up the flight recorders of several ranks",
        description=_DESCRIPTION,
    )
    parser.add_argument("files", nargs="+", metavar="FILES")
    parser.add_argument("--last", type=int, default=5, help="collectives per group (default: 5)")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """2 when a file is missing or not ours."""
    try:
        ranks = _read(args.files)
    except ValueError as error:
        print(f"torch-tpu flight: {error}", file=sys.stderr)
        return 2
    report = line_up(ranks, args.last)
    show(args, report, _text(report))
    return 0


def _read(names: Iterable[str]) -> dict[int, dict[str, Any]]:
    paths: list[Path] = []
    for name in names:
        path = Path(name)
        paths += sorted(path.glob("rank*.json")) if path.is_dir() else [path]
    if not paths:
        raise ValueError("no files rank<N>.json there")
    ranks: dict[int, dict[str, Any]] = {}
    for path in paths:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from None
        except ValueError:
            raise ValueError(f"{path} is not JSON") from None
        if not isinstance(data, dict) or data.get("version") != 1 or "collectives" not in data:
            raise ValueError(f"{path} was not written by the flight recorder")
        rank = int(data["rank"])
        if rank in ranks:
            raise ValueError(f"two files of rank {rank}: {path} is the second")
        ranks[rank] = data
    return ranks


def line_up(ranks: dict[int, dict[str, Any]], last: int) -> dict[str, Any]:
    """What all ranks did, by group; findings first."""
    world = max(int(data["world_size"]) for data in ranks.values())
    # Ranks may be threads of one process, which writes one file.
    heard = {int(e.get("rank", r)) for r, data in ranks.items() for e in data["collectives"]}
    silent = [rank for rank in range(world) if rank not in ranks and rank not in heard]
    findings = [f"no file of rank {rank}: it died, or writes elsewhere" for rank in silent]
    groups: dict[str, dict[int, dict[int, dict[str, Any]]]] = {}
    for rank, data in sorted(ranks.items()):
        for entry in data["collectives"]:
            if entry["peer"] >= 0:  # messages count per pair of ranks
                continue
            by_seq = groups.setdefault(entry["group"], {})
            by_seq.setdefault(int(entry["seq"]), {})[int(entry.get("rank", rank))] = entry
    report: list[dict[str, Any]] = []
    for group, by_seq in sorted(groups.items()):
        members = sorted({rank for entries in by_seq.values() for rank in entries})
        found, rows = _group(group, by_seq, members, last)
        findings += found
        report.append({"group": group, "ranks": members, "collectives": rows})
    reasons = {rank: data["reason"] for rank, data in sorted(ranks.items()) if data["reason"]}
    return {"findings": findings, "missing_ranks": silent, "reasons": reasons, "groups": report}


def _group(
    group: str, by_seq: dict[int, dict[int, dict[str, Any]]], members: list[int], last: int
) -> tuple[list[str], list[dict[str, Any]]]:
    findings: list[str] = []
    ends = {r: max(seq for seq, entries in by_seq.items() if r in entries) for r in members}
    furthest = max(ends.values())
    for rank, end in ends.items():
        if end < furthest:
            entry = by_seq[end][rank]
            findings.append(
                f"group {group}: rank {rank} stopped after collective {end} "
                f"({entry['op']}{_at(entry)}); the furthest is at {furthest}"
            )
    rows: list[dict[str, Any]] = []
    for seq in sorted(by_seq):
        entries = by_seq[seq]
        kinds = {_what(entry) for entry in entries.values()}
        unfinished = [rank for rank, entry in entries.items() if entry["state"] != "done"]
        if len(kinds) > 1:
            calls = ", ".join(f"rank {r} {_what(e)}{_at(e)}" for r, e in entries.items())
            findings.append(f"group {group}: collective {seq} differs: {calls}")
        if unfinished and len(entries) == len(members) and len(kinds) == 1:
            names = ", ".join(map(str, unfinished))
            findings.append(
                f"group {group}: all ranks called collective {seq} ({next(iter(kinds))}), "
                f"not done on {names}"
            )
        if seq > furthest - last or len(kinds) > 1:
            rows.append(
                {
                    "seq": seq,
                    "ranks": {
                        str(rank): {
                            key: entry[key]
                            for key in ("op", "detail", "state", "where", "issued", "error")
                        }
                        for rank, entry in sorted(entries.items())
                    },
                    "missing": [r for r in members if r not in entries and ends[r] < seq],
                }
            )
    return findings, rows


def _what(entry: dict[str, Any]) -> str:
    # Sizes may differ between ranks where that is what the collective is for.
    return f"{entry['op']} {entry['detail']}" if "all_to_all" not in entry["op"] else entry["op"]


def _at(entry: dict[str, Any]) -> str:
    return f" at {entry['where']}" if entry["where"] else ""


def _text(report: dict[str, Any]) -> str:
    lines = [f"* {finding}" for finding in report["findings"]]
    if not lines:
        lines = ["Nothing is missing: all ranks did the same."]
    lines += [f"rank {rank} says: {reason}" for rank, reason in report["reasons"].items()]
    for group in report["groups"]:
        names = ", ".join(map(str, group["ranks"]))
        lines += ["", f"group {group['group']} (ranks {names})"]
        for row in group["collectives"]:
            for rank, entry in row["ranks"].items():
                lines.append(
                    f"  {row['seq']:>6}  rank {rank:<3} {entry['state']:<8} "
                    f"{entry['op']} {entry['detail']}{_at(entry)}"
                )
            lines += [f"  {row['seq']:>6}  rank {rank:<3} MISSING" for rank in row["missing"]]
    return "\n".join(lines)
