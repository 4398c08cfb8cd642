"""Saying up front which sizes change from call to call."""

from __future__ import annotations

import sys

import torch


def mark_dynamic(
    tensor: torch.Tensor, dim: int, min: int | None = None, max: int | None = None
) -> None:
    """This size changes between calls of a compiled function: one program serves all sizes up to a
    bound, the next power of two or `max`.

    The same as `torch._dynamo.mark_dynamic`. Without it, torch.compile notices at the second size.

    >>> import torch, torch_tpu
    >>> f = torch.compile(lambda x: x.cumsum(0), backend="tpu")
    >>> x = torch.ones(20, device="tpu")
    >>> torch_tpu.mark_dynamic(x, 0, max=100)
    >>> f(x).sum().item()
    210.0
    """
    import torch._dynamo

    # Dynamo takes both or none. Sizes 0 and 1 always have graphs of their own.
    if max is not None and min is None:
        min = 2
    if min is not None and max is None:
        max = sys.maxsize - 1
    torch._dynamo.mark_dynamic(tensor, dim, min=min, max=max)
