"""Ctrl-C, and other signals whose handlers raise, end every wait for a collective within a second,
and not the collective: it can be waited for again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed.ranks import Ranks, free_port

import torch_tpu

PROMPT = 1.0  # seconds from the signal to the exception
LONG = timedelta(seconds=40)  # far more than a test waits


def interrupted(wait: Callable[[], Any], number: int = signal.SIGINT) -> float:
    """Seconds from the signal, which comes while `wait` waits, to what its handler raised."""
    sent: list[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    timer = threading.Timer(0.3, send)
    timer.start()
    try:
        wait()
        timer.join()
    except KeyboardInterrupt:
        return time.monotonic() - sent[0]
    return -1.0


def all_reduce(group: Any, x: torch.Tensor) -> None:
    dist.all_reduce(x, group=group)


def read(group: Any, x: torch.Tensor) -> None:
    dist.all_reduce(x, group=group)
    x.sum().item()


def wait_with_timeout(group: Any, x: torch.Tensor) -> None:
    work = dist.all_reduce(x, group=group, async_op=True)
    assert work is not None
    work.wait(LONG)


def synchronize(group: Any, x: torch.Tensor) -> None:
    dist.all_reduce(x, group=group)
    torch.tpu.synchronize()  # type: ignore[attr-defined]


def event(group: Any, x: torch.Tensor) -> None:
    dist.all_reduce(x, group=group)
    done = torch.Event("tpu")
    done.record()
    done.synchronize()


def receive(group: Any, x: torch.Tensor) -> None:
    dist.recv(x, src=1, group=group)
    x.sum().item()


def reduce_in_debug(group: Any, x: torch.Tensor) -> None:
    with torch_tpu.mode("debug"):
        dist.all_reduce(x, group=group)


def read_fused(group: Any, x: torch.Tensor) -> None:
    with torch_tpu.mode("fused"):
        dist.all_reduce(x, group=group)
        (x * 2 + 1).sum().item()


def answer(wait: Any, group: Any) -> None:
    """What the other rank does afterwards, so that the call that was waited for ends well."""
    x = torch.ones(4, device="tpu")
    if wait is receive:
        dist.send(x * 2, dst=0, group=group)
    else:
        dist.all_reduce(x, group=group)
    x.sum().item()


def in_wait(wait: Callable[[Any, torch.Tensor], None]) -> float:
    group = dist.new_group(timeout=LONG)
    x = torch.ones(4, device="tpu")
    if dist.get_rank() == 1:
        dist.barrier()
        answer(wait, group)
        seconds = 0.0
    else:
        seconds = interrupted(lambda: wait(group, x))
        dist.barrier()
        assert x.tolist() == [2.0] * 4  # the work went on
    dist.destroy_process_group(group)
    return seconds


@pytest.mark.parametrize(
    "wait",
    [read, wait_with_timeout, synchronize, event, receive, reduce_in_debug, read_fused],
)
def test_a_wait_for_values(two: Ranks, wait: Callable[[Any, torch.Tensor], None]) -> None:
    seconds = two.run(in_wait, wait)[0]
    assert 0 <= seconds < PROMPT


def in_barrier(kind: str) -> float:
    group = dist.new_group(timeout=LONG)
    wait: dict[str, Callable[[], Any]] = {
        "barrier": lambda: dist.barrier(group=group),
        "asynchronous": lambda: dist.barrier(group=group, async_op=True).wait(),
        "destroy": lambda: dist.destroy_process_group(group),
    }
    if kind == "destroy":
        dist.all_reduce(torch.ones(4, device="tpu"), group=group)
    seconds = 0.0
    if dist.get_rank() == 0:
        if kind == "destroy":
            # Alone: the other rank is only asked for its part afterwards.
            dist.all_reduce(torch.ones(4, device="tpu"), group=group)
        seconds = interrupted(wait[kind])
        dist.barrier()
    else:
        dist.barrier()
        if kind == "destroy":
            dist.all_reduce(torch.ones(4, device="tpu"), group=group)
        else:
            dist.barrier(group=group)
    dist.destroy_process_group(group)
    return seconds


@pytest.mark.parametrize("kind", ["barrier", "asynchronous", "destroy"])
def test_a_wait_for_others(two: Ranks, kind: str) -> None:
    seconds = two.run(in_barrier, kind)[0]
    assert 0 <= seconds < PROMPT


def in_monitored_barrier() -> float:
    group = dist.new_group(timeout=timedelta(seconds=6))
    seconds = 0.0
    if dist.get_rank() == 0:
        soon = timedelta(seconds=5)
        seconds = interrupted(lambda: dist.monitored_barrier(group, timeout=soon))
    dist.barrier()
    dist.destroy_process_group(group)
    return seconds


def test_a_monitored_barrier(two: Ranks) -> None:
    seconds = two.run(in_monitored_barrier)[0]
    assert 0 <= seconds < PROMPT


def with_handlers() -> list[str]:
    """A handler that raises ends the wait with what it raised; one that does not lets it go on."""
    group = dist.new_group(timeout=LONG)
    if dist.get_rank() == 1:
        dist.barrier()
        dist.all_reduce(torch.ones(4, device="tpu"), group=group)
        dist.destroy_process_group(group)
        return []
    said: list[str] = []

    def stop(number: int, _: Any) -> None:
        raise ValueError(f"asked to stop by {signal.Signals(number).name}")

    before = [
        signal.signal(signal.SIGUSR1, stop),
        signal.signal(signal.SIGUSR2, lambda *_: said.append("handled")),
    ]
    x = torch.ones(4, device="tpu")
    dist.all_reduce(x, group=group)
    try:
        interrupted(lambda: x.sum().item(), signal.SIGUSR1)
    except ValueError as error:
        said.append(str(error))
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR2)).start()
    threading.Timer(0.6, dist.barrier).start()  # then the other rank does its part
    said.append(str(x.sum().item()))
    signal.signal(signal.SIGUSR1, before[0])
    signal.signal(signal.SIGUSR2, before[1])
    dist.destroy_process_group(group)
    return said


def test_handlers_of_the_user(two: Ranks) -> None:
    assert two.run(with_handlers)[0] == ["asked to stop by SIGUSR1", "handled", "8.0"]


SCRIPT = """
    import sys, time
    from datetime import timedelta
    import torch, torch.distributed as dist
    rank, port = int(sys.argv[1]), int(sys.argv[2])
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    dist.init_process_group(store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    x = torch.ones(4, device="tpu")
    dist.all_reduce(x)
    x.sum().item()
    print("waiting", flush=True)
    if rank == 1:
        time.sleep(60)
    dist.all_reduce(x)
    x.sum().item()
"""


def test_ctrl_c_ends_a_program() -> None:
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SCRIPT), str(rank), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "waiting\n"
        time.sleep(0.5)
        start = time.monotonic()
        ranks[0].send_signal(signal.SIGINT)
        _, err = ranks[0].communicate(timeout=30)
        assert time.monotonic() - start < 10  # with what ending a process takes
        assert "KeyboardInterrupt" in err
        assert 'File "<string>", line 15' in err  # the read
        assert ranks[0].returncode in (-signal.SIGINT, 130)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
