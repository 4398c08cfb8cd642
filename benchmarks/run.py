"""Measures this backend beside PyTorch's own devices, JAX and the torch-tpu package from PyPI.

Every contestant runs in a child process of its own. For each workload all are started, each does
its first call (cold), and then they take turns, round after round, so that a busy machine slows all
of them alike: look at the ratios rather than at the times. A call counts until its result is
really there. Contestants start from the same weights, and the numbers they compute are compared.

    python benchmarks/run.py --workloads tiny300,mlp --rounds 3
    python benchmarks/run.py --reference cuda --json results.json

A row's compiles are those of its first and its second call. Where shapes change, the second shows
what is compiled again; each later call should compile nothing.

Peers live in another interpreter, named by TORCH_TPU_BENCH_PEER_PYTHON. Without one they are left
out, and a line says how to install them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from child import Worker, WorkerError
from contestants import OPTIONAL, Contestant, find
from report import Result, Table, summary
from spec import DEFAULT, FRESH, GROUPS, WORKLOADS

MIN_CALLS = 3
FRESH_ROUNDS = 3  # a new process each: most of the time is imports


def say(text: str) -> None:
    """Progress, beside the results on stdout."""
    print(text, file=sys.stderr, flush=True)


def wrong(text: str) -> NoReturn:
    """Wrong usage."""
    say(text)
    raise SystemExit(2)


@contextlib.contextmanager
def started(chosen: list[Contestant], args: argparse.Namespace) -> Iterator[dict[str, Worker]]:
    """Workers of all contestants, by name; imports run side by side, nothing is measured yet."""
    with tempfile.TemporaryDirectory(prefix="torch_tpu_bench_") as folder:
        workers = {c.name: Worker(c, Path(folder), args.timeout) for c in chosen}
        try:
            for worker in workers.values():
                worker.send(do="start")
            yield workers
        finally:
            for worker in workers.values():
                worker.close()


@contextlib.contextmanager
def attempt(result: Result) -> Iterator[None]:
    """A failure of the contestant is its result, and everybody else goes on."""
    try:
        yield
    except WorkerError as failure:
        say(f"  {result.contestant}: {failure}")
        result.failure = str(failure)


def greet(work: str, results: dict[str, Result], workers: dict[str, Worker]) -> None:
    """Takes the answers to "start"; who does not have the workload does not take part."""
    for result in list(results.values()):
        with attempt(result):
            answer = workers[result.contestant].receive()
            result.about = answer["about"]
            if work not in answer["works"]:
                del results[result.contestant]
    say(f"{work}: {', '.join(results)}")


def turns(results: dict[str, Result], number: int) -> list[Result]:
    """Who is still in, in this round's order."""
    active = [result for result in results.values() if not result.failure]
    shift = number % max(1, len(active))
    return active[shift:] + active[:shift]


def measure(work: str, chosen: list[Contestant], args: argparse.Namespace) -> Table:
    """One workload: everybody's cold call, then turns."""
    results = {c.name: Result(c.name, c.kind, c.mode) for c in chosen}
    with started(chosen, args) as workers:
        greet(work, results, workers)
        for result in turns(results, 0):
            with attempt(result):
                answer = workers[result.contestant].ask(do="prepare", work=work)
                result.prepared(answer)
                say(f"  {result.contestant}: first call {result.first:.3g} s")
        for number in range(args.rounds):
            for result in turns(results, number):
                with attempt(result):
                    worker = workers[result.contestant]
                    answer = worker.ask(do="time", seconds=args.seconds, calls=MIN_CALLS)
                    result.blocks.append(answer["times"])
                    result.cpu.append(answer["cpu"])
            say(f"  round {number + 1} of {args.rounds}")
        for result in turns(results, 0):
            with attempt(result):
                result.stats = workers[result.contestant].ask(do="stats")
        if args.restart:
            for result in turns(results, 0):
                if result.kind == "ours":
                    with attempt(result):
                        result.again = first_call(workers[result.contestant], work, True)[0]
    return Table(work, WORKLOADS[work], list(results.values()))


def measure_fresh(work: str, chosen: list[Contestant], args: argparse.Namespace) -> Table:
    """One workload of new processes: each round, everybody's first call in one."""
    fresh = FRESH[work]
    results = {c.name: Result(c.name, c.kind, c.mode) for c in chosen}
    with started(chosen, args) as workers:
        greet(fresh.work, results, workers)
        if fresh.keeps_cache:
            for result in turns(results, 0):
                with attempt(result):  # fills the cache
                    workers[result.contestant].ask(do="prepare", work=fresh.work)
        for number in range(min(args.rounds, FRESH_ROUNDS)):
            for result in turns(results, number):
                with attempt(result):
                    worker = workers[result.contestant]
                    seconds, answer = first_call(worker, fresh.work, fresh.keeps_cache)
                    result.prepared(answer)
                    result.blocks.append([seconds])
                    say(f"  {result.contestant}: {seconds:.3g} s")
    return Table(work, WORKLOADS[work], list(results.values()))


