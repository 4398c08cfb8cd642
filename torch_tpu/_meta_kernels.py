"""Lets PyTorch's Meta kernels run without importing torch._dynamo.

Shapes are inferred by PyTorch's Meta kernels. Many are Python, behind `torch._disable_dynamo`. Its
first call imports torch._dynamo, which takes about a second, for nothing: where Dynamo was never
imported there is nothing to disable. The decorator keeps what it calls in an attribute of the
function it wraps. We put a call of the function itself there, until torch._dynamo is imported by
somebody who needs it: then the attribute goes and PyTorch does what it always does. A torch without
that attribute imports Dynamo as before.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from torch._compile import _disable_dynamo

from torch_tpu import _C, _replace

_SLOT = "__dynamo_disable"  # torch/_compile.py
_MODULES = (
    "torch._decomp.decompositions",
    "torch._meta_registrations",
    "torch._prims",
    "torch._refs",
    "torch._refs.fft",
    "torch._refs.linalg",
    "torch._refs.nn.functional",
    "torch._refs.special",
)


def prepare() -> None:
    """Called before the first Meta kernel runs; does nothing where Dynamo is imported already."""
    if "torch._dynamo" in sys.modules:
        return
    for guarded in _guarded_functions():
        function = _closure(guarded).get("fn")
        if isinstance(function, FunctionType) and not hasattr(function, _SLOT):
            _replace.add(function, _SLOT, _C._call_plainly(function, guarded, _SLOT))


def _guarded_functions() -> Iterator[FunctionType]:
    """What `torch._disable_dynamo` made among the Meta kernels, under whatever else wraps them."""
    code = _disable_dynamo(prepare).__code__
    seen: set[FunctionType] = set()
    waiting = list(_candidates())
    while waiting:
        function = waiting.pop()
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        if function.__code__ is code:
            yield function
        waiting += _closure(function).values()


def _closure(function: FunctionType) -> dict[str, Any]:
    """What the function captured. `__wrapped__` would not do: some of PyTorch's skip a layer."""
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            values[name] = cell.cell_contents
    return values


def _candidates() -> Iterator[Any]:
    # Only what `import torch` has imported: a Meta kernel needs no more.
    for name in _MODULES:
        module = sys.modules.get(name)
        if isinstance(module, ModuleType):
            yield from list(vars(module).values())
    decomp = sys.modules.get("torch._decomp")
    tables: dict[str, Any] = getattr(decomp, "global_decomposition_table", {})
    for table in tables.values():
        kernels: Iterable[Any] = table.values()
        yield from list(kernels)
