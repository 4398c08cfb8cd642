"""Runs the C++ tests and the Python tests of tests.txt against a sanitized build of csrc.

Usage: python tests/sanitize/run.py address|thread BUILD_FOLDER [--only TEXT] [PYTEST ARGUMENT...]

Python, torch and XLA are as shipped: the sanitizer's runtime is preloaded into them. It sees their
allocations and their pthread locks, but not the memory they touch. Reports of all processes, child
processes included, go to BUILD_FOLDER/reports; one of them fails the run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# A test stops at the first error of memory. Races are collected: one does not make the next wrong.
OPTIONS = {
    "address": {
        "ASAN_OPTIONS": {
            "detect_leaks": 0,  # Python and torch keep what they use until the process ends
            "detect_odr_violation": 0,  # torch's libraries define some variables twice
            "alloc_dealloc_mismatch": 0,  # torch and XLA have their own operator new
            "detect_stack_use_after_return": 1,
            "strict_string_checks": 1,
            "handle_segv": 0,  # PyTest's fault handler prints the Python stack as well
            "abort_on_error": 0,
        },
        "UBSAN_OPTIONS": {"print_stacktrace": 1},
    },
    "thread": {
        "TSAN_OPTIONS": {
            "halt_on_error": 0,
            "exitcode": 0,  # a report fails the run, not the test that happens to end then
            "die_after_fork": 0,  # subprocess forks while XLA's threads run, and execs at once
            "history_size": 4,
            "second_deadlock_stack": 1,
        },
    },
}
RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so"}


def lines(file: Path) -> list[str]:
    """Lines of a file without comments and blank ones."""
    stripped = (line.split("#")[0].strip() for line in file.read_text().splitlines())
    return [line for line in stripped if line]


def library(name: str) -> str:
    """Path of one of the compiler's libraries."""
    compiler = os.environ.get("CXX", "c++")
    found = subprocess.run(
        [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    return os.path.realpath(found.stdout.strip())


def options(sanitizer: str, reports: Path) -> dict[str, str]:
    """The environment variables that the sanitizer's runtime reads."""
    suppressions = {"thread": "thread.supp", "address": "address.supp"}[sanitizer]
    shared = {"log_path": reports / "report", "suppressions": HERE / suppressions}
    return {
        variable: ":".join(f"{key}={value}" for key, value in {**values, **shared}.items())
        for variable, values in OPTIONS[sanitizer].items()
    }


def python_environment(sanitizer: str, build: Path, reports: Path) -> dict[str, str]:
    """Python with the runtime preloaded and the build folder's module."""
    (module,) = build.glob("_C.*.so")
    paths = [str(HERE / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        **options(sanitizer, reports),
        # libstdc++ too: the runtime looks for __cxa_throw when it starts, and Python has none.
        "LD_PRELOAD": f"{library(RUNTIMES[sanitizer])}:{library('libstdc++.so')}",
        "PYTHONPATH": ":".join(path for path in paths if path),
        "SANITIZED_MODULE": str(module),
        "TEST_PATIENCE": "5",
        # torch's kernels on the CPU meet at OpenMP's barriers, which are not pthread's.
        "OMP_NUM_THREADS": "1",
        "TORCH_TPU_CACHE_DIR": str(build / "test-cache"),
    }


def command(words: list[str]) -> list[str]:
    """Without random addresses: the runtimes need some of their own, which may be taken."""
    return ["setarch", "-R", *words]


def places(report: str) -> str:
    """Where it happened: the kind, and for each stack the first line of csrc."""
    kind = re.search(r"(WARNING|ERROR): \w+: ([^(\n]*)|runtime error: (.*)", report)
    text = (kind.group(2) or kind.group(3) or "").strip() if kind else "report"
    found: list[str] = []
    for stack in re.split(r"\n\s*\n", report):
        place = re.search(r"(csrc/[\w/]+\.(?:cpp|h):\d+)", stack)
        if place and place.group(1) not in found:
            found.append(place.group(1))
    return f"{text}: {', '.join(found[:3]) or 'no line of csrc'}"


def is_generated(report: str) -> bool:
    """Whether both accesses were made by code that XLA generated, which lies in no library. It
    hands memory between its threads as the rest of XLA does, and no suppression can name it."""
    accesses = [
        [line for line in stack.splitlines() if re.match(r"\s+#\d", line) and "libtsan" not in line]
        for stack in re.split(r"\n\s*\n", report)
        if re.search(r"\b[Ww]rite of size|\b[Rr]ead of size", stack)
    ]
    return len(accesses) == 2 and all(
        stack and all("<null> <null> (0x" in line for line in stack) for stack in accesses
    )


def new_reports(reports: Path, seen: set[Path]) -> list[str]:
    """Summaries of the report files written since the last call, each distinct one once."""
    summaries: dict[str, Path] = {}
    for file in sorted(set(reports.glob("report.*")) - seen):
        seen.add(file)
        for report in file.read_text(errors="replace").split("==================\n"):
            if "ThreadSanitizer: reported" in report or is_generated(report):
                continue
            if report.strip():
                summaries.setdefault(places(report), file)
    return [f"{summary} ({file.relative_to(ROOT)})" for summary, file in summaries.items()]


def run(words: list[str], environment: dict[str, str], name: str) -> bool:
    """Runs a command with its output shown; says how long it took."""
    start = time.monotonic()
    status = subprocess.run(command(words), cwd=ROOT, env=environment, check=False).returncode
    outcome = "ok" if status == 0 else f"FAILED ({status})"
    print(f"== {name}: {outcome} in {time.monotonic() - start:.0f} s", flush=True)
    return status == 0


def main() -> int:
    sanitizer, build, *rest = sys.argv[1:]
    folder = (ROOT / build).resolve()
    only = ""
    if rest[:1] == ["--only"]:
        only, rest = rest[1], rest[2:]
    reports = folder / "reports"
    reports.mkdir(exist_ok=True)
    for old in reports.iterdir():
        old.unlink()

    seen: set[Path] = set()
    failures: list[str] = []

    def step(name: str, words: list[str], environment: dict[str, str]) -> None:
        if only not in name:
            return
        if not run(words, environment, name):
            failures.append(name)
        for report in new_reports(reports, seen):
            print(f"   {report}", flush=True)
            failures.append(f"{name}: {report}")

    ctest = ["ctest", "--test-dir", str(folder), "--output-on-failure", "--no-tests=ignore"]
    step("cpp", ctest, {**os.environ, **options(sanitizer, reports)})
    python = python_environment(sanitizer, folder, reports)
    for test in lines(HERE / "tests.txt"):
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "timeout=900",
        ]
        deselected = [f"--deselect={name}" for name in lines(HERE / "deselect.txt")]
        step(test, [*words, *deselected, *rest, *shlex.split(test)], python)
    if failures:
        print(f"\n{len(failures)} failures:", *failures, sep="\n  ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
