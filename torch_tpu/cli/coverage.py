"""`torch-tpu coverage`: which ops of a script ran on the CPU for want of a lowering."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from torch_tpu.cli._common import CommandError, add_json, check_writable
from torch_tpu.cli._script import run_script, silent_fallbacks

_DESCRIPTION = """\
Runs SCRIPT as `python SCRIPT` would, then lists the ops that had no lowering and ran on the CPU:
how often, and how long that took, transfers included. Options come before SCRIPT; what follows it
are the script's own arguments. docs/operators.md lists all ops.

exit code: the script's own; with --strict 1 when an op ran on the CPU; 2 wrong usage
"""


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "coverage",
        help="run a script and list the ops that ran on the CPU instead",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_json(parser)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the list there")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if there is such an op")
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    import torch_tpu

    check_writable(args.output)
    with silent_fallbacks():  # they are listed at the end
        code = run_script(args.script, args.arguments)
    used = torch_tpu.coverage()
    launches = torch_tpu.stats()["launches"]
    data = {
        "script": args.script,
        "exit_code": code,
        "launches": launches,
        "fallbacks": {op: {"calls": u.calls, "seconds": u.seconds} for op, u in used.items()},
    }
    lines = [f"{launches} programs launched, {len(used)} ops ran on the CPU"]
    if used:
        width = max(len(op) for op in used)
        lines.append(f"\n{'op':<{width}}  {'calls':>8}  {'seconds':>10}")
        lines += [f"{op:<{width}}  {u.calls:>8}  {u.seconds:>10.4f}" for op, u in used.items()]
    text = json.dumps(data, indent=2) if args.json else "\n".join(lines)
    if args.output is not None:
        try:
            args.output.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{args.output}: {error.strerror}", code=2) from error
    else:
        print(text)
    return 1 if args.strict and used and code == 0 else code
