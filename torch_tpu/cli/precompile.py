"""`torch-tpu precompile`: a pack of the programs that a script uses, or of the common ops."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_tpu.cli._common import CommandError, Progress, add_json, check_writable, show, size_text
from torch_tpu.cli._script import print_error, silent_fallbacks

_DESCRIPTION = """\
Compiles ahead, into one file that can be shipped:

  torch-tpu precompile train.py --steps 2 -o my.pack
      runs the script with its arguments and packs every program it used
  torch-tpu precompile --common -o ops.pack
      packs standard ops over common shapes and dtypes

Use it with TORCH_TPU_PACK=my.pack, or torch_tpu.load_pack("my.pack"). A pack fits the versions and
the kind of device it was made with.
"""


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "precompile",
        help="compile ahead into a pack",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the pack to write")
    parser.add_argument("--common", action="store_true", help="standard ops, no script")
    parser.add_argument(
        "--only", metavar="GLOB", default="*", help="with --common: ops of these names only"
    )
    parser.add_argument(
        "--dtypes", metavar="LIST", help="with --common: e.g. float32,bfloat16 (default: all)"
    )
    add_json(parser)
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="a Python file")
    parser.add_argument(
        "args",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="its arguments; a last '-o FILE [--json]' is ours where no -o came before SCRIPT",
    )
    parser.set_defaults(run=_run, usage_error=parser.error)


def _run(args: argparse.Namespace) -> int:
    if args.output is None:
        _take_last(args)
    if args.output is None:
        args.usage_error("say where the pack goes: -o FILE")
    if args.common == (args.script is not None):
        args.usage_error("give either a script or --common")
    output: Path = args.output.absolute()
    check_writable(args.output)
    if args.common:
        programs = _record(output, lambda: _run_common(args))
    else:
        script = Path(args.script)
        if not script.is_file():
            raise CommandError(f"there is no script {script}", code=2)
        programs = _record(output, lambda: _run_script(script, args.args))
    size = output.stat().st_size
    data = {"file": str(args.output), "programs": programs, "bytes": size}
    show(args, data, f"wrote {programs} programs, {size_text(size)}, to {args.output}")
    return 0


def _take_last(args: argparse.Namespace) -> None:
    """`-o FILE`, and --json after it, from the end of the script's arguments."""
    words = args.args[:-1] if args.args[-1:] == ["--json"] else args.args
    if len(words) >= 2 and words[-2] in ("-o", "--output"):
        args.json = args.json or len(words) < len(args.args)
        args.output = Path(words[-1])
        args.args = words[:-2]


def _record(output: Path, work: Callable[[], None]) -> int:
    import torch_tpu

    try:
        with torch_tpu.record_pack(output) as pack:
            work()
    except RuntimeError as error:
        if "the pack " not in str(error):
            raise
        raise CommandError(str(error)) from error
    return pack.programs


def _run_script(script: Path, arguments: list[str]) -> None:
    """As `python script arguments` would."""
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.resolve().parent)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise CommandError(f"{script} ended with {error.code}; no pack is written") from error
    except Exception as error:
        print_error(error, str(script))
        raise CommandError(f"{script} raised {type(error).__name__}; no pack is written") from error
    sys.stdout.flush()


def _run_common(args: argparse.Namespace) -> None:
    from torch_tpu import _common_ops

    dtypes = None if args.dtypes is None else args.dtypes.split(",")
    try:
        cases = _common_ops.select(args.only, dtypes)
    except ValueError as error:
        raise CommandError(str(error), code=2) from error
    if not cases:
        raise CommandError(f"no common op is called {args.only}", code=2)
    # The list has in it what one dtype or shape cannot do; that is no news to the user.
    progress = Progress(len(cases))
    with silent_fallbacks():
        for done, case in enumerate(cases):
            progress.update(done, case.name)
            case.run()
    progress.update(len(cases), "done")
