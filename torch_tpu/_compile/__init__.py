"""torch.compile on "tpu": each graph that Dynamo finds becomes one StableHLO program.

`backend` is the entry point of the group `torch_dynamo_backends`; `hook` sends plain
`torch.compile(f)` here when the tensors are on the device. Nothing here is imported before the
first compile, since that needs torch._dynamo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["backend"]


def backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph of Dynamo's: `torch.compile(f, backend="tpu")`."""
    from torch_tpu._compile.dynamo import compile_graph

    return compile_graph(gm, example_inputs, mode=mode, options=options)
