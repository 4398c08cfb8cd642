"""`torch-tpu aot`: compiles a model for a TPU that is not there, and reports on it."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_tpu.cli._build import BUILD_HELP, UsageError, add_traceback, call_build, unpack
from torch_tpu.cli._common import check_writable, positive

if TYPE_CHECKING:
    from torch_tpu.aot import Report

_DESCRIPTION = """\
Compiles a model or a step of training with the TPU's own compiler, which needs no TPU, and says
whether it fits, how long a step takes, and what is wasted where; see docs/aot.md.

  torch-tpu aot model.py:build --topology v5e:2x2
  torch-tpu aot model.py:build --shard fsdp --scan blocks --compare v5e:4x4 tpu7x:2x2x1

`build` returns a model and an example of its arguments, which may be on the device "meta":

  def build():
      with torch.device("meta"):
          model = MyModel()
      return model, (torch.empty(8, 128, device="meta"),)     # or a dict of keywords as a third

For training it returns a torch_tpu.aot.TrainStep(model, optimizer, loss) in the model's place.

  torch-tpu aot FOLDER --topology v5e:1x1 --pack my.pack
      compiles what `torch-tpu export` wrote, for the first run on the device to compile nothing
"""


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "aot",
        help="compile for a TPU that is not there, and report",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "build", metavar="SCRIPT:FUNCTION", help=f"{BUILD_HELP}; or a folder of torch-tpu export"
    )
    parser.add_argument(
        "--topology", metavar="NAME", help="such as v5e:2x2 (default) or tpu7x:2x2x1"
    )
    parser.add_argument(
        "--compare", nargs="+", metavar="NAME", default=[], help="several topologies side by side"
    )
    parser.add_argument(
        "--shard",
        choices=("fsdp", "data"),
        help="spread it over all devices: parameters and batch, or the batch only",
    )
    parser.add_argument(
        "--scan", metavar="LAYERS", help="a ModuleList of equal layers that becomes one loop"
    )
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="JSON, to FILE or out")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page with charts")
    parser.add_argument("--dump", type=Path, metavar="FILE", help="write the StableHLO module")
    parser.add_argument(
        "--pack", type=Path, metavar="FILE", help="write the compiled program into a pack"
    )
    parser.add_argument(
        "--timeout", type=positive, default=1800.0, metavar="S", help="of the compiler"
    )
    parser.add_argument(
        "--no-mxu", action="store_true", help="not the use of matrix units: compiles much faster"
    )
    add_traceback(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from torch_tpu import aot

    try:
        with _ended_by_exception():
            reports = _reports(args)
        _show(args, reports)
    except aot.AotError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        if error.filename is None:
            raise
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}") from error
    return 0 if all(r.fits for r in reports) else 2


@contextlib.contextmanager
def _ended_by_exception() -> Iterator[None]:
    """SIGTERM ends the compiler and removes its files too, as Ctrl-C does."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _reports(args: argparse.Namespace) -> list[Report]:
    from torch_tpu import aot

    names = args.compare or ["v5e:2x2" if args.topology is None else args.topology]
    if args.compare and args.topology is not None:
        names = [args.topology, *args.compare]
    for name in names:
        aot.parse_topology(name)
    if args.pack is not None and len(names) > 1:
        raise UsageError("a pack is for one topology: leave out --compare")
    check_writable(args.html, args.dump, args.pack, None if args.json == "-" else args.json)
    aot.require_libtpu_or_site()
    reports: list[Report] = []
    if Path(args.build).is_dir():
        if args.shard or args.scan:
            raise UsageError("an exported program is as it is: leave out --shard and --scan")
        for name in dict.fromkeys(names):
            for traced in aot.from_export(args.build):
                reports.append(
                    aot.compile_traced(
                        traced,
                        name,
                        timeout=args.timeout,
                        serialize=args.pack is not None,
                        mxu=not args.no_mxu,
                    )
                )
        return reports
    model, call_args, kwargs = unpack(call_build(args.build), args.build)
    for name in dict.fromkeys(names):
        reports.append(
            aot.compile(
                model,
                call_args,
                kwargs,
                name,
                shard=args.shard,
                scan=args.scan,
                timeout=args.timeout,
                serialize=args.pack is not None,
                mxu=not args.no_mxu,
            )
        )
    return reports


def _show(args: argparse.Namespace, reports: list[Report]) -> None:
    from torch_tpu.aot import write_pack
    from torch_tpu.aot.html import page
    from torch_tpu.aot.text import compare

    if args.html is not None:
        args.html.write_text(page(reports), encoding="utf-8")
    if args.dump is not None:
        args.dump.write_text(reports[0].module)
    if args.pack is not None:
        write_pack(reports, args.pack)
    data: Any = reports[0].to_dict()
    if len(reports) > 1:
        data = {"reports": [r.to_dict() for r in reports]}
    if args.json == "-":
        print(json.dumps(data, indent=2))
        return
    if args.json:
        Path(args.json).write_text(json.dumps(data, indent=2) + "\n")
    texts = [str(r) for r in reports]
    if len(reports) > 1:
        texts.append(compare(reports))
    print("\n\n".join(texts))
