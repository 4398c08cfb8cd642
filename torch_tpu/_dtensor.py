"""What DTensor must know of this device. It takes over a second to import, so its module is completed
when somebody else imports it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

_MODULE = "torch.distributed.tensor._dispatch"


def install() -> None:
    """Completes DTensor's dispatcher now, or once it is imported."""
    if _MODULE in sys.modules:
        _complete(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the others would, and runs `_complete` after it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _complete(module)

            loader.exec_module = exec_module
        return spec


def _complete(dispatch: Any) -> None:
    dispatcher = dispatch.OpDispatcher
    original = dispatcher.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._custom_op_handlers[torch.ops.aten.linear_backward.default] = _linear_backward

    dispatcher.__init__ = init
    tensor: Any = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    if tensor is not None:  # it was there before us
        handlers = tensor._op_dispatcher._custom_op_handlers
        handlers[torch.ops.aten.linear_backward.default] = _linear_backward


def _linear_backward(_op: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """`linear` has a backward of its own on this device. DTensor knows how the ops are sharded that
    it is made of elsewhere."""
    x, grad, weight, wanted = args
    rows = grad.reshape(-1, grad.shape[-1])
    return (
        grad.matmul(weight) if wanted[0] else None,
        rows.t().mm(x.reshape(-1, x.shape[-1])) if wanted[1] else None,
        rows.sum(0) if wanted[2] else None,
    )
