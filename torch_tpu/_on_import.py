"""Completing modules of others, which may be slow to import or not be there: once somebody else
imports them."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

from torch_tpu._replace import become, replace

Within = Callable[[], AbstractContextManager[Any]]


def on_import(name: str, complete: Callable[[Any], None], within: Within = nullcontext) -> None:
    """Calls `complete` with the module now, or once it has been imported; the import itself is done
    `within` a context."""
    if name in sys.modules:
        _now_or_later(sys.modules[name], complete)
    else:
        sys.meta_path.insert(0, _Finder(name, complete, within))


def _now_or_later(module: ModuleType, complete: Callable[[Any], None]) -> None:
    """A module that imports torch, and so us, is known before it has run. Python then says so to
    its spec, with the last thing it does."""
    spec = module.__spec__
    if spec is None or not getattr(spec, "_initializing", False):
        complete(module)
        return

    plain = type(spec)

    class Spec(plain):  # type: ignore[misc, valid-type]
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "_initializing" and not value:
                become(self, plain)
                if sys.modules.get(module.__name__) is module:  # else its import has failed
                    complete(module)

    become(spec, Spec)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the others would, and completes it after it has run."""

    def __init__(self, name: str, complete: Callable[[Any], None], within: Within) -> None:
        self._name = name
        self._complete = complete
        self._within = within

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:

            def make(original: Any) -> Any:
                def exec_module(module: ModuleType) -> None:
                    with self._within():
                        original(module)
                    # Not before: some only ask where the module is (importlib.util.find_spec).
                    if self in sys.meta_path:
                        sys.meta_path.remove(self)
                        self._complete(module)

                return exec_module

            replace(spec.loader, "exec_module", make)
        return spec
