"""Ranks that are threads of this process, each with a device of its own. PyTorch's own functions
know one rank per process, so groups are made and called through the backend."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import torch_tpu
from torch_tpu import _distributed

c10d: Any = dist.distributed_c10d


class Rank:
    """A group of the backend as one of its ranks sees it."""

    def __init__(
        self, store: Any, rank: int, ranks: Sequence[int], timeout: float, name: str = "threads"
    ) -> None:
        options = c10d._DistributedBackendOptions()
        options.store = store
        options.group_rank, options.group_size = list(ranks).index(rank), len(ranks)
        options.timeout = timedelta(seconds=timeout)
        options.group_id = name
        options.global_ranks_in_group = list(ranks)
        self.store, self.timeout = store, timeout
        self.global_rank = rank
        self.rank, self.size = options.group_rank, len(ranks)
        self.device = torch.device("tpu", torch.tpu.current_device())
        self.backend = _distributed._create(options, None)

    def part(self, ranks: Sequence[int]) -> Rank:
        """A smaller group; to be called by its ranks."""
        name = "-".join(map(str, ranks))
        return Rank(c10d.PrefixStore(name, self.store), self.global_rank, ranks, self.timeout, name)

    def all_reduce(self, x: torch.Tensor, op: str = "SUM") -> Any:
        options = c10d.AllreduceOptions()
        options.reduceOp = getattr(dist.ReduceOp, op)
        return self.backend.allreduce([x], options)

    def reduce(self, x: torch.Tensor, root: int) -> Any:
        options = c10d.ReduceOptions()
        options.rootRank = root
        return self.backend.reduce([x], options)

    def broadcast(self, x: torch.Tensor, root: int) -> Any:
        options = c10d.BroadcastOptions()
        options.rootRank = root
        return self.backend.broadcast([x], options)

    def all_gather(self, out: list[torch.Tensor], x: torch.Tensor) -> Any:
        return self.backend.allgather([out], [x], c10d.AllgatherOptions())

    def all_gather_into(self, out: torch.Tensor, x: torch.Tensor) -> Any:
        return self.backend._allgather_base(out, x, c10d.AllgatherOptions())

    def reduce_scatter(self, out: torch.Tensor, xs: list[torch.Tensor], op: str = "SUM") -> Any:
        options = c10d.ReduceScatterOptions()
        options.reduceOp = getattr(dist.ReduceOp, op)
        return self.backend.reduce_scatter([out], [xs], options)

    def reduce_scatter_tensor(self, out: torch.Tensor, x: torch.Tensor, op: str = "SUM") -> Any:
        options = c10d.ReduceScatterOptions()
        options.reduceOp = getattr(dist.ReduceOp, op)
        return self.backend._reduce_scatter_base(out, x, options)

    def all_to_all(
        self, out: torch.Tensor, x: torch.Tensor, splits: tuple[list[int], list[int]] | None = None
    ) -> Any:
        outs, ins = splits or ([], [])
        return self.backend.alltoall_base(out, x, outs, ins, c10d.AllToAllOptions())

    def barrier(self) -> None:
        self.backend.barrier(c10d.BarrierOptions()).wait()


def run(
    size: int,
    function: Callable[[Rank], Any],
    *,
    timeout: float = 30,
    devices: Sequence[int] | None = None,
    fails: bool = False,
) -> list[Any]:
    """Calls the function on `size` threads that form a group; its results by rank, or where it
    `fails`, what it raised."""
    store = dist.HashStore()
    results: list[Any] = [None] * size
    raised: list[BaseException | None] = [None] * size

    def rank_thread(index: int) -> None:
        try:
            torch.tpu.set_device(devices[index] if devices else index)
            rank = Rank(store, index, range(size), timeout)
            results[index] = function(rank)
            if not fails:
                rank.barrier()
        except BaseException as error:
            raised[index] = error

    threads = [threading.Thread(target=rank_thread, args=(i,), daemon=True) for i in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a rank hangs"
    if fails:
        return raised
    for kind in (AssertionError, BaseException):  # others fail because one did
        for error in raised:
            if isinstance(error, kind):
                raise error
    return results


def transports() -> set[str]:
    return {call["transport"] for call in torch_tpu.distributed.flight()}
