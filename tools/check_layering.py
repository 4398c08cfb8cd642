"""Checks what the compiler does not: who includes whom in csrc, and how long files are.

Usage: python tools/check_layering.py [ROOT]. Prints `file:line: message`, exits 1 on an error.
tests/cpp/<folder> follows the rules of csrc/<folder>: its tests link only what that folder may use.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Folders of csrc from the bottom up; each may include those before it, unless NARROWER says less.
# The rooms of csrc/dispatch stand in this order too, and the files beside them come last.
ORDER = (
    *("base", "pjrt", "stablehlo", "ops", "trace", "cache", "device"),
    *("dispatch/call", "dispatch/report", "dispatch/program", "dispatch/run", "dispatch/record"),
    *("dispatch/fuse", "dispatch/graph", "dispatch/sharded", "dispatch/tiers", "dispatch/kernels"),
    "dispatch/sparse",
    *("dispatch/foreign", "dispatch", "distributed", "bindings"),
)
NARROWER: dict[str, tuple[str, ...]] = {
    "pjrt": ("base",),
    "stablehlo": ("base",),
    "ops": ("base", "stablehlo"),
}
LAYERS: dict[str, tuple[str, ...]] = {
    folder: NARROWER.get(folder, ORDER[:at]) for at, folder in enumerate(ORDER)
}


def layer_of(parts: tuple[str, ...]) -> str:
    """The layer of a path below csrc: its folder, or its room where the folder has rooms."""
    room = "/".join(parts[:2])
    return room if len(parts) > 2 and room in LAYERS else parts[0]


# What the tests of a folder may include beyond that: StableHLO text is run by the real plugin.
TEST_EXTRAS: dict[str, tuple[str, ...]] = {"stablehlo": ("pjrt",), "ops": ("pjrt",)}


@dataclass(frozen=True)
class Library:
    """Headers from outside the project, and the folders that must not include them."""

    name: str
    pattern: re.Pattern[str]
    forbidden_in: frozenset[str]
    reason: str


LIBRARIES = (
    Library(
        "Python",
        re.compile(
            r"(Python\.h|pybind11/.*|torch/(extension|python)\.h|torch/csrc/(.*/)?python_[^/]*|"
            r"torch/csrc/(utils/(pybind|object_ptr|py[a-z_]*)|Exceptions|THP)\.h)$"
        ),
        frozenset(LAYERS) - {"bindings"},
        "only csrc/bindings knows Python",
    ),
    Library(
        "torch",
        re.compile(r"(torch|ATen|c10|caffe2)/"),
        frozenset({"base", "pjrt", "stablehlo"}),
        "the core is built and tested without torch",
    ),
    Library(
        "ATen",
        re.compile(r"ATen/"),
        frozenset({"cache"}),
        "the cache knows programs, not tensors",
    ),
    Library(
        "PJRT",
        re.compile(r"(.*/)?pjrt_c_api[^/]*\.h$"),
        frozenset(LAYERS) - {"pjrt"},
        "only csrc/pjrt speaks the C API; use its classes",
    ),
)

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
CPP_SUFFIXES = frozenset({".cpp", ".h"})
LENGTH_SUFFIXES = CPP_SUFFIXES | {".py"}
LENGTH_ROOTS = ("csrc", "torch_tpu", "tests", "tools", "examples", "benchmarks")
WARN_LINES, MAX_LINES = 400, 800


@dataclass(frozen=True)
class Finding:
    path: Path
    line: int
    message: str
    is_error: bool = True

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {'error' if self.is_error else 'warning'}: {self.message}"


def check_include(folder: str, header: str, quoted: bool, in_test: bool = False) -> str | None:
    """What is wrong with `header` included from a file of `folder`, or None."""
    allowed = LAYERS[folder] + (TEST_EXTRAS.get(folder, ()) if in_test else ())
    if quoted and ".." in header.split("/"):
        return f'"{header}" climbs out of its folder; write "csrc/<folder>/<file>.h"'
    if header.startswith("csrc/"):
        target = layer_of(tuple(header.split("/")[1:]))
        if target not in LAYERS:
            return (
                f'"{header}": csrc/{target} is no layer; add it to LAYERS in {Path(__file__).name}'
            )
        if target != folder and target not in allowed:
            names = ", ".join((folder, *allowed))
            return f'"{header}": {folder} must not include {target} (allowed: {names})'
    for library in LIBRARIES:
        if folder in library.forbidden_in and library.pattern.match(header):
            return f"<{header}>: {folder} must not include {library.name}: {library.reason}"
    return None


def files(root: Path, suffixes: frozenset[str]) -> Iterator[Path]:
    """Files under `root` with one of `suffixes`, in a stable order."""
    return (p for p in sorted(root.rglob("*")) if p.suffix in suffixes and p.is_file())


def layering(root: Path) -> Iterator[Finding]:
    """Include findings of csrc and tests/cpp."""
    for tree in (root / "csrc", root / "tests" / "cpp"):
        for path in files(tree, CPP_SUFFIXES):
            shown, parts = path.relative_to(root), path.relative_to(tree).parts
            if len(parts) < 2 or parts[0] not in LAYERS:
                yield Finding(shown, 1, f"not in one of the layers {', '.join(LAYERS)}")
                continue
            layer = layer_of(parts)
            for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                if match := INCLUDE.match(text):
                    quoted, angled = match.groups()
                    message = check_include(
                        layer, quoted or angled, quoted is not None, in_test=tree.name == "cpp"
                    )
                    if message:
                        yield Finding(shown, number, message)


def lengths(root: Path) -> Iterator[Finding]:
    """Files that are too long to read in one sitting."""
    for tree in LENGTH_ROOTS:
        for path in files(root / tree, LENGTH_SUFFIXES):
            with path.open("rb") as file:
                count = sum(1 for _ in file)
            if count > WARN_LINES:
                limit = MAX_LINES if count > MAX_LINES else WARN_LINES
                message = f"{count} lines, more than {limit}; split it by what it does"
                yield Finding(path.relative_to(root), limit + 1, message, count > MAX_LINES)


def main(arguments: list[str]) -> int:
    """Prints all findings; 1 when one of them is an error."""
    if len(arguments) > 1:
        print(__doc__, file=sys.stderr)
        return 2
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    findings = [*layering(root), *lengths(root)]
    for finding in findings:
        print(finding)
    errors = sum(finding.is_error for finding in findings)
    print(f"check_layering: {errors} errors, {len(findings) - errors} warnings")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
