"""Plain `torch.compile(f)` means Inductor, which has no code for this device. A graph with tensors
on "tpu" comes here instead; every other graph goes to Inductor as if we were not there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def install() -> None:
    """Imports nothing of Dynamo's: the class that stands for Inductor lives in torch itself."""
    wrapper = torch._TorchCompileInductorWrapper
    inductor = wrapper.__call__
    if getattr(inductor, "_torch_tpu", False):
        return

    def call(self: Any, model_: Any, inputs_: Sequence[Any], **kwargs: Any) -> Any:
        if not _on_device(model_, inputs_):
            return inductor(self, model_, inputs_, **kwargs)
        from torch_tpu._compile import backend

        return backend(model_, inputs_)

    call._torch_tpu = True  # type: ignore[attr-defined]
    wrapper.__call__ = call  # type: ignore[method-assign]


def _on_device(model: Any, inputs: Sequence[Any]) -> bool:
    values = list(inputs)
    for node in model.graph.nodes:
        values.append(node.meta.get("example_value"))
    return any(isinstance(v, torch.Tensor) and v.device.type == "tpu" for v in values)
