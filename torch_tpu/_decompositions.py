"""PyTorch's Python decompositions, as the dispatcher asks for them.

Imported when the first op without a lowering is met: `torch._decomp` takes a second to import. Each
decomposition runs once per key, on tensors that only record what is done with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table


def has(name: str) -> bool:
    """Whether PyTorch can write the op ("aten::foo.bar") in terms of others."""
    return _find(name) is not None


def run(name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Calls the decomposition of the op."""
    function = _find(name)
    if function is None:
        raise LookupError(f"{name} has no decomposition")
    with torch.no_grad():
        return function(*args, **kwargs)


def _find(name: str) -> Callable[..., Any] | None:
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    op = getattr(packet, overload or "default", None)
    return None if op is None else decomposition_table.get(op)
