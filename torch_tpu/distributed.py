"""What the backend "tpu" of torch.distributed offers beyond PyTorch's interface: the flight
recorder. Collectives themselves are torch.distributed's; see docs/distributed.md."""

from __future__ import annotations

import json
from typing import Any

from torch_tpu import _C

__all__ = ["clear_flight", "dump_flight", "flight", "span_processes"]


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
