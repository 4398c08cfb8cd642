"""Arguments that no collective can do anything with: raised at the call, as for CPU tensors."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed.ranks import Ranks

c10d: Any = dist.distributed_c10d
Call = Callable[[str], Any]


def ones(device: str, size: int = 3) -> torch.Tensor:
    return torch.ones(size, device=device)


def rooted(options: Any, root: int) -> Any:
    options.rootRank = root
    return options


def gather(device: str, root: int, *sizes: int) -> Any:
    """Through the group itself: torch.distributed looks at some of it before."""
    outputs = [[ones(device, size) for size in sizes]] if sizes else []
    options = rooted(c10d.GatherOptions(), root)
    return c10d.GroupMember.WORLD.gather(outputs, [ones(device)], options)


def scatter(device: str, root: int, *sizes: int) -> Any:
    inputs = [[ones(device, size) for size in sizes]] if sizes else []
    options = rooted(c10d.ScatterOptions(), root)
    return c10d.GroupMember.WORLD.scatter([ones(device)], inputs, options)


CALLS: dict[str, Call] = {
    "broadcast": lambda device: dist.broadcast(ones(device), 5),
    "broadcast, below": lambda device: dist.broadcast(ones(device), group_src=-1),
    "reduce": lambda device: dist.reduce(ones(device), 5),
    "reduce, below": lambda device: dist.reduce(ones(device), group_dst=-1),
    "gather": lambda device: dist.gather(ones(device), None, group_dst=5),
    "gather, below": lambda device: gather(device, -1),
    "scatter": lambda device: dist.scatter(ones(device), None, group_src=5),
    "scatter, below": lambda device: scatter(device, -1),
    "gather without a list": lambda device: gather(device, dist.get_rank()),
    "gather into three": lambda device: gather(device, dist.get_rank(), 3, 3, 3),
    "gather into another size": lambda device: gather(device, dist.get_rank(), 3, 4),
    "gather into a list elsewhere": lambda device: gather(device, 1 - dist.get_rank(), 3, 3),
    "scatter without a list": lambda device: scatter(device, dist.get_rank()),
    "scatter of three": lambda device: scatter(device, dist.get_rank(), 3, 3, 3),
    "scatter of another size": lambda device: scatter(device, dist.get_rank(), 3, 4),
    "scatter of a list elsewhere": lambda device: scatter(device, 1 - dist.get_rank(), 3, 3),
    "send to itself": lambda device: dist.send(ones(device), dist.get_rank()),
}


def said(call: Call, device: str) -> tuple[str, str]:
    try:
        call(device)
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0]
    return "", ""


def on_both() -> dict[str, tuple[Any, Any]]:
    answers = {name: (said(call, "cpu"), said(call, "tpu")) for name, call in CALLS.items()}
    x = ones("tpu")
    dist.all_reduce(x)  # the group is none the worse for it
    assert x.tolist() == [2.0] * 3
    return answers


def test_as_gloo_says_it(two: Ranks) -> None:
    for answers in two.run(on_both):
        for name, (cpu, tpu) in answers.items():
            assert cpu[0], name
            assert tpu == cpu, name


def to_nobody() -> list[tuple[str, str]]:
    """Gloo would look for such a rank until the timeout, or crash."""
    group: Any = c10d.GroupMember.WORLD
    rank = dist.get_rank()
    return [
        said(call, "tpu")
        for call in (
            lambda device: dist.send(ones(device), 5),
            lambda device: group.send([ones(device)], -1, 0),
            lambda device: dist.recv(ones(device), 5),
            lambda device: dist.irecv(ones(device), group_src=2),
            lambda device: group.send([ones(device)], rank, 0),
            lambda device: dist.recv(ones(device), rank),
        )
    ]


def test_messages_to_nobody(two: Ranks) -> None:
    nobody = "Invalid {} rank: {} is not a rank of this group, which has 2"
    itself = "Invalid {0} rank: {0} rank should not be the same as the rank of the current process."
    expected = [
        ("ValueError", nobody.format("destination", 5)),
        ("ValueError", nobody.format("destination", -1)),
        ("ValueError", nobody.format("source", 5)),
        ("ValueError", nobody.format("source", 2)),
        ("ValueError", itself.format("destination")),
        ("ValueError", itself.format("source")),
    ]
    assert two.run(to_nobody) == [expected] * 2


def late(group: Any) -> tuple[str, str]:
    return said(lambda _: dist.barrier(group=group, timeout=timedelta(seconds=1)), "")


def barrier_alone() -> tuple[str, str]:
    """Its own timeout counts, not the group's."""
    group = dist.new_group(timeout=timedelta(seconds=60))
    answer = late(group) if dist.get_rank() == 0 else ("", "")
    dist.barrier()
    dist.destroy_process_group(group)
    return answer


def test_a_barrier_has_its_own_timeout(two: Ranks) -> None:
    kind, text = two.run(barrier_alone, timeout=30)[0]
    assert kind == "DistBackendError"
    assert "[barrier]" in text
    assert "rank 1 has not called it" in text


def masks() -> dict[str, list[int]]:
    """The signals that threads of process groups block, by the thread's name."""
    x = ones("tpu")
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
    x.sum().item()
    found: dict[str, list[int]] = {}
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/status") as status:
                lines = dict(line.split(":", 1) for line in status)
        except OSError:  # it has ended
            continue
        found.setdefault(lines["Name"].strip(), []).append(int(lines["SigBlk"], 16))
    return found


@pytest.mark.parametrize("name", ["tpu_watchdog", "tpu_group", "tpu_waiter"])
def test_threads_get_no_signals(two: Ranks, name: str) -> None:
    for found in two.run(masks):
        assert found.get(name)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPROF, signal.SIGUSR1):
            assert all(mask >> (number - 1) & 1 for mask in found[name])
        assert not any(mask >> (signal.SIGSEGV - 1) & 1 for mask in found[name])
