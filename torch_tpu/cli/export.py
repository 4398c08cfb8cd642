"""`torch-tpu export`: a model that a script builds, as a folder that runs anywhere."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

from torch_tpu.cli._build import BUILD_HELP, UsageError, add_traceback, call_build, unpack
from torch_tpu.cli._common import add_json, show, size_text

_DESCRIPTION = """\
Exports a model as a StableHLO module with its weights; see docs/export.md.

  torch-tpu export model.py:build -o folder

calls the function `build` of model.py, which returns the model and an example of its arguments:

  def build():
      return MyModel().eval(), (torch.zeros(1, 8),)           # or a dict of keywords as a third
"""


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "export",
        help="write a model as StableHLO with its weights",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("build", metavar="SCRIPT:FUNCTION", help=BUILD_HELP)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", required=True, help="where to write"
    )
    parser.add_argument(
        "--target",
        choices=("any", "cpu", "cuda", "tpu"),
        default="any",
        help="the device it is for (default: any)",
    )
    add_json(parser)
    add_traceback(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    import torch_tpu
    from torch_tpu._user_line import line_of

    model, example, keywords = unpack(call_build(args.build), args.build)
    if not args.traceback:
        logging.disable(logging.ERROR)  # torch logs tracebacks of what it raises
    try:
        torch_tpu.export(model, example, keywords, path=args.output, target=args.target)
    except Exception as error:
        if str(error).startswith("[export]"):
            raise UsageError(str(error).removeprefix("[export] ")) from error
        text = f"the model cannot be exported. {type(error).__name__}: {str(error).strip()[:1500]}"
        if where := line_of(error).told():
            text += f"\n {where}"
        raise UsageError(
            f"{text}\nCall it with the same arguments on the CPU until it runs, then export it "
            "(--traceback shows the whole way)."
        ) from error
    finally:
        logging.disable(logging.NOTSET)
    size = sum(file.stat().st_size for file in args.output.iterdir())
    data = {"folder": str(args.output), "bytes": size}
    show(args, data, f"wrote {type(model).__name__}, {size_text(size)}, to {args.output}")
    return 0
