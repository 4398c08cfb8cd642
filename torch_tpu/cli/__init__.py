"""The command line, `torch-tpu` or `python -m torch_tpu`.

A subcommand is one module of this folder with a function `register(subparsers)`, listed in
COMMANDS. It sets `run`, a function of the parsed arguments that returns the exit code: 0 done,
1 failed, 2 wrong usage. What a user did wrong is raised as `CommandError`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torch_tpu.cli import aot, cache, explain, export, lint, precompile
from torch_tpu.cli._common import CommandError

COMMANDS = (cache, precompile, explain, export, aot, lint)

_DESCRIPTION = """\
Tools for PyTorch on TPUs.

  torch-tpu cache info                      what is kept of compiled programs, and where
  torch-tpu precompile train.py -o my.pack  compile ahead: a pack of all programs a script uses
  TORCH_TPU_PACK=my.pack python train.py    and a run that compiles nothing
  torch-tpu explain train.py                what a script compiles and runs, and why
  torch-tpu export model.py:build -o folder a model as StableHLO with its weights
  torch-tpu aot model.py:build              compile for a TPU that is not there, and report
  torch-tpu lint model.py:build             what in a model is slow on a TPU
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    from torch_tpu import __version__

    out = argparse.ArgumentParser(
        prog="torch-tpu",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("--version", action="version", version=f"torch-tpu {__version__}")
    subparsers = out.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.register(subparsers)
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    args = parser().parse_args(arguments)
    try:
        return int(args.run(args))
    except CommandError as error:
        print(f"torch-tpu: {error}", file=sys.stderr)
        return error.code
    except BrokenPipeError:  # `torch-tpu ... | head`
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        print("torch-tpu: interrupted", file=sys.stderr)
        return 130
