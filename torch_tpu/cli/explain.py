"""torch-tpu explain [options] SCRIPT [arguments...]: runs a script, then says what was compiled and
run, and why."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any

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
    parser.add_argument("--programs", type=int, default=20, help="how many to list (default: 20)")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="arguments")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The script's own exit code; 1 if it raised."""
    import torch_tpu

    if not Path(args.script).is_file():
        print(f"torch-tpu explain: no file {args.script}", file=sys.stderr)
        return 2
    code = 0
    argv, path = sys.argv, sys.path[:]
    sys.argv = [args.script, *args.arguments]
    sys.path.insert(0, str(Path(args.script).resolve().parent))
    try:
        with torch_tpu.debug.record_launches():
            runpy.run_path(args.script, run_name="__main__")
    except SystemExit as end:
        code = _exit_code(end)
    except Exception:
        import traceback

        traceback.print_exc()
        code = 1
    finally:
        sys.argv, sys.path[:] = argv, path
    report = torch_tpu.explain(html=args.html, programs=args.programs)
    text = report.to_json() if args.json else str(report)
    if args.output:
        Path(args.output).write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    return code


def _exit_code(end: SystemExit) -> int:
    """As the interpreter takes `sys.exit(value)`."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1
