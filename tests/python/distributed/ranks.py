"""Processes that form a group and run functions of the tests, each on all ranks at once. Starting a
process takes seconds, so a pool serves many tests."""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch.multiprocessing as mp

PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))  # more where all is slower: sanitizers
TIMEOUT = 60.0 * PATIENCE


def free_port() -> int:
    """A TCP port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def join(
    rank: int, size: int, port: int, backend: str | None = None, timeout: float = 30 * PATIENCE
) -> None:
    """Forms a group. Starting may take longer than the group's timeout allows a collective."""
    import torch.distributed as dist

    patience = timedelta(seconds=120)
    store = dist.TCPStore("127.0.0.1", port, size, is_master=rank == 0, timeout=patience)
    store.set(f"here{rank}", "")
    store.wait([f"here{other}" for other in range(size)], patience)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
    )


def _serve(rank: int, size: int, port: int, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    join(rank, size, port)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            break
        if task is None:
            break
        function, args = task
        try:
            pipe.send((True, function(*args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class Ranks:
    """`size` processes; `run(f, *args)` calls f on each and returns the results by rank."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []

    def _start(self) -> None:
        context = mp.get_context("spawn")
        port = free_port()
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.size, port, theirs))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = TIMEOUT) -> list[Any]:
        """Raises with the tracebacks of all ranks that failed; a hang ends the pool."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, args))
        deadline = time.monotonic() + timeout
        results: list[Any] = []
        errors: list[str] = []
        for rank, pipe in enumerate(self._pipes):
            try:
                if not pipe.poll(max(0.0, deadline - time.monotonic())):
                    errors.append(f"rank {rank}: no answer within {timeout} s")
                    continue
                fine, result = pipe.recv()
            except EOFError:
                errors.append(f"rank {rank}: the process ended")
                continue
            if not fine:
                errors.append(f"rank {rank}:\n{result}")
            results.append(result)
        if errors:
            self.close(kill=True)
            raise AssertionError("\n".join(errors))
        return results

    def close(self, kill: bool = False) -> None:
        """Ends the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            if kill:
                process.kill()
                continue
            pipe.send(None)
        for process in self._processes:
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()
        self._pipes, self._processes = [], []
