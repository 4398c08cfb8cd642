"""Export: a model as a StableHLO module, its weights, and a manifest that says which is which.

`export` writes such a folder and `load` runs it, here or on another machine, without the model's
code. Nothing heavy is imported before one of them is called.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from torch_tpu._export.program import LoadedProgram

__all__ = ["export", "load"]

PathLike = str | os.PathLike[str]


def export(
    model: torch.nn.Module | torch.export.ExportedProgram,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    path: PathLike,
    dynamic_shapes: Any = None,
    more_args: Sequence[tuple[Any, ...]] = (),
    target: str = "any",
) -> None:
    """Writes a model into a folder that `torch_tpu.load` or any PJRT program can run.

    The model is exported as it is: call `model.eval()` before, unless it shall go on training. It
    may be on any device, and is not changed. `args` and `kwargs` are an example call; a
    `torch.export.ExportedProgram` brings its own.

    A module has fixed sizes. To serve several, say which sizes vary by `dynamic_shapes`, as for
    `torch.export.export`, and give one tuple of `more_args` per further size: each becomes a module
    of its own, all with the same weights. They may be on the device "meta".

    `target` is "any", or "cpu", "cuda" or "tpu" for a module that only that compiler gets right.

    An existing export at `path` is replaced; any other folder that is not empty is refused.

    >>> import torch, torch_tpu
    >>> model = torch.nn.Linear(4, 2).eval()
    >>> x = torch.ones(3, 4)
    >>> torch_tpu.export(model, (x,), path="linear")
    >>> y = torch_tpu.load("linear")(x.to("tpu"))
    >>> torch.allclose(y.cpu(), model(x), atol=1e-5)
    True
    """
    from torch_tpu._export.write import write

    write(model, args, kwargs, path, dynamic_shapes, more_args, target)


def load(path: PathLike, device: str | int | torch.device = "tpu") -> LoadedProgram:
    """Loads what `torch_tpu.export` wrote: a function of tensors on the device.

    The weights are uploaded once. The module is compiled now, or found in the cache on disk. The
    result is called as the model was; its tensors must be on `device`.

    >>> import torch, torch_tpu
    >>> torch_tpu.export(torch.nn.ReLU(), (torch.ones(3),), path="relu")
    >>> relu = torch_tpu.load("relu")
    >>> relu
    LoadedProgram('relu', ReLU(input: float32[3]) on tpu:0)
    >>> relu(torch.tensor([-1.0, 0.0, 2.0], device="tpu"))
    tensor([0., 0., 2.], device='tpu:0')
    """
    from torch_tpu._export.program import LoadedProgram

    return LoadedProgram(path, device)
