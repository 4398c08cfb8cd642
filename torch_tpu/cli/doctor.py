"""`torch-tpu doctor`: what is wrong with this installation, and the fix."""

from __future__ import annotations

import argparse
import json
import textwrap
from dataclasses import asdict
from typing import Any

from torch_tpu import __version__
from torch_tpu._doctor import Finding, Places, diagnose
from torch_tpu.cli._common import add_json, positive

_DESCRIPTION = """\
Looks at packages and their versions, plugins, chips and permissions, the cache folder, disks and
variables, and runs one op in a child process. Says for each thing that is wrong how to put it
right. It works where torch_tpu itself cannot be imported.

exit code: 0 healthy (there may be warnings), 1 problems were found, 2 wrong usage
"""


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "doctor",
        help="find what is wrong with this installation, and the fix",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        default=120.0,
        metavar="SECONDS",
        help="for the self test (default: 120)",
    )
    parser.add_argument("--no-self-test", action="store_true", help="start no device")
    add_json(parser)
    parser.set_defaults(run=_run, needs_device=False)


def _run(args: argparse.Namespace) -> int:
    places = Places(timeout=args.timeout)
    found = []
    for finding in diagnose(places, self_test=not args.no_self_test):
        found.append(finding)
        if not args.json:
            print(_text(finding), flush=True)
    problems = sum(finding.status == "problem" for finding in found)
    warnings = sum(finding.status == "warning" for finding in found)
    if args.json:
        data = {
            "version": __version__,
            "healthy": problems == 0,
            "problems": problems,
            "warnings": warnings,
            "findings": [asdict(finding) for finding in found],
        }
        print(json.dumps(data, indent=2))
    else:
        counts = f"{problems} problem(s), {warnings} warning(s)"
        print(f"\n{'healthy' if problems == 0 else 'not healthy'}: {counts}")
    return 1 if problems else 0


def _text(finding: Finding) -> str:
    lines = [f"{finding.status:<8} {finding.check:<16} {finding.message}"]
    if finding.fix:
        body = textwrap.wrap(finding.fix, width=90, break_long_words=False, break_on_hyphens=False)
        lines += [f"{'':<8} {'fix:' if n == 0 else '':<16} {line}" for n, line in enumerate(body)]
    return "\n".join(lines)
