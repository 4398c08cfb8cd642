"""`torch-tpu lint`: what in a model is slow on a TPU; needs neither a TPU nor libtpu."""

from __future__ import annotations

import argparse
from typing import Any

from torch_tpu.cli._build import BUILD_HELP, UsageError, add_traceback, call_build, unpack
from torch_tpu.cli._common import add_json

_DESCRIPTION = """\
Runs a model once without memory and says what is slow on a TPU: the line, the cost, the fix. See
docs/lint.md.

  torch-tpu lint model.py:build

`build` returns a model (or a torch_tpu.aot.TrainStep) and an example of its arguments:

  def build():
      return MyModel(), (torch.zeros(8, 128),)          # or a dict of keywords as a third

A list of such examples shows which sizes change, and what to do about it.
"""


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "lint",
        help="what in a model is slow on a TPU",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("build", metavar="SCRIPT:FUNCTION", help=BUILD_HELP)
    parser.add_argument(
        "--generation", default="v5e", metavar="NAME", help="whose costs: v5e (default), tpu7x, ..."
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 when there are hints")
    add_json(parser)
    add_traceback(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from torch_tpu._lint.findings import run
    from torch_tpu.aot import AotError

    try:
        model, call_args, kwargs = unpack(call_build(args.build), args.build, samples=True)
        found = run(model, call_args, kwargs, args.generation)
    except AotError as error:
        raise UsageError(str(error)) from error
    print(found.to_json() if args.json else str(found))
    return 1 if args.strict and len(found) else 0
