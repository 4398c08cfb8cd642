"""Random schedules of work that differs from rank to rank between collectives, in Fused Eager:
extra ops, other shapes, prints, host reads, saves, sleeps. No rank may hang, all results must be
right.

    python tests/stress/mpmd_schedules.py [--schedules 200] [--ranks 4]

The collectives of a schedule are the same on all ranks, as they must be. What lies between them is
drawn per rank.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
import time
from datetime import timedelta
from typing import Any

import torch.multiprocessing as mp

TIMEOUT = 60.0


def between(pick: random.Random, junk: dict[int, Any]) -> None:
    """Something this rank does on its own."""
    import torch

    for _ in range(pick.randrange(4)):
        kind = pick.randrange(7)
        n = pick.choice([1, 3, 17, 64])
        if kind == 0:
            x = torch.full((n, 4), 2.0, device="tpu")
            for _ in range(pick.randrange(1, 30)):
                x = x * 1.5 - 1.0
            junk[n] = x
        elif kind == 1:
            junk[-n] = torch.arange(n, device="tpu").float().softmax(0)
        elif kind == 2 and junk:
            repr(pick.choice(list(junk.values())))
        elif kind == 3 and junk:
            pick.choice(list(junk.values())).sum().item()
        elif kind == 4 and junk:
            torch.save(pick.choice(list(junk.values())), io.BytesIO())
        elif kind == 5:
            time.sleep(pick.random() * 0.01)
        else:
            a = torch.ones(n, n, device="tpu")
            junk[1000 + n] = (a @ a).relu_()


def schedule(rank: int, size: int, seed: int) -> int:
    """Runs one schedule and checks it; returns the number of collectives."""
    import torch
    import torch.distributed as dist

    shared, own = random.Random(seed), random.Random(seed * 1000 + rank)
    junk: dict[int, Any] = {}
    value = 1.0
    x = torch.full((6,), value, device="tpu")
    count = shared.randrange(3, 9)
    pending: list[tuple[Any, Any, float]] = []
    for _ in range(count):
        between(own, junk)
        kind = shared.randrange(6)
        if kind == 0:
            dist.all_reduce(x)
            value *= size
        elif kind == 1:
            root = shared.randrange(size)
            if rank == root:
                x = x + 1
            value += 1
            dist.broadcast(x, src=root)
        elif kind == 2:
            out = torch.empty(size * 6, device="tpu")
            dist.all_gather_into_tensor(out, x)
            x = out.view(size, 6).sum(0) - (size - 1) * x
        elif kind == 3:
            y = x.clone()
            pending.append((dist.all_reduce(y, async_op=True), y, value * size))
        elif kind == 4:
            mine = torch.empty(6, device="tpu")
            dist.reduce_scatter_tensor(mine, x.repeat(size))
            x = mine
            value *= size
        else:
            dist.barrier()
        x = x / 2
        value /= 2
        between(own, junk)
        if pending and shared.random() < 0.5:
            work, y, want = pending.pop(0)
            work.wait()
            assert y.tolist() == [want] * 6, (seed, y, want)
    for work, y, want in pending:
        work.wait()
        assert y.tolist() == [want] * 6, (seed, y, want)
    assert x.tolist() == [value] * 6, (seed, x, value)
    return count


def run(rank: int, size: int, port: int, schedules: int, seed: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=TIMEOUT),
    )
    start, collectives = time.monotonic(), 0
    for turn in range(schedules):
        collectives += schedule(rank, size, seed + turn)
        if rank == 0 and (turn + 1) % 20 == 0:
            print(f"{turn + 1} schedules, {time.monotonic() - start:.0f} s", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print(f"{schedules} schedules, {collectives} collectives on {size} ranks: all right")


def main() -> int:
    """0 when all ranks finished all schedules with the right results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(run, (args.ranks, port, args.schedules, args.seed), nprocs=args.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
