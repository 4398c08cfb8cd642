"""Ranks that leave a group, or end, before the others are done: what is said of them is true."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from distributed.ranks import Ranks, free_port, join

CALLS = 4
PATIENCE = 30.0  # of the groups; an answer that has to wait for it comes too late


def call(group: Any = None, times: int = CALLS) -> None:
    for _ in range(times):
        x = torch.ones(4, device="tpu")
        dist.all_reduce(x, group=group)
        x.sum().item()


def said_to_who_stays(group: Any = None) -> tuple[float, str, str]:
    start = time.monotonic()
    try:
        call(group, 1)
    except RuntimeError as error:
        return time.monotonic() - start, type(error).__name__, str(error)
    return 0.0, "", ""


def leave_the_group() -> tuple[float, str, str] | None:
    group = dist.new_group(timeout=timedelta(seconds=PATIENCE))
    call(group)
    said = said_to_who_stays(group) if dist.get_rank() == 0 else None
    dist.destroy_process_group(group)
    dist.barrier()
    return said


def test_a_rank_that_destroys_its_group(two: Ranks) -> None:
    seconds, kind, text = two.run(leave_the_group)[0]
    assert kind == "DistBackendError"
    assert "rank 1 has left the group (its last collective was 4, all_reduce Float [4] SUM)" in text
    assert seconds < PATIENCE / 2


def leave_after_all() -> list[float]:
    """Rank 1 leaves while rank 0 still waits for what it was sent: that is no failure."""
    group = dist.new_group(timeout=timedelta(seconds=PATIENCE))
    x = torch.full((1000,), 1.0 + dist.get_rank(), device="tpu")
    dist.all_reduce(x, group=group)
    if dist.get_rank() == 0:
        dist.barrier()  # until the other has left
        time.sleep(2.5)  # the watchdog has looked
        total = x[:2].tolist()
        dist.destroy_process_group(group)
    else:
        total = x[:2].tolist()
        dist.destroy_process_group(group)
        dist.barrier()
    return total


def test_a_rank_that_has_done_its_part_may_leave(two: Ranks) -> None:
    assert two.run(leave_after_all) == [[3.0, 3.0]] * 2


def end(rank: int, port: int, queue: Any, how: str) -> None:
    torch.set_num_threads(1)
    join(rank, 2, port, timeout=PATIENCE)
    call(times=0 if how == "no call" else CALLS)
    if rank == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return
    queue.put(said_to_who_stays())


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("killed", "rank 1 died: its process has ended (the last collective known of it was 4, "),
        ("returned", "rank 1 has left the group (its last collective was 4, all_reduce "),
        ("no call", "rank 1 has left the group (it has called no collective)"),
    ],
)
def test_a_rank_whose_process_ends(how: str, expected: str) -> None:
    context = mp.get_context("spawn")
    queue, port = context.Queue(), free_port()
    ranks = [context.Process(target=end, args=(rank, port, queue, how)) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        seconds, kind, text = queue.get(timeout=60)
        assert kind == "DistBackendError"
        assert expected in text
        assert seconds < PATIENCE / 2
        for process in ranks:
            process.join(20)
        assert ranks[0].exitcode == 0
    finally:
        for process in ranks:
            process.kill()
