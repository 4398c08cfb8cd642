"""The recorded programs: files by table entry, a few of each kind, and an index of them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from .lines import append_line, read_lines

PER_SIGNATURE = 2
PER_ENTRY = 14
ALL_KEPT = ("large:", "explicit:")  # tasks whose programs are never too many

_DTYPE = re.compile(r"tensor<(?:[0-9?]+x)*(complex<f\d+>|[a-zA-Z]\w*)")


def signature_of(text: str) -> str:
    """The dtypes among the parameters and results of @main: "f32,i64"."""
    head = re.search(r"@main\((.*)$", text, re.MULTILINE)
    return ",".join(sorted(set(_DTYPE.findall(head.group(1))))) if head else ""


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Program:
    key: str  # hash of the text
    entry: str
    form: str  # as it was called: "add_.Tensor"
    signature: str
    source: str  # the task that recorded it


class Store:
    """A folder of program texts with index.jsonl. One writer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = folder / "index.jsonl"
        self.programs: dict[str, Program] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        for row in read_lines(self.index):
            self._keep(Program(**row))

    def _keep(self, program: Program) -> None:
        self.programs[program.key] = program
        if program.source.startswith(ALL_KEPT):
            return
        self._counts[program.entry, program.signature] += 1
        self._counts[program.entry, ""] += 1

    def add(self, entry: str, form: str, text: str, source: str) -> bool:
        """Keeps the program unless it is known or there are enough like it."""
        program = Program(hash_of(text), entry, form, signature_of(text), source)
        enough = not source.startswith(ALL_KEPT) and (
            self._counts[entry, program.signature] >= PER_SIGNATURE
            or self._counts[entry, ""] >= PER_ENTRY
        )
        if program.key in self.programs or enough:
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path(program).write_text(text)
        append_line(self.index, asdict(program))
        self._keep(program)
        return True

    def path(self, program: Program) -> Path:
        return self.folder / f"{program.entry}-{program.key}.mlir"

    def entries(self) -> set[str]:
        return {p.entry for p in self.programs.values()}

    def __iter__(self) -> Iterator[Program]:
        return iter(sorted(self.programs.values(), key=lambda p: (p.entry, p.signature, p.key)))
