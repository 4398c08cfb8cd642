"""`torch-tpu compare`: the same script on several devices, side by side."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from torch_tpu.cli._common import CommandError, add_json, check_writable, positive, whole

_DESCRIPTION = """\
Runs one PyTorch script on each device, one after the other, in processes of their own, and puts
speed, latency, memory, energy and cost side by side. See docs/compare.md.

  torch-tpu compare train.py --devices cpu,tpu --steps 50
  torch-tpu compare --devices cuda,tpu train.py --device {device} --batch 8

The script gets its device as torch's default device, in the variable TORCH_TPU_COMPARE_DEVICE, and
wherever its arguments say {device}. A step is what `torch_tpu.compare.step()` marks; else a step of
an optimizer; else a call of the outermost module. Options come before SCRIPT or right after it;
after `--` all are the script's.

exit code: 0 all devices ran, 1 one of them failed, 2 wrong usage
"""
_DEVICE = re.compile(r"(cpu|cuda|tpu)(:\d+)?")


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "compare",
        help="run a script on several devices: speed, latency, memory, energy, cost",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--devices", default="cpu,tpu", metavar="A,B", help="cpu, cuda, tpu (default: cpu,tpu)"
    )
    parser.add_argument("--steps", type=whole, metavar="N", help="end a run after N measured steps")
    parser.add_argument(
        "--warmup", type=_count0, default=5, metavar="N", help="steps not counted (default: 5)"
    )
    parser.add_argument(
        "--no-sync", action="store_true", help="do not wait for the device after each step"
    )
    parser.add_argument(
        "--timeout", type=positive, default=3600.0, metavar="SECONDS", help="per device"
    )
    parser.add_argument(
        "--tokens", type=whole, default=0, metavar="N", help="tokens of a step, for the cost"
    )
    parser.add_argument(
        "--prices", type=Path, metavar="FILE", help="a TOML table; see --write-prices"
    )
    parser.add_argument(
        "--write-prices", type=Path, metavar="FILE", help="write a table to fill in, and end"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page")
    parser.add_argument("--quiet", action="store_true", help="do not show what the script prints")
    add_json(parser)
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    parser.set_defaults(run=_run, needs_device=False, usage_error=parser.error, again=parser)


def _count0(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected a number from 0, got {text}")
    return value


def _run(args: argparse.Namespace) -> int:
    from torch_tpu._compare import html, prices, report
    from torch_tpu._compare.measure import Settings, measure

    if args.write_prices is not None:
        return _write_prices(args.write_prices, prices.TEMPLATE)
    if args.script is None:
        args.usage_error("say which script: SCRIPT")
    if not Path(args.script).is_file():
        raise CommandError(f"there is no script {args.script}", code=2)
    _own_options(args)
    devices = list(dict.fromkeys(name.strip() for name in args.devices.split(",")))
    for name in devices:
        if not _DEVICE.fullmatch(name):
            args.usage_error(f"no device {name!r}: expected some of cpu, cuda, tpu")
    check_writable(args.html)
    settings = Settings(
        script=Path(args.script),
        arguments=args.arguments,
        steps=args.steps,
        warmup=args.warmup,
        sync=not args.no_sync,
        timeout=args.timeout,
        tokens=args.tokens,
        prices=_prices(args, prices),
    )
    rows = []
    for device in devices:
        print(f"{device}:", file=sys.stderr, flush=True)
        rows.append(measure(device, settings, args.quiet))
    if args.html is not None:
        args.html.write_text(html.page(rows, settings), encoding="utf-8")
    data = report.document(rows, settings)
    print(json.dumps(data, indent=2) if args.json else report.text(rows, settings))
    return 1 if any(row.failure for row in rows) else 0


def _own_options(args: argparse.Namespace) -> None:
    """Options right behind the script are ours too: `compare train.py --devices cpu,tpu`. The first
    word that is none of ours, or `--`, begins the script's own."""
    known = {
        text: action
        for action in args.again._actions
        for text in action.option_strings
        if action.dest != "help"
    }
    rest = list(args.arguments)
    taken: list[str] = []
    while rest and rest[0] != "--":
        name, sign, _ = rest[0].partition("=")
        if name not in known:
            break
        taken.append(rest.pop(0))
        if known[name].nargs != 0 and not sign and rest:
            taken.append(rest.pop(0))
    if rest and rest[0] == "--":
        rest.pop(0)
    script = args.script
    args.again.parse_args([*taken, script], namespace=args)
    args.arguments = rest


def _prices(args: argparse.Namespace, prices: Any) -> Any:
    path = args.prices
    if path is None:
        path = prices.default_path()
        if not path.is_file():
            return None
    try:
        return prices.read(path)
    except prices.PriceError as error:
        raise CommandError(str(error), code=2) from error


def _write_prices(path: Path, text: str) -> int:
    if path.exists():
        raise CommandError(f"{path} is there already", code=2)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}", code=2) from error
    print(f"wrote {path}: fill in what an hour of each device costs")
    return 0
