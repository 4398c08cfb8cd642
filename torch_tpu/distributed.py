"""What the backend "tpu" of torch.distributed offers beyond PyTorch's interface: the flight
recorder, and the order of ranks on a torus. Collectives themselves are torch.distributed's; see
docs/distributed.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch_tpu import _C

__all__ = [
    "clear_flight",
    "dump_flight",
    "flight",
    "span_processes",
    "spmd_safe",
    "topology_aware_mesh",
]

_F = TypeVar("_F", bound=Callable[..., Any])


def flight() -> list[dict[str, Any]]:
    """The last collectives of this process, oldest first.

    Each has `group`, `seq`, `op`, `detail` (dtype, sizes), `bytes`, `where` (the Python line),
    `rank` (whose call), `transport` (`xla` or `host`), `state` (queued, running, done, failed) and
    the times `issued`, `started`, `finished`.

    >>> import torch_tpu
    >>> torch_tpu.distributed.flight()
    []
    """
    records: list[dict[str, Any]] = json.loads(_C._flight_json(""))["collectives"]
    return records


def dump_flight(reason: str = "asked for") -> str:
    """Writes `rank<N>.json` into the folder TORCH_TPU_FLIGHT; returns its path, "" without one."""
    path: str = _C._flight_dump(reason)
    return path


def clear_flight() -> None:
    """Forgets the collectives so far."""
    _C._flight_clear()


def span_processes(store: Any, process: int, processes: int) -> None:
    """Lets the PJRT client span processes, which find each other through a store of
    torch.distributed. To be called before the first tpu tensor. For plugins that can do it: the
    client of a TPU slice, or of several GPUs. XLA:CPU's cannot, and does not start.

    >>> import torch.distributed as dist
    >>> span_processes(dist.HashStore(), 0, 2)  # doctest: +SKIP
    """
    _C._span_processes(store, process, processes)


def topology_aware_mesh(mesh_shape: Sequence[int], *, topology: str = "single_slice") -> Any:
    """The ranks in the order of the torus, a tensor of that shape: ranks along its last axis are
    neighbours. Every rank calls it, after `init_process_group`. Where devices have no place on a
    torus, ranks stay in order. `torch_tpu.spmd.device_mesh` makes a DeviceMesh of it.

    >>> topology_aware_mesh((2, 4))  # doctest: +SKIP
    """
    from torch_tpu.spmd._ranks import rank_order

    if topology != "single_slice":
        raise NotImplementedError(
            f"[topology_aware_mesh] topology={topology!r}: only the ranks of one slice have an "
            f"order here. Order slices yourself: their ranks are consecutive."
        )
    return rank_order(mesh_shape, "topology_aware_mesh")


def spmd_safe(function: _F) -> _F:
    """The same function. It allows Google's torch-tpu to fuse collectives into programs, which all
    ranks must then compile alike; here ranks' programs may differ, and collectives stand between
    them (docs/compile.md). Inside one program they are `torch_tpu.spmd`'s.

    >>> @spmd_safe
    ... def step(x):
    ...     return x + 1
    """
    return function


_NO_STRIPES = "transfers between ranks are XLA's or Gloo's, which have no stripes to set"
_NOT_HERE = {
    "set_tpu_launch_env": "torchrun sets what a launch needs; for a client that spans a slice, "
    "torch_tpu.distributed.span_processes(store, rank, world_size) before the first tensor",
    "window_num_stripes": _NO_STRIPES,
    "window_stripe_chunk_mb": _NO_STRIPES,
}


def __getattr__(name: str) -> Any:
    instead = f": {_NOT_HERE[name]}" if name in _NOT_HERE else ""
    raise AttributeError(f"module 'torch_tpu.distributed' has no attribute '{name}'{instead}")
