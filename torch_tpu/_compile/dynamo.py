"""The Dynamo backend: AOTAutograd with the min-cut partitioner, and our graphs as its compilers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

import torch_tpu._compile.control_flow  # noqa: F401, for its handlers
from torch_tpu._compile import decompositions, hook, interface
from torch_tpu._compile.collectives import SplitGraph, has_collectives
from torch_tpu._compile.graph import CompiledGraph
from torch_tpu._compile.options import Options
from torch_tpu._compile.partition import partition

interface.register()
hook.skip_own_functions()


def compile_graph(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """What Dynamo calls with each graph: `torch.compile(f, backend="tpu")`."""
    parsed = Options.parse(mode, options)

    def compiler(kind: str) -> Callable[..., Any]:
        return functools.partial(_compile, kind=kind, options=parsed)

    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=decompositions.table(),
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )
    return backend(gm, example_inputs)


def _compile(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, kind: str, options: Options
) -> Any:
    del example_inputs  # the arguments of the first call say more
    torch._dynamo.utils.counters["torch_tpu"][f"graphs_{kind}"] += 1
    if has_collectives(gm):
        return SplitGraph(gm, kind, options).function()
    return CompiledGraph(gm, kind, options, _visible(kind)).function()


def _visible(kind: str) -> int | None:
    """How many results of a forward graph are the caller's; the rest is saved for backward."""
    context = torch._guards.TracingContext.try_get()
    if kind != "forward" or context is None or context.fw_metadata is None:
        return None
    return context.fw_metadata.num_forward_returns
