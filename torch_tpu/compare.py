"""Marks for `torch-tpu compare`: where a step of a script ends, and how many tokens it took.

A script needs them only where `compare` cannot see its steps, or for the cost per token. Outside of
`compare` they do nothing.

>>> from torch_tpu import compare
>>> for batch in range(3):
...     compare.step(tokens=4096)
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["step"]

_listener: Callable[[int], None] | None = None


def step(tokens: int = 0) -> None:
    """The end of a step, in which `tokens` tokens were taken in.

    >>> from torch_tpu import compare
    >>> compare.step()
    """
    if _listener is not None:
        _listener(tokens)
