"""torch.compile on "tpu": each graph that Dynamo finds becomes one StableHLO program.

`backend` is the entry point of the group `torch_dynamo_backends`; `hook` sends plain
`torch.compile(f)` here when the tensors are on the device. Nothing here is imported before the
first compile, since that needs torch._dynamo.
"""

from __future__ import annotations

from typing import Any

__all__ = ["backend"]


def __getattr__(name: str) -> Any:
    """`torch.compile(f, backend="tpu")` looks `backend` up before the first frame is traced: the
    time to tell Dynamo about the device."""
    if name != "backend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch_tpu._compile.dynamo import compile_graph

    return compile_graph
