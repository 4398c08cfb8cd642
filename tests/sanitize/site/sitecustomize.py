"""Put on the path by tests/sanitize/run.py: Python runs it at its start, in child processes too.

The package comes from the tree as ever, its native module from the sanitizers' build folder."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class SanitizedModule(MetaPathFinder):
    """Finds torch_tpu._C, and nothing else."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch_tpu._C":
            return None
        return importlib.util.spec_from_file_location(name, os.environ["SANITIZED_MODULE"])


sys.meta_path.insert(0, SanitizedModule())
