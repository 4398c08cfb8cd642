"""Hints: what in a model or a step is slow on a TPU, by running it once without memory.

Needs no TPU and no libtpu. `lint` is torch_tpu.lint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_tpu._lint.findings import Lint

__all__ = ["lint"]


def lint(
    model: Callable[..., Any],
    sample: tuple[Any, ...] | list[tuple[Any, ...]],
    kwargs: dict[str, Any] | None = None,
    *,
    generation: str = "v5e",
) -> Lint:
    """Says what in a model, a function or a `torch_tpu.aot.TrainStep` is slow on a TPU.

    `sample` is the arguments of a call, as a tuple; a list of them shows which sizes change. The
    model runs once per sample on tensors without memory, and is not changed. Each hint has the
    line, what it costs on a device of the `generation`, and the fix. What the model raises is
    raised here; where it only cannot go on without values, a note says so.

    >>> import torch, torch_tpu
    >>> model = torch.nn.Linear(100, 1000)
    >>> [f.rule for f in torch_tpu.lint(model, (torch.zeros(512, 100),))]
    ['f32', 'tile']
    """
    from torch_tpu._lint.collect import ModelError
    from torch_tpu._lint.findings import run

    try:
        return run(model, sample, kwargs or {}, generation)
    except ModelError as failed:
        error = failed.error
    error.add_note('torch_tpu.lint called the model on tensors without memory (device "meta").')
    raise error