def first_call(worker: Worker, work: str, keeps_cache: bool) -> tuple[float, dict[str, Any]]:
    """The first call of a new process: its time, and all the process says about it."""
    worker.restart(keeps_cache)
    worker.ask(do="start")
    answer = worker.ask(do="prepare", work=work, warm_up=False)
    return answer["first_seconds"], answer


def parse_args() -> argparse.Namespace:
    """The command line."""
    works = "\n".join(f"  {name:<12} {what}" for name, what in WORKLOADS.items())
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"workloads:\n{works}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--workloads",
        default=",".join(DEFAULT),
        metavar="A,B",
        help=f"which, or {', '.join(GROUPS)} for all of that name (default: all but these)",
    )
    parser.add_argument(
        "--contestants",
        metavar="A,B",
        help=f"by name or the part before the dash (default: all but {', '.join(OPTIONAL)})",
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (default: 5)")
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="least length of a turn (default: 0.5)"
    )
    parser.add_argument(
        "--reference",
        choices=("cpu", "cuda"),
        default="cpu",
        help="PyTorch's own device to compare with; it also chooses our plugin (default: cpu)",
    )
    parser.add_argument(
        "--restart",
        action="store_true",
        help="also time our first call in a second process, with the cache on disk filled",
    )
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds to wait for an answer (default: 600)"
    )
    parser.add_argument(
        "--list", action="store_true", help="name workloads and contestants, and end"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all times here")
    return parser.parse_args()


def choose(args: argparse.Namespace) -> list[Contestant]:
    """The contestants asked for; says who is left out."""
    found, left_out = find(args.reference)
    for line in left_out:
        say(f"left out, {line}")
    if args.contestants is None:
        return [c for c in found if c.name not in OPTIONAL]
    asked = args.contestants.split(",")
    known = {c.name for c in found} | {c.kind for c in found}
    if unknown := [name for name in asked if name not in known]:
        wrong(f"no contestant {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return [c for c in found if c.name in asked or (c.kind in asked and c.name not in OPTIONAL)]


def document(tables: list[Table], args: argparse.Namespace, load: float) -> dict[str, Any]:
    """What --json writes."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpus": os.cpu_count(),
        "load": [load, os.getloadavg()[0]],
        "reference": args.reference,
        "rounds": args.rounds,
        "workloads": {table.workload: table.json() for table in tables},
    }


def names(args: argparse.Namespace) -> int:
    """What --list shows: workloads, and the contestants that there are here."""
    found, left_out = find(args.reference)
    optional = {c.name: c.name in OPTIONAL for c in found}
    if args.json is not None:
        contestants = [{"name": name, "optional": only} for name, only in optional.items()]
        data = {"workloads": WORKLOADS, "contestants": contestants, "left_out": left_out}
        args.json.write_text(json.dumps(data, indent=1) + "\n")
    width = max(map(len, [*WORKLOADS, *optional]))
    print("workloads")
    print("\n".join(f"  {name:<{width}}  {what}" for name, what in WORKLOADS.items()))
    print("\ncontestants")
    for name, only_asked in optional.items():
        print(f"  {name:<{width}}  only when asked for" if only_asked else f"  {name}")
    print("\n".join(f"left out, {line}" for line in left_out))
    return 0


def main() -> int:
    """Runs the workloads asked for; the exit code is 1 if one of ours failed."""
    args = parse_args()
    if args.list:
        return names(args)
    works = [one for name in args.workloads.split(",") for one in GROUPS.get(name, (name,))]
    if unknown := [name for name in works if name not in WORKLOADS]:
        wrong(f"no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    chosen = choose(args)
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} CPUs, load {load:.1f} at the start, reference {args.reference}\n")
    tables: list[Table] = []
    for work in works:
        tables.append((measure_fresh if work in FRESH else measure)(work, chosen, args))
        print(tables[-1].text() + "\n", flush=True)
        if args.json is not None:  # after each, so that a run cut short leaves what it has
            args.json.write_text(json.dumps(document(tables, args, load), indent=1) + "\n")
    for which in ("best", "median", "first", "second"):
        print(summary(tables, which) + "\n")
    ours = [r for table in tables for r in table.results if r.kind == "ours"]
    return 1 if any(r.failure for r in ours) else 0


if __name__ == "__main__":
    sys.exit(main())
