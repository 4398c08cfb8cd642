"""Plain `torch.compile(f)` means Inductor, which has no code for this device. A graph with tensors
on "tpu" comes here instead; every other graph goes to Inductor as if we were not there."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from torch_tpu import _replace
from torch_tpu._on_import import on_import


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
    on_import("torch._inductor.compile_fx", _complete)
    on_import("torch._dynamo.trace_rules", _run_as_they_are)


def _complete(module: Any) -> None:
    """Who calls Inductor without `torch.compile` (`torch._dynamo.optimize`, a backend that wraps
    `compile_fx`) means the same. Who has an inner compiler of their own wants Inductor's graphs."""

    def make(original: Any) -> Any:
        def compile_fx(
            model_: Any, example_inputs_: Sequence[Any], *args: Any, **kwargs: Any
        ) -> Any:
            inner = args[0] if args else kwargs.get("inner_compile", module.compile_fx_inner)
            if inner is not module.compile_fx_inner or not _on_device(model_, example_inputs_):
                return original(model_, example_inputs_, *args, **kwargs)
            from torch_tpu._compile.dynamo import compile_graph

            return compile_graph(model_, example_inputs_)

        return compile_fx

    _replace.replace(module, "compile_fx", make)


@functools.cache
def prepare_dynamo() -> None:
    """What Dynamo must know before it traces the first frame for this backend."""
    from torch_tpu._compile import cold_start

    cold_start.install()


def _run_as_they_are(trace_rules: Any) -> None:
    """Dynamo traces none of these, for any backend and device. Functions of torch.tpu ask the
    client or a generator, which no graph can hold, as those of torch.cuda do."""
    trace_rules.add("torch_tpu.tpu")
    trace_rules.add("torch_tpu.spmd")  # its functions make programs by themselves
    trace_rules.add("torch_tpu._interop")  # in the place of functions that it does not trace either


def _on_device(model: Any, inputs: Sequence[Any]) -> bool:
    values = list(inputs)
    for node in model.graph.nodes:
        values.append(node.meta.get("example_value", node.meta.get("val")))
    return any(isinstance(v, torch.Tensor) and v.device.type == "tpu" for v in values)
