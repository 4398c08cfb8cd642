"""The Dynamo backend: AOTAutograd with the min-cut partitioner, and our graphs as its compilers."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.utils import counters, flatten_graph_inputs
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._functorch.aot_autograd import aot_module_simplified

import torch_tpu._compile.control_flow  # noqa: F401, for its handlers
from torch_tpu._compile import cold_start, decompositions, hook, interface
from torch_tpu._compile.collectives import SplitGraph, has_collectives
from torch_tpu._compile.options import Options
from torch_tpu._compile.partition import partition
from torch_tpu._compile.stored import StoredGraph, asking_cache, storable

interface.register()
hook.prepare_dynamo()


def compile_graph(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """What Dynamo calls with each graph: `torch.compile(f, backend="tpu")`."""
    cold_start.watch_compiles()
    return _autograd(gm, example_inputs, options=Options.parse(mode, options))


def _autograd(gm: Any, example_inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    """As torch._dynamo.backends.common.aot_autograd, which imports the whole of Inductor."""
    if any(isinstance(value, (list, tuple, dict)) for value in example_inputs):
        return flatten_graph_inputs(
            gm, example_inputs, functools.partial(_autograd, options=options)
        )

    def compiler(kind: str) -> Callable[..., Any]:
        return functools.partial(_compile, kind=kind, options=options)

    counters["aot_autograd"]["total"] += 1
    stored = storable(gm)
    wrap = functools.partial(SerializableAOTDispatchCompiler, StoredGraph) if stored else _same
    with _debug_log(), asking_cache(gm, options) if stored else contextlib.nullcontext():
        function = aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=wrap(compiler("forward")),
            bw_compiler=wrap(_untraced(compiler("backward"))),
            inference_compiler=wrap(compiler("inference")),
            decompositions=decompositions.table(),
            partition_fn=partition,
            keep_inference_input_mutations=True,
        )
    counters["aot_autograd"]["ok"] += 1
    return _disable(function)


def _same(compiler: Any) -> Any:
    return compiler


def _untraced(compiler: Callable[..., Any]) -> Callable[..., Any]:
    """Under compiled autograd the backward is compiled while Dynamo traces: it must see neither the
    compiler nor what it makes."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return _disable(_disable(compiler)(*args, **kwargs))

    return call


def _disable(function: Callable[..., Any]) -> Any:
    return torch._dynamo.disable(function, reason="it is compiled")


def _debug_log() -> contextlib.AbstractContextManager[Any]:
    if os.environ.get("TORCH_COMPILE_DEBUG") != "1":
        return contextlib.nullcontext()
    from torch._inductor.debug import enable_aot_logging

    return enable_aot_logging()


def _compile(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, kind: str, options: Options
) -> Any:
    del example_inputs  # the arguments of the first call say more
    counters["torch_tpu"][f"graphs_{kind}"] += 1
    if has_collectives(gm):
        return SplitGraph(gm, kind, options).function()
    return StoredGraph(gm, kind, options, _visible(kind))


def _visible(kind: str) -> int | None:
    """How many results of a forward graph are the caller's; the rest is saved for backward."""
    context = torch._guards.TracingContext.try_get()
    if kind != "forward" or context is None or context.fw_metadata is None:
        return None
    return context.fw_metadata.num_forward_returns
