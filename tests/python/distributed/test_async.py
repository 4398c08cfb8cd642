"""Collectives hold up neither the host nor other threads, and run while backward goes on."""

from __future__ import annotations

import threading
import time

import torch
import torch.distributed as dist
from distributed.ranks import Ranks, free_port
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torch_tpu

LATE = 2.0


def check_wait_returns() -> None:
    """Rank 1 comes late; rank 0 goes on recording, and waits only where it reads."""
    dist.barrier()
    start = time.monotonic()
    if dist.get_rank() == 1:
        time.sleep(LATE)
    x = torch.ones(100, device="tpu")
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    dist.all_reduce(x)
    y = (x * 2 + 1).sum()
    issued = time.monotonic() - start
    assert y.item() == 100 * (2 * dist.get_world_size() ** 2 + 1)
    done = time.monotonic() - start
    if dist.get_rank() == 0:
        assert issued < LATE / 2
        assert done > LATE / 2


def check_other_threads_go_on() -> None:
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(LATE)
    x = torch.ones(100, device="tpu")
    dist.all_reduce(x)
    found: list[float] = []
    reader = threading.Thread(target=lambda: found.extend(x.tolist()))
    start = time.monotonic()
    reader.start()
    time.sleep(0.1)
    assert (torch.ones(50, device="tpu") * 3).sum().item() == 150
    seconds = time.monotonic() - start
    reader.join()
    assert found == [float(dist.get_world_size())] * 100
    if dist.get_rank() == 0:
        assert seconds < LATE / 2


def check_synchronize_waits() -> None:
    if dist.get_rank() == 1:
        time.sleep(0.3)
    work = dist.all_reduce(torch.ones(10, device="tpu"), async_op=True)
    event = torch.tpu.Event()
    event.record()
    torch.tpu.synchronize()
    assert work.is_completed()
    assert event.query()


def check_overlap() -> None:
    """A bucket is reduced before the last one is issued."""
    layers = [layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers).to("tpu"), bucket_cap_mb=1)
    x = torch.randn(64, 512, device="tpu")
    early = 0
    for step in range(6):
        torch_tpu.distributed.clear_flight()
        model(x).square().mean().backward()
        torch.tpu.synchronize()
        calls = [c for c in torch_tpu.distributed.flight() if c["op"] == "all_reduce"]
        if step == 0:  # one bucket; DDP makes the others in the order it sees in this step
            continue
        assert len(calls) > 4
        last = max(call["issued"] for call in calls)
        early = max(early, sum(call["finished"] < last for call in calls))
    assert early > 0


def test_wait_does_not_block(two: Ranks) -> None:
    two.run(check_wait_returns)


def test_no_lock_is_held(two: Ranks) -> None:
    two.run(check_other_threads_go_on)


def test_synchronize(two: Ranks) -> None:
    two.run(check_synchronize_waits)


def test_gradients_reduce_during_backward(two: Ranks) -> None:
    two.run(check_overlap)


def test_a_group_starts_no_client(run_python) -> None:
    out = run_python(
        f"""
        import torch
        import torch.distributed as dist
        address = "tcp://127.0.0.1:{free_port()}"
        dist.init_process_group(init_method=address, rank=0, world_size=1)
        print(torch.tpu.is_initialized(), dist.get_backend())
        x = torch.ones(3, device="tpu")
        dist.all_reduce(x)
        print(x.tolist())
        """
    )
    assert out.split("\n")[:2] == ["False cpu:gloo,tpu:tpu", "[1.0, 1.0, 1.0]"]
