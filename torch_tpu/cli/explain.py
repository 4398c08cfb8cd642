"""torch-tpu explain [options] SCRIPT [arguments...]: runs a script, then says what was compiled and
run, and why."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from torch_tpu.cli._common import check_writable, whole
from torch_tpu.cli._script import run_script

_DESCRIPTION = """\
Runs SCRIPT as `python SCRIPT` would, then prints what TorchTPU compiled and ran, and why. Options
come before SCRIPT; what follows it are the script's own arguments."""


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "explain",
        help="run a script and say what was compiled and run, and why",
        description=_DESCRIPTION,
    )
    parser.add_argument("--html", metavar="FILE", help="also write a page with a timeline")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--output", metavar="FILE", help="write the report there, do not print it")
    parser.add_argument("--programs", type=whole, default=20, help="how many to list (default: 20)")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="arguments")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The script's own exit code; 1 if it raised."""
    import torch_tpu

    check_writable(args.html, args.output)
    with torch_tpu.debug.record_launches():
        code = run_script(args.script, args.arguments)
    report = torch_tpu.explain(html=args.html, programs=args.programs)
    text = report.to_json() if args.json else str(report)
    if args.output:
        Path(args.output).write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    return code
