"""The command line, `torch-tpu` or `python -m torch_tpu`.

A subcommand is one module of this folder with a function `register(subparsers)`, listed in
COMMANDS. It sets `run`, a function of the parsed arguments that returns the exit code: 0 done,
1 failed, 2 wrong usage. What a user did wrong is raised as `CommandError`. The device is loaded
before `run`, but for commands that set `needs_device=False`. A command module imports neither torch
nor the native module at its top.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence

from torch_tpu.cli import (
    aot,
    bench,
    cache,
    compare,
    completion,
    coverage,
    doctor,
    explain,
    export,
    flight,
    lint,
    precompile,
)
from torch_tpu.cli._common import CommandError
from torch_tpu.cli._device import load_device

COMMANDS = (
    doctor,
    bench,
    compare,
    explain,
    coverage,
    cache,
    precompile,
    export,
    aot,
    lint,
    flight,
    completion,
)

_DESCRIPTION = """\
Tools for PyTorch on TPUs.

  torch-tpu doctor                          what is wrong with this installation, and the fix
  torch-tpu compare train.py                a script on cpu, cuda and tpu: speed, memory, cost
  torch-tpu bench --workloads tiny300       the benchmark table against the peers installed here
  torch-tpu cache info                      what is kept of compiled programs, and where
  torch-tpu precompile train.py -o my.pack  compile ahead: a pack of all programs a script uses
  TORCH_TPU_PACK=my.pack python train.py    and a run that compiles nothing
  torch-tpu explain train.py                what a script compiles and runs, and why
  torch-tpu coverage train.py               which ops of a script run on the CPU instead
  torch-tpu export model.py:build -o folder a model as StableHLO with its weights
  torch-tpu aot model.py:build              compile for a TPU that is not there, and report
  torch-tpu lint model.py:build             what in a model is slow on a TPU
  torch-tpu flight folder                   which rank is missing in which collective

Every command takes --help, and --json where it prints something. Exit codes: 0 done, 1 failed,
2 wrong usage.
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
        if getattr(args, "needs_device", True):
            load_device()
        return int(args.run(args))
    except CommandError as error:
        if getattr(args, "traceback", False):
            traceback.print_exc()
        print(f"torch-tpu: {error}", file=sys.stderr)
        return error.code
    except BrokenPipeError:  # `torch-tpu ... | head`
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        print("torch-tpu: interrupted", file=sys.stderr)
        return 130
