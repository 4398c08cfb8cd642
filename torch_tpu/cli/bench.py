"""`torch-tpu bench`: the benchmark table, against whatever peers are installed. The benchmarks
themselves are part of the source tree, not of the wheel."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch_tpu.cli._common import CommandError, add_json, positive

_DESCRIPTION = """\
Times workloads on our modes beside PyTorch's own device, JAX, and other packages where they are
installed. All take turns, so ratios mean more than times. `--list` names workloads and contestants;
docs/benchmarks.md says more.

exit code: 0 done, 1 one of our modes failed, 2 wrong usage
"""


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "bench",
        help="the benchmark table against the peers installed here",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", metavar="A,B", help="which (default: all)")
    parser.add_argument("--contestants", metavar="A,B", help="which (default: all that are found)")
    parser.add_argument("--rounds", type=int, metavar="N", help="turns of each (default: 5)")
    parser.add_argument(
        "--seconds", type=positive, metavar="S", help="least length of a turn (default: 0.5)"
    )
    parser.add_argument("--reference", choices=("cpu", "cuda"), help="PyTorch's own device")
    parser.add_argument("--timeout", type=positive, metavar="S", help="for an answer")
    parser.add_argument(
        "--list", action="store_true", help="name workloads and contestants, and end"
    )
    parser.add_argument(
        "--source", type=Path, metavar="FOLDER", help="the source tree, where it is not around us"
    )
    add_json(parser)
    parser.set_defaults(run=_run, needs_device=False)


def _run(args: argparse.Namespace) -> int:
    script = _script(args.source)
    command = [sys.executable, str(script)]
    if args.list:
        command.append("--list")
    for name in ("workloads", "contestants", "rounds", "seconds", "reference", "timeout"):
        value = getattr(args, name)
        if value is not None:
            command += [f"--{name}", str(value)]
    if not args.json:
        return subprocess.run(command, check=False).returncode
    with tempfile.TemporaryDirectory(prefix="torch_tpu_bench_") as folder:
        output = Path(folder) / "results.json"
        done = subprocess.run([*command, "--json", str(output)], stdout=sys.stderr, check=False)
        if output.is_file():
            print(output.read_text(encoding="utf-8"), end="")
        return done.returncode


def _script(source: Path | None) -> Path:
    """benchmarks/run.py of the tree given, or of the checkout this package lies in."""
    root = source if source is not None else Path(__file__).resolve().parents[2]
    script = root / "benchmarks" / "run.py"
    if not script.is_file():
        raise CommandError(
            f"there are no benchmarks in {root}. They come with the source tree, not with the "
            "wheel: unpack the source package (pip download --no-deps --no-binary :all: torchtpu) "
            "and give its folder as --source.",
            code=2,
        )
    return script
