"""Kills one rank with SIGKILL inside a collective, many times: all others must raise within the
timeout plus 2 s, with an error that names the rank.

    python tests/stress/kill_rank.py [--times 20] [--ranks 4] [--timeout 5]

Prints a line per kill and the slowest; exits 1 if any rank hung or blamed somebody else.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch.multiprocessing as mp

GRACE = 2.0


def work(rank: int, size: int, port: int, victim: int, at: int, timeout: float, pipe: Any) -> None:
    """Collectives without end; the victim stops in the middle of number `at`."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    store.set(f"here{rank}", "")  # starting may take longer than the timeout
    store.wait([f"here{other}" for other in range(size)], timedelta(seconds=120))
    dist.init_process_group(
        "tpu", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
    )
    # Big enough that the victim dies with bytes on the way.
    x = torch.ones(1 << 18, device="tpu")
    out = torch.empty(size << 18, device="tpu")
    try:
        step = 0
        while True:
            step += 1
            kind = step % 3
            if kind == 0:
                call = dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)
            elif kind == 1:
                call = dist.all_gather_into_tensor(out, x, async_op=True)
            else:
                call = dist.broadcast(x, src=step % size, async_op=True)
            if step == at:
                pipe.send("there")
                if rank == victim:
                    os.kill(os.getpid(), signal.SIGKILL)
            call.wait()
            if x[0].item() != 1.0:
                raise AssertionError("wrong result")
    except RuntimeError as error:
        pipe.send((time.time(), type(error).__name__, str(error)))
    dist.destroy_process_group()


def listen(pipe: Connection, seconds: float) -> Any:
    """What a rank says, or None."""
    try:
        return pipe.recv() if pipe.poll(max(0.0, seconds)) else None
    except EOFError:
        return None


def kill_once(size: int, timeout: float, seed: int) -> tuple[float, list[str]]:
    """The longest a rank took to raise, and what went wrong."""
    import torch.distributed as dist

    pick = random.Random(seed)
    victim, at = pick.randrange(size), pick.randrange(3, 40)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = mp.get_context("spawn")
    pipes, processes = [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        args = (rank, size, store.port, victim, at, timeout, theirs)
        processes.append(context.Process(target=work, args=args))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    assert listen(pipes[victim], 120) == "there", "the ranks did not start"
    processes[victim].join()
    died = time.time()
    problems, slowest = [], 0.0
    for rank in range(size):
        if rank == victim:
            continue
        answer = listen(pipes[rank], 30)
        if answer == "there":
            answer = listen(pipes[rank], timeout + GRACE + 10 - (time.time() - died))
        if answer is None:
            problems.append(f"rank {rank} hung")
            continue
        when, kind, text = answer
        slowest = max(slowest, when - died)
        if when - died > timeout + GRACE:
            problems.append(f"rank {rank} took {when - died:.1f} s")
        if f"rank {victim} died" not in text:
            problems.append(f"rank {rank} does not name rank {victim}: {kind}: {text}")
    for process in processes:
        process.join(10)
        if process.is_alive():
            problems.append("a process did not end")
            process.kill()
            process.join()
    return slowest, problems


def main() -> int:
    """0 when every kill was reported in time by all others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    failed, slowest = 0, 0.0
    for turn in range(args.times):
        seconds, problems = kill_once(args.ranks, args.timeout, args.seed + turn)
        slowest = max(slowest, seconds)
        failed += bool(problems)
        print(
            f"{turn + 1:3d}: all raised after {seconds:.2f} s", *problems, sep="\n     ", flush=True
        )
    print(f"{args.times} kills, {failed} not as they should; slowest {slowest:.2f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
