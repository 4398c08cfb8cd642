"""Runs files of PyTorch's `test` folder, as they are, against the device.

    python -m pytorch_tests.run CHECKOUT                        all files written for any device
    python -m pytorch_tests.run CHECKOUT test_torch 'nn/*'      these
    python -m pytorch_tests.run CHECKOUT test_ops --sample 0.1  a random tenth; --seed gives another
    python -m pytorch_tests.run CHECKOUT --again                only what was not right last time
    python -m pytorch_tests.run CHECKOUT test_nn -k conv        tests with this in their name

Results go to build/pytorch-tests/MODE, a line a test; a run that was stopped goes on. A test that
fails is run on the CPU too: where it fails there, it says nothing of this device. The command fails
if any other test fails, hangs, crashes or takes too much memory, and is not in
tests/pytorch_tests/expected_failures.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from .expected import read_expected
from .files import LARGE, chosen_files
from .share import ROOT, Limits, Result, Share

RESULTS = ROOT / "build" / "pytorch-tests"
GOOD = ("passed", "skipped", "xfailed", "cpu too")


class Run:
    """All that was asked for: the shares, their results, what is shown of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.checkout = args.checkout.resolve()
        self.names = chosen_files(self.checkout, args.tests)
        self.folder = args.results.resolve() / args.mode
        self.limits = Limits(args.seconds, args.gigabytes)
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.results: dict[str, dict[str, Result]] = {name: self.read(name) for name in self.names}
        self.faults: dict[str, str] = {}
        self.started = self.shown = time.monotonic()

    def file_of(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '.')}.jsonl"

    def read(self, name: str) -> dict[str, Result]:
        """The latest result of each test, without those that shall run again."""
        path = self.file_of(name)
        if self.args.fresh:
            path.unlink(missing_ok=True)
        if not path.exists():
            return {}
        lines = (json.loads(line) for line in path.read_text().splitlines() if line.endswith("}"))
        found = {result["test"]: result for result in lines}
        if self.args.again:
            keys = self.args.key
            found = {
                test: result
                for test, result in found.items()
                if result["outcome"] in GOOD or (keys and not any(k in test for k in keys))
            }
        return found

    def order(self, share: int, shares: int) -> dict[str, Any]:
        args = self.args
        return {
            "share": [share, shares],
            "sample": args.sample,
            "seed": args.seed,
            "keys": args.key,
            "device_only": args.device_only,
        }

    def all(self) -> None:
        """Every share of every file, `jobs` at a time."""
        todo: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()
        for name in self.names:
            shares = self.args.jobs if name in LARGE else 1
            for share in range(shares):
                todo.put((name, share, shares))

        def work() -> None:
            while True:
                try:
                    name, share, shares = todo.get_nowait()
                except queue.Empty:
                    return
                with self.lock:
                    done = dict(self.results[name])
                part = Share(
                    self.checkout,
                    name,
                    "privateuse1",
                    self.order(share, shares),
                    self.limits,
                    done,
                )
                part.run(
                    self.folder / "steps" / f"{name.replace('/', '.')}.{share}",
                    lambda result, name=name: self.take(name, result),
                )
                if part.fault:
                    with self.lock:
                        self.faults[name] = part.fault
                self.twins(name, share, shares)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(self.args.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if sys.stderr.isatty():
            print(file=sys.stderr)

    def take(self, name: str, result: Result) -> None:
        with self.lock:
            self.results[name][result["test"]] = result
            self.counts[result["outcome"]] += 1
            with self.file_of(name).open("a") as file:
                file.write(json.dumps(result) + "\n")
            self.show(f"{name}::{result['test']}")

    def twins(self, name: str, share: int, shares: int) -> None:
        """Failed tests once more on the CPU, without this device; `cpu too`: they fail there."""
        if self.args.no_twins:
            return
        with self.lock:
            failed = {
                twin_of(test): test
                for test, result in self.results[name].items()
                if result["outcome"] not in GOOD and "twin" not in result
            }
        if not failed:
            return
        order = {**self.order(0, 1), "sample": 1, "keys": list(failed), "device_only": False}
        alone = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        part = Share(self.checkout, name, "cpu", order, self.limits, variables=alone)

        def say(result: Result) -> None:
            test = failed.get(result["test"])
            if test is None:
                return
            mine = {**self.results[name][test], "twin": result["outcome"]}
            if result["outcome"] not in GOOD:
                mine["outcome"] = "cpu too"
            self.take(name, mine)

        part.run(self.folder / "steps" / f"{name.replace('/', '.')}.{share}.cpu", say)

    def show(self, last: str) -> None:
        """A line that is written over on a terminal; a line every half minute in a log."""
        now = time.monotonic()
        every = 0.1 if sys.stderr.isatty() else 30
        if now - self.shown < every:
            return
        self.shown = now
        text = ", ".join(f"{n} {what}" for what, n in self.counts.most_common())
        line = f"{(now - self.started) / 60:.1f} min: {text}; {last}"
        if sys.stderr.isatty():
            print(f"\r{line[:150]:<150}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def report(self) -> int:
        """A line per file, then what is not right. The exit status."""
        expected = read_expected()
        bad: list[tuple[str, Result]] = []
        total: Counter[str] = Counter()
        columns = "passed", "skipped", "cpu too", "expected", "bad"
        print(f"{'file':<34}" + "{:>8}{:>9}{:>9}{:>9}{:>6}".format(*columns) + "  of run")
        for name, results in self.results.items():
            counts: Counter[str] = Counter()
            for test, result in sorted(results.items()):
                outcome = result["outcome"]
                if outcome not in GOOD:
                    reason = expected.reason_of(f"{name}::{test}", result["detail"])
                    outcome = "expected" if reason else "bad"
                    if outcome == "bad":
                        bad.append((f"{name}::{test}", result))
                counts["passed" if outcome == "xfailed" else outcome] += 1
            print(_row(name, counts))
            total += counts
        print(_row("all", total))
        for name, fault in self.faults.items():
            print(f"\n{name} did not run to its end: {fault}")
        if bad:
            print(f"\n{len(bad)} not right and not in the list of expected failures:")
            for test, result in bad:
                print(f"  {result['outcome']:<8} {test}  {last_line(result['detail'])[:160]}")
        return 1 if bad or self.faults else 0


def _row(name: str, counts: Counter[str]) -> str:
    run = counts["passed"] + counts["expected"] + counts["bad"]
    share = f"{100 * counts['passed'] / run:.1f} %" if run else "-"
    columns = (counts[c] for c in ("passed", "skipped", "cpu too", "expected", "bad"))
    return f"{name:<34}" + "{:>8}{:>9}{:>9}{:>9}{:>6}".format(*columns) + f"  {share:>7}"


def twin_of(test: str) -> str:
    """The name of the same test on the CPU."""
    test = re.sub("(PRIVATEUSE1|TPU)::", "CPU::", test).replace("GPUTests::", "CpuTests::")
    return test.replace("_tpu", "_cpu")


def last_line(text: str) -> str:
    """What was raised: the last line of a traceback that is not about how to run the test again."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for i, line in enumerate(lines):
        if line.startswith("To execute this test"):
            lines = lines[:i]
            break
    for line in reversed(lines):
        if "Error" in line or "Exception" in line:
            return line
    return lines[-1] if lines else ""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="pytorch_tests.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkout", type=Path, help="a checkout of PyTorch")
    parser.add_argument("tests", nargs="*", help="files below its folder `test`")
    parser.add_argument("-k", dest="key", action="append", default=[], help="part of a test's name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--mode", default="fused", choices=("fused", "strict", "debug"))
    parser.add_argument("--sample", type=float, default=1.0, help="share of the tests, at random")
    parser.add_argument("--seed", type=int, default=0, help="of --sample")
    parser.add_argument("--seconds", type=float, default=90.0, help="limit of one test")
    parser.add_argument("--gigabytes", type=float, default=8.0, help="limit of one process")
    parser.add_argument("--again", action="store_true", help="run again what was not right")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--device-only", action="store_true", help="only tests made for the device")
    parser.add_argument("--no-twins", action="store_true", help="do not run failures on the CPU")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are kept")
    parser.add_argument("--report", action="store_true", help="run nothing, show what is known")
    args = parser.parse_args()
    os.environ["TORCH_TPU_MODE"] = args.mode
    run = Run(args)
    run.folder.mkdir(parents=True, exist_ok=True)
    if not args.report:
        run.all()
    status = run.report()
    print(f"{(time.monotonic() - run.started) / 60:.1f} minutes")
    return status


if __name__ == "__main__":
    sys.exit(main())
