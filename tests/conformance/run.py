"""Runs PyTorch's own test data on the device against the CPU, over several processes.

    python -m conformance.run                     everything, resuming where it stopped
    python -m conformance.run --suites op --dtypes float32 --ops 'linalg.*'
    python -m conformance.run --again             only what was not right last time

Results go to build/conformance/results.jsonl, one line a task; docs/operators.md is written from
them when everything has been run (or with --report).
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import queue
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from .children import ROOT, Child, Task

RESULTS = ROOT / "build" / "conformance" / "results.jsonl"
SUITES = ("op", "forms", "transforms", "errors", "compile", "module", "optimizer")


def key_of(task: Task) -> str:
    return ":".join(str(task.get(k, "")) for k in ("suite", "name", "dtype", "mode"))


def all_tasks(suites: list[str], dtypes: list[str], pattern: str, samples: int) -> list[Task]:
    from .op_checks import DTYPES, OPS, dtypes_of

    tasks: list[Task] = []
    names = [n for n in OPS if fnmatch.fnmatch(n, pattern)]
    for suite in suites:
        if suite == "op":
            for dtype in dtypes or DTYPES:
                tasks += [
                    {"suite": suite, "name": n, "dtype": dtype, "samples": samples}
                    for n in names
                    if dtype in dtypes_of(OPS[n])
                ]
        elif suite in ("forms", "transforms", "errors", "compile"):
            for n in names:
                found = dtypes_of(OPS[n])
                dtype = "float32" if "float32" in found or not found else found[0]
                task = {"suite": suite, "name": n, "samples": min(samples, 2)}
                chosen = [dtype]
                if suite == "compile" and dtypes:
                    chosen = [d for d in dtypes if d in found]
                tasks += [{**task, "dtype": d} for d in chosen]
                if suite == "forms" and "complex64" in found and dtype != "complex64":
                    tasks.append({**task, "dtype": "complex64", "samples": 1})
        else:
            from .other_checks import MODULES, OPTIMIZERS

            if suite == "module":
                tasks += [
                    {"suite": suite, "name": n, "dtype": "float32", "mode": mode}
                    for n in MODULES
                    if fnmatch.fnmatch(n, pattern)
                    for mode in ("train", "eval")
                ]
            else:
                tasks += [
                    {"suite": suite, "name": n, "dtype": "float32"}
                    for n in OPTIMIZERS
                    if fnmatch.fnmatch(n, pattern)
                ]
    return tasks


def progress(done: int, total: int, counts: Counter[str], started: float, last: str) -> None:
    left = (time.monotonic() - started) / max(done, 1) * (total - done)
    bar = "#" * (30 * done // max(total, 1))
    text = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
    line = f"[{bar:<30}] {done}/{total} {text}; {left / 60:.0f} min left {last}"
    if sys.stderr.isatty():
        print(f"\r{line[:150]:<150}", end="", file=sys.stderr, flush=True)
    elif done % 200 == 0 or done == total:
        print(line, file=sys.stderr, flush=True)


def run_all(tasks: list[Task], jobs: int, timeout: float, results: Path) -> list[Task]:
    results.parent.mkdir(parents=True, exist_ok=True)
    todo: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        todo.put(task)
    lock = threading.Lock()
    counts: Counter[str] = Counter()
    found: list[Task] = []
    started = time.monotonic()

    def work() -> None:
        command = [sys.executable, "-m", "conformance.worker"]
        worker = Child(command, timeout, TORCH_TPU_FALLBACK="silent")
        while True:
            try:
                task = todo.get_nowait()
            except queue.Empty:
                worker.stop()
                return
            result = worker.run(task)
            with lock:
                found.append(result)
                counts[result["status"]] += 1
                with results.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                progress(len(found), len(tasks), counts, started, key_of(result))

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return found


def read_results(path: Path) -> dict[str, Task]:
    """The latest result of each task."""
    if not path.exists():
        return {}
    lines = (json.loads(line) for line in path.read_text().splitlines() if line.endswith("}"))
    return {key_of(result): result for result in lines}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="conformance.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--suites", default=",".join(SUITES), help="of " + ", ".join(SUITES))
    parser.add_argument("--dtypes", default="", help="for op (default: all nine) and compile")
    parser.add_argument("--ops", default="*", help="names as a shell pattern")
    parser.add_argument("--samples", type=int, default=3, help="of each OpInfo (default 3)")
    parser.add_argument("--dynamic", action="store_true", help="compile with sizes as symbols")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for one task")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--again", action="store_true", help="repeat what was not right")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="write docs/operators.md and stop")
    args = parser.parse_args()
    if args.report:
        from .report import write_report

        write_report(read_results(args.results))
        return 0
    if args.fresh:
        args.results.unlink(missing_ok=True)
    suites = args.suites.split(",")
    unknown = set(suites) - set(SUITES)
    if unknown:
        parser.error(f"no suite {', '.join(unknown)}; there are {', '.join(SUITES)}")
    tasks = all_tasks(suites, [d for d in args.dtypes.split(",") if d], args.ops, args.samples)
    if args.dynamic:
        tasks = [{**t, "mode": "dynamic"} if t["suite"] == "compile" else t for t in tasks]
    known = read_results(args.results)
    if args.again:
        bad = ("wrong", "raises", "hangs", "crashes")
        tasks = [t for t in tasks if known.get(key_of(t), {"status": "wrong"})["status"] in bad]
    else:
        tasks = [t for t in tasks if key_of(t) not in known]
    found = run_all(tasks, args.jobs, args.timeout, args.results)
    for result in found:
        if result["status"] not in ("right", "skipped"):
            print(f"{key_of(result)}: {result['status']}: {result.get('detail', '')[:200]}")
    counts = Counter(r["status"] for r in found)
    print(", ".join(f"{n} {what}" for what, n in sorted(counts.items())) or "nothing left to run")
    if args.ops == "*" and suites == list(SUITES) and not args.dtypes:
        from .report import write_report

        write_report(read_results(args.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
