"""Ranks that die, stall, stay away or do something else: all others get an error that says so, in
time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing as mp
from distributed.ranks import free_port, join

Said = tuple[float, str, str] | None
TIMEOUT = 3.0


def _run(rank: int, size: int, port: int, queue: Any, function: Callable[[int], None]) -> None:
    import torch

    torch.set_num_threads(1)
    join(rank, size, port, timeout=TIMEOUT)
    said: Said = None
    start = time.monotonic()
    try:
        function(rank)
    except Exception as error:
        said = (time.monotonic() - start, type(error).__name__, str(error))
    queue.put((rank, said))


def outcome(function: Callable[[int], None], size: int = 2, dead: tuple[int, ...] = ()) -> dict[int, Said]:
    """What each rank that lives raised."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    port = free_port()
    processes = [
        context.Process(target=_run, args=(rank, size, port, queue, function))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        return dict(queue.get(timeout=60) for _ in range(size - len(dead)))
    finally:
        for rank, process in enumerate(processes):
            if rank in dead:
                process.kill()
            process.join(15)
            if process.is_alive():
                process.kill()


def reduce_without_end(rank: int) -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(1000, device="tpu")
    for step in range(100000):
        if rank == 1 and step == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        x.sum().item()


def test_death() -> None:
    said = outcome(reduce_without_end, 4, dead=(1,))
    assert sorted(said) == [0, 2, 3]
    for answer in said.values():
        assert answer is not None and answer[1] == "DistBackendError"
        assert "rank 1 died" in answer[2] and "all_reduce" in answer[2], answer[2]
        assert "test_failures.py" in answer[2]


def stay_away(rank: int) -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(4, device="tpu")
    dist.all_reduce(x)
    x.sum().item()
    if rank == 1:
        time.sleep(TIMEOUT + 4)
        return
    dist.all_reduce(x)
    x.sum().item()


def test_timeout_names_who_is_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_TPU_FLIGHT", str(tmp_path))
    said = outcome(stay_away, 2)
    assert said[1] is None
    assert said[0] is not None
    seconds, kind, text = said[0]
    assert seconds < TIMEOUT + 2.5 and kind == "DistBackendError", (seconds, text)
    assert "rank 1 has not called it" in text and "collective 2 of group" in text, text
    data = json.loads((tmp_path / "rank0.json").read_text())
    last = data["collectives"][-1]
    assert last["state"] == "failed" and last["op"] == "all_reduce" and last["seq"] == 2
    assert "test_failures.py" in last["where"]


def stall(rank: int) -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(4, device="tpu")
    dist.all_reduce(x)
    x.sum().item()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(x)
    x.sum().item()


def test_stall() -> None:
    said = outcome(stall, 2, dead=(1,))
    assert said[0] is not None
    assert said[0][0] < TIMEOUT + 2.5 and "rank 1 is stopped" in said[0][2], said[0]


def differ(rank: int) -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(4, device="tpu")
    if rank == 0:
        dist.all_reduce(x)
    else:
        dist.broadcast(x, src=0)
    x.sum().item()


def differ_in_size(rank: int) -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(4 + rank, device="tpu")
    dist.all_reduce(x)
    x.sum().item()


def differ_later(rank: int) -> None:
    """All that is called is known, but rank 1 leaves one out."""
    import torch
    import torch.distributed as dist

    for step in range(6):
        x, y = torch.ones(4, device="tpu"), torch.ones(400, device="tpu")
        if rank == 0 or step != 4:
            dist.all_reduce(x)
        dist.all_reduce(y)
        assert x.sum().item() + y.sum().item() > 0


@pytest.mark.parametrize("function", [differ, differ_in_size, differ_later])
def test_disagreement(function: Callable[[int], None]) -> None:
    said = outcome(function)
    for answer in said.values():
        assert answer is not None
        assert answer[0] < TIMEOUT + 2.5
        assert "do not agree on collective" in answer[2], answer[2]
        assert "rank 0 calls" in answer[2] and "rank 1 calls" in answer[2]
        assert answer[2].count("test_failures.py") >= 2


def use_after_failure(rank: int) -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(4, device="tpu")
    if rank == 1:
        time.sleep(TIMEOUT + 3)
        return
    try:
        dist.all_reduce(x)
        x.sum().item()
    except RuntimeError:
        dist.all_reduce(torch.ones(3, device="tpu"))  # raises what the group failed with


def test_group_stays_failed() -> None:
    said = outcome(use_after_failure)
    assert said[0] is not None and "rank 1" in said[0][2]


def abort_waiting(rank: int) -> None:
    import threading

    import torch
    import torch.distributed as dist

    if rank == 1:
        time.sleep(1.5)
        return
    group = dist.group.WORLD
    assert group is not None
    threading.Timer(0.5, group.abort).start()
    dist.all_reduce(torch.ones(3, device="tpu"), async_op=True)
    dist.barrier()


def test_abort() -> None:
    said = outcome(abort_waiting)
    assert said[0] is not None and said[0][0] < 2 and "aborted" in said[0][2], said[0]


def wait_with_timeout(rank: int) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    if rank == 0:
        work = dist.all_reduce(torch.ones(3, device="tpu"), async_op=True)
        work.wait(timedelta(seconds=0.3))
    else:
        time.sleep(1)


def test_wait_honours_its_timeout() -> None:
    said = outcome(wait_with_timeout)
    assert said[0] is not None and said[0][0] < 1.0 and "300 ms" in said[0][2], said[0]


def flight_cli(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch_tpu", "flight", *args], capture_output=True, text=True
    )


def test_flight_command(tmp_path: Path) -> None:
    def entry(seq: int, op: str, state: str) -> dict[str, Any]:
        return {
            **{"id": seq, "group": "0", "seq": seq, "op": op, "detail": "Float [4] SUM"},
            **{"peer": -1, "bytes": 16, "where": f"train.py:{seq} in f", "state": state},
            **{"issued": 1.0 + seq, "started": 1.0, "finished": 2.0, "error": ""},
        }

    for rank, last in ((0, 3), (2, 2)):
        entries = [entry(seq, "all_reduce", "done" if seq < last else "failed") for seq in range(1, last + 1)]
        data = {"version": 1, "rank": rank, "world_size": 3, "host": "h", "pid": 1, "time": 1.0}
        (tmp_path / f"rank{rank}.json").write_text(
            json.dumps({**data, "reason": "rank 1 died", "collectives": entries})
        )
    out = flight_cli(str(tmp_path))
    assert out.returncode == 0
    assert "no file of rank 1" in out.stdout
    assert "rank 2 stopped after collective 2" in out.stdout and "MISSING" in out.stdout
    report = json.loads(flight_cli("--json", str(tmp_path)).stdout)
    assert report["missing_ranks"] == [1]
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    for name in (bad, tmp_path / "none.json"):
        out = flight_cli(str(name))
        assert out.returncode == 2 and "torch-tpu flight:" in out.stderr
        assert "Traceback" not in out.stderr
