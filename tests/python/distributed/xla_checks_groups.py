"""More of xla_checks.py: smaller groups, what ranks do wrong, many calls, and what is recorded."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed.test_collectives import same
from distributed.thread_ranks import Rank, run, transports
from torch.profiler import ProfilerActivity, profile

import torch_tpu


def check_smaller_groups() -> None:
    """Groups of some ranks, at the same time and over each other's devices; in any order."""

    def every(rank: Rank) -> None:
        me, device = rank.rank, rank.device
        halves = rank.part([me % 2, me % 2 + 2, me % 2 + 4, me % 2 + 6])
        pairs = rank.part([me // 2 * 2 + 1, me // 2 * 2])
        a = torch.tensor([float(me)], device=device)
        for _ in range(10):
            x, y, z = a.clone(), a.clone(), a.clone()
            halves.all_reduce(x)
            pairs.all_reduce(y)
            rank.all_reduce(z)
            pairs.broadcast(a, 0)
            assert x.item() == 12.0 + 4 * (me % 2)
            assert y.item() == me // 2 * 4 + 1
            assert z.item() == 28.0
            assert a.item() == me // 2 * 2 + 1
            a = torch.tensor([float(me)], device=device)
        out = torch.empty(2, device=device)
        pairs.all_gather_into(out, a).wait()
        same(out, torch.tensor([me // 2 * 2 + 1.0, me // 2 * 2.0]))

    torch_tpu.distributed.clear_flight()
    run(8, every, devices=[7, 6, 5, 4, 3, 2, 1, 0])
    assert transports() == {"xla"}


def check_where_it_is_not_chosen() -> None:
    """Two ranks of one device: nothing but Gloo could do that."""

    def every(rank: Rank) -> None:
        x = torch.ones(3, device=rank.device)
        rank.all_reduce(x).wait()
        same(x, torch.full((3,), 2.0))

    torch_tpu.distributed.clear_flight()
    run(2, every, devices=[1, 1])
    assert transports() == {"host"}


def _failures(size: int, function: Callable[[Rank], Any], timeout: float = 20) -> list[str]:
    start = time.monotonic()
    raised = run(size, function, timeout=timeout, fails=True)
    assert time.monotonic() - start < timeout + 8
    assert all(isinstance(error, dist.DistBackendError) for error in raised), raised
    return [str(error) for error in raised]


def check_ranks_that_differ() -> None:
    def sizes(rank: Rank) -> None:
        x = torch.ones(3 if rank.rank == 2 else 4, device=rank.device)
        rank.all_reduce(x).wait()
        x.cpu()

    for text in _failures(4, sizes):
        assert "do not agree on collective 1" in text, text
        assert "Float [3]" in text, text

    def ops(rank: Rank) -> None:
        x = torch.ones(4, device=rank.device)
        if rank.rank:
            rank.broadcast(x, 0)
        else:
            rank.all_reduce(x)
        x.add(1).cpu()
        rank.barrier()

    for text in _failures(2, ops):
        assert "all_reduce" in text, text
        assert "broadcast" in text, text

    def splits(rank: Rank) -> None:
        x, out = torch.ones(4, device=rank.device), torch.ones(4, device=rank.device)
        rank.all_to_all(out, x, ([2, 2], [2, 2]) if rank.rank else None)
        out.cpu()

    for text in _failures(2, splits):
        assert "even" in text, text


def check_ranks_that_differ_later() -> None:
    """Known calls in a known order, but not the same: found where the ranks meet."""

    def turns(rank: Rank) -> None:
        a, b = torch.ones(3, device=rank.device), torch.ones(5, device=rank.device)
        for _ in range(3):
            for x in (a, a, b, b):
                rank.all_reduce(x)
        a.cpu()
        rank.all_reduce(a if rank.rank else b)
        (a + b.sum()).cpu()
        rank.barrier()

    for text in _failures(2, turns):
        assert "do not agree on collective 13" in text, text


def check_a_missing_rank() -> None:
    def one_is_away(rank: Rank) -> None:
        x = torch.ones(4, device=rank.device)
        rank.all_reduce(x).wait()
        if rank.rank == 2:
            time.sleep(6)
        rank.all_reduce(x)
        x.cpu()

    texts = _failures(4, one_is_away, timeout=2)
    assert all("rank 2 has not called it" in text for text in texts), texts


def check_a_tensor_elsewhere() -> None:
    def elsewhere(rank: Rank) -> None:
        with pytest.raises(ValueError, match=f"has the device tpu:{rank.rank}"):
            rank.all_reduce(torch.ones(2, device="tpu:5"))

    run(2, elsewhere)


def check_stress() -> None:
    """Some hundred collectives of all kinds, on threads that come at any time."""

    def every(rank: Rank) -> None:
        n, me, device = rank.size, rank.rank, rank.device
        pauses = random.Random(me)
        order = random.Random(5)
        half = rank.part(range(4)) if me < 4 else rank.part(range(4, 8))
        x = torch.ones(n, 32, device=device)
        for step in range(300):
            if pauses.random() < 0.05:
                time.sleep(pauses.random() * 0.01)
            kind = order.randrange(6)
            if kind == 0:
                rank.all_reduce(x, "AVG")
            elif kind == 1:
                out = torch.empty(1, 32, device=device)
                rank.reduce_scatter_tensor(out, x, "MAX")
                rank.all_gather_into(x, out)
            elif kind == 2:
                other = torch.empty_like(x)
                rank.all_to_all(other, x)
                x = other
            elif kind == 3:
                rank.broadcast(x, step % n)
            elif kind == 4:
                half.all_reduce(x, "AVG")
            else:
                x = x * 2 - 1
            if step % 50 == 49:
                same(x, torch.ones(n, 32))
        same(x, torch.ones(n, 32))

    run(8, every, timeout=60)


def check_records() -> None:
    """The flight recorder and the profiler see them as any other."""
    torch_tpu.distributed.clear_flight()

    def twice(rank: Rank) -> None:
        x = torch.ones(4, 4, device=rank.device)
        for _ in range(2):
            rank.all_reduce(x).wait()
        x.cpu()

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as prof:
        run(2, twice)
    calls = [c for c in torch_tpu.distributed.flight() if c["op"] == "all_reduce"]
    assert sorted((c["rank"], c["seq"]) for c in calls) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    for call in calls:
        assert (call["state"], call["bytes"], call["detail"]) == ("done", 64, "Float [4, 4] SUM")
        assert call["issued"] <= call["started"] <= call["finished"]
        assert "thread_ranks.py" in call["where"]
    spans = [e for e in prof.events() if e.name == "tpu::collective all_reduce"]
    assert sorted(e.device_index for e in spans) == [0, 0, 1, 1]
