"""`torch.tpu.ops` and others are modules of this package under a second name, imported when they
are asked for: by attribute, or by `import torch.tpu.ops`."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

MODULES = ("compiler", "distributed", "ops", "optimizers", "pallas", "profiler")
_PREFIX = "torch.tpu."


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"torch_tpu.{spec.name.removeprefix(_PREFIX)}")
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # it has run, under its own name


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.startswith(_PREFIX) and name.removeprefix(_PREFIX) in MODULES:
            return importlib.machinery.ModuleSpec(name, _Loader())
        return None


def install() -> None:
    """Called once, when the device is named."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
