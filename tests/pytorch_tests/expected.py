"""The failures that are expected, each under its reason: `expected_failures.txt`.

A line `reason: TEXT` opens a group. Each line below it is a pattern of `file::Class::test`, where
`*` stands for any text; `PATTERN if: REGEX` asks for a failure that says so, too. Another line that
starts with `#` is a remark."""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

LIST = Path(__file__).with_name("expected_failures.txt")


@dataclass
class Expected:
    """Patterns by reason, and which of them met a failure."""

    groups: dict[str, list[str]] = field(default_factory=dict)
    met: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def reason_of(self, test: str, detail: str) -> str:
        """Why this test may fail in these words; empty where it may not."""
        for reason, patterns in self.groups.items():
            for pattern in patterns:
                name, _, words = pattern.partition(" if: ")
                if fnmatch.fnmatchcase(test, name) and re.search(words, detail, re.DOTALL):
                    self.met[pattern] += 1
                    return reason
        return ""


def read_expected(path: Path = LIST) -> Expected:
    expected = Expected()
    patterns: list[str] | None = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if opened := re.match(r"reason: (.+)", text):
            patterns = expected.groups.setdefault(opened.group(1), [])
        elif patterns is None:
            raise SystemExit(f"{path.name}:{number}: a pattern before the first `reason:`")
        else:
            patterns.append(text)
    return expected
