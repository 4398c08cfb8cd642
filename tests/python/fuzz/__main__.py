"""Long runs: random programs on the device against the CPU.

    python -m fuzz --seeds 0:500 --mode fused --compile-when first
    python -m fuzz --seeds 17:18 --print     shows the program
    python -m fuzz --seeds 0:100 --sizes     each with sizes that change, as bounded programs serve

From tests/python. The exit status is 1 if a program fails; its listing can be run on its own.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys

import torch_tpu

from .check import COMPILE_WHEN, MODES, Setting, check_sizes, report, stable_program
from .program import HEADER, listing


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0:100", metavar="FIRST:END")
    parser.add_argument("--mode", choices=MODES, default="fused")
    parser.add_argument("--compile-when", choices=COMPILE_WHEN)
    parser.add_argument("--blocks", type=int, default=5, help="length of a program (default 5)")
    parser.add_argument("--trips", type=int, default=6, help="of a loop, at most (default 6)")
    parser.add_argument("--seconds", type=float, default=60.0, help="to make a failing one small")
    parser.add_argument("--sizes", action="store_true", help="each program with several sizes")
    parser.add_argument("--print", action="store_true", help="print the programs, run nothing")
    args = parser.parse_args()
    setting = Setting(args.mode, args.compile_when)
    if setting.missing():
        sys.exit(setting.missing())
    faulthandler.enable()
    failed: list[int] = []
    first, end = (int(n) for n in args.seeds.split(":"))
    for seed in range(first, end):
        # Before it runs: a crash must leave the seed behind.
        print(f"\rseed {seed}, {len(failed)} failed", end="", file=sys.stderr, flush=True)
        nodes = stable_program(seed, args.blocks, args.trips)
        if args.print:
            print(f"{HEADER}device = {'tpu'!r}\n{listing(nodes)}\n")
            continue
        if args.sizes:
            failure, done = check_sizes(nodes, setting)
            text = f"seed {seed}, {done} sizes were right: {failure}" if failure else None
        else:
            text = report(seed, nodes, setting, args.seconds)
        if text is not None:
            failed.append(seed)
            print(f"\n{text}", flush=True)
    if args.sizes:
        print(f"\n{torch_tpu.stats()['fused']}", file=sys.stderr)
    print(f"\n{end - first} programs, failed: {failed or 'none'}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
