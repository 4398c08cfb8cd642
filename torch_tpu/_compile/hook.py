"""Plain `torch.compile(f)` means Inductor, which has no code for this device. A graph with tensors
on "tpu" comes here instead; every other graph goes to Inductor as if we were not there."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from torch_tpu import _replace


def install() -> None:
    """Imports nothing of Dynamo's: the class that stands for Inductor lives in torch itself."""

    def make_call(original: Any) -> Any:
        def call(self: Any, model_: Any, inputs_: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            if not _on_device(model_, inputs_):
                return original(self, model_, inputs_, *args, **kwargs)
            from torch_tpu._compile.dynamo import compile_graph

            return compile_graph(model_, inputs_)

        return call

    def make_init(original: Any) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            prepare_dynamo()

        return init

    _replace.replace(torch._TorchCompileInductorWrapper, "__call__", make_call)
    _replace.replace(torch._TorchCompileInductorWrapper, "__init__", make_init)


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
