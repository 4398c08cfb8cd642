"""Mixes threads, modes, devices, views, compiled functions, bad indices and too little memory at
random, in one process, and compares every value with the CPU's, exactly.

    python -m stress --minutes 10 --seed 0              from tests/python
    python -m stress --seed 0 --first-round 17 --rounds 1   one round again
    python -m stress --minutes 1 --mode strict --threads 4 --without bad_index,bad_write

Exit status: 0, 1 if a value, an error or the memory in use is wrong, 3 if a thread hangs. A failure
prints the seed, the round and all lines that its threads ran.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
import traceback
from contextlib import ExitStack


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="stress", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, help="how long (default 1, without --rounds)")
    parser.add_argument("--rounds", type=int, help="how many rounds at most")
    parser.add_argument("--first-round", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="default: 2 to 8, drawn")
    parser.add_argument(
        "--mode",
        choices=("mixed", "strict", "fused", "debug"),
        default="mixed",
        help="mixed (default): another one in each round, and also while threads run",
    )
    parser.add_argument("--devices", type=int, default=3, help="of XLA:CPU (default 3)")
    parser.add_argument("--memory", type=int, default=256, metavar="MIB", help="of a device")
    parser.add_argument("--only", default="", metavar="ACTS", help="such as pure,parts")
    parser.add_argument("--without", default="", metavar="ACTS")
    parser.add_argument("--hang", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--every", type=float, default=10.0, metavar="SECONDS", help="of a line")
    parser.add_argument("--log", metavar="FILE", help="each line as it happens, for crashes")
    args = parser.parse_args()
    if args.minutes is None:
        args.minutes = 1.0 if args.rounds is None else 24 * 60.0
    return args


def main() -> int:
    args = arguments()
    os.environ["TORCH_TPU_CPU_DEVICES"] = str(args.devices)
    # Threads cut other pieces each time. So a long run meets programs without end, and drops some.
    os.environ.setdefault("TORCH_TPU_CACHE_SIZE", "1500")
    import torch

    from . import compiled
    from .history import History
    from .rounds import ACTS, Options, Round, RoundFailedError
    from .watch import Growth, Watchdog, programs_made, rss_bytes

    faulthandler.enable()
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-4)
    given, left_out = (set(filter(None, text.split(","))) for text in (args.only, args.without))
    if unknown := (given | left_out) - set(ACTS):
        sys.exit(f"no such acts: {', '.join(sorted(unknown))}; there are {', '.join(ACTS)}")
    acts = tuple(name for name in ACTS if name in (given or ACTS) and name not in left_out)
    options = Options(args.seed, args.mode, args.threads, args.devices, acts)

    start = time.monotonic()
    number = args.first_round
    running: Round | None = None

    def report(problem: str) -> None:
        again = f"--seed {args.seed} --first-round {number} --rounds 1 --mode {args.mode}"
        for flag in ("threads", "only", "without"):
            if value := getattr(args, flag):
                again += f" --{flag} {value}"
        again += f" --devices {args.devices} --memory {args.memory}"
        print(f"\nFAILED in round {number} of seed {args.seed}: {problem}")
        print(f"{running}\nagain: python -m stress {again}\n\n{history.text()}", flush=True)

    def progress() -> None:
        seconds = time.monotonic() - start
        print(
            f"{number - args.first_round} rounds, {history.count} lines, {seconds:.0f} s, "
            f"RSS {rss_bytes() >> 20} MiB, {programs_made()} programs",
            flush=True,
        )

    with ExitStack() as stack:
        log = stack.enter_context(open(args.log, "w")) if args.log else None
        history = History(log)
        growth = Growth()
        stack.enter_context(Watchdog(history, args.hang, report))
        uses_them = not compiled.ACTS.isdisjoint(acts)
        functions = compiled.traced(history) if uses_them else compiled.PLAIN
        for n in range(args.devices):
            _, total = torch.tpu.mem_get_info(n)
            torch.tpu.set_per_process_memory_fraction((args.memory << 20) / total, n)
        start = said = time.monotonic()
        until = start + 60.0 * args.minutes
        while time.monotonic() < until and number - args.first_round != args.rounds:
            running = Round(options, number, history, functions, until)
            try:
                running.run()
                history.say("main", "# quiet")
                problem = growth.problem()
                history.rest("main")
            except RoundFailedError as error:
                traceback.print_exception(error.__cause__)
                problem = str(error)
            except Exception as error:  # before the threads, or when they have ended
                traceback.print_exception(error)
                problem = f"{type(error).__name__}: {error}"
            if problem is not None:
                report(problem)
                return 1
            number += 1
            if time.monotonic() - said > args.every:
                said = time.monotonic()
                progress()
        progress()
    print("all right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
