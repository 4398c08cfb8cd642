"""Plain `torch.compile(f)` means Inductor, which has no code for this device. A graph with tensors
on "tpu" comes here instead; every other graph goes to Inductor as if we were not there."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch


def install() -> None:
    """Imports nothing of Dynamo's: the class that stands for Inductor lives in torch itself."""
    wrapper = torch._TorchCompileInductorWrapper
    inductor, make = wrapper.__call__, wrapper.__init__
    if getattr(inductor, "_torch_tpu", False):
        return

    def call(self: Any, model_: Any, inputs_: Sequence[Any], **kwargs: Any) -> Any:
        if not _on_device(model_, inputs_):
            return inductor(self, model_, inputs_, **kwargs)
        from torch_tpu._compile.dynamo import compile_graph

        return compile_graph(model_, inputs_)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        prepare_dynamo()

    call._torch_tpu = True  # type: ignore[attr-defined]
    wrapper.__init__ = init  # type: ignore[method-assign]
    wrapper.__call__ = call  # type: ignore[method-assign]


@functools.cache
def prepare_dynamo() -> None:
    """What Dynamo must know before it traces the first frame. Functions of torch.tpu ask the client
    or a generator, which no graph can hold: like those of torch.cuda they run as they are."""
    from torch._dynamo import trace_rules

    from torch_tpu._compile import cold_start

    trace_rules.add("torch_tpu.tpu")
    trace_rules.add("torch_tpu.spmd")  # its functions make programs by themselves
    cold_start.install()


def _on_device(model: Any, inputs: Sequence[Any]) -> bool:
    values = list(inputs)
    for node in model.graph.nodes:
        values.append(node.meta.get("example_value"))
    return any(isinstance(v, torch.Tensor) and v.device.type == "tpu" for v in values)
