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
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from distributed.ranks import Ranks, free_port, join

Said = tuple[float, str, str] | None
TIMEOUT = 2.0
GRACE = 2.5  # 2 s, and what a busy machine adds


def said_by(function: Callable[..., None], *args: Any) -> Said:
    """What a function raised, and after how long."""
    start = time.monotonic()
    try:
        function(*args)
    except Exception as error:
        return time.monotonic() - start, type(error).__name__, str(error)
    return None


def alone(rank: int, size: int, port: int, queue: Any, function: Callable[[int], None]) -> None:
    torch.set_num_threads(1)
    join(rank, size, port, timeout=TIMEOUT)
    queue.put((rank, said_by(function, rank)))


def survivors(function: Callable[[int], None], size: int, victim: int) -> dict[int, Said]:
    """What the other ranks raised, in processes of their own."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    port = free_port()
    processes = [
        context.Process(target=alone, args=(rank, size, port, queue, function))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        said = dict(queue.get(timeout=60) for _ in range(size - 1))
        processes[victim].kill()
        for rank, process in enumerate(processes):
            process.join(15)
            assert rank == victim or process.exitcode == 0
        return said
    finally:
        for process in processes:
            process.kill()


def reduce_without_end(rank: int) -> None:
    x = torch.ones(1000, device="tpu")
    for step in range(100000):
        if rank == 1 and step == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        x.sum().item()


def test_death() -> None:
    said = survivors(reduce_without_end, 4, victim=1)
    assert sorted(said) == [0, 2, 3]
    for answer in said.values():
        assert answer is not None
        _, kind, text = answer
        assert kind == "DistBackendError"
        assert "rank 1 died" in text
        assert "all_reduce" in text
        assert "test_failures.py" in text


def stall(rank: int) -> None:
    x = torch.ones(4, device="tpu")
    dist.all_reduce(x)
    x.sum().item()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(x)
    x.sum().item()


def test_stall() -> None:
    said = survivors(stall, 2, victim=1)
    assert said[0] is not None
    seconds, _, text = said[0]
    assert seconds < TIMEOUT + GRACE
    assert "rank 1 is stopped" in text


def in_group(function: Callable[..., None], *args: Any) -> Said:
    """In a group that may fail, with a short timeout; the ranks' own stays as it is."""
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT))
    dist.barrier()
    try:
        return said_by(function, group, *args)
    finally:
        dist.destroy_process_group(group)


def stay_away(group: Any, folder: str) -> None:
    os.environ["TORCH_TPU_FLIGHT"] = folder
    x = torch.ones(4, device="tpu")
    dist.all_reduce(x, group=group)
    x.sum().item()
    if dist.get_rank() == 1:
        time.sleep(TIMEOUT + 2)
        return
    dist.all_reduce(x, group=group)
    try:
        x.sum().item()
    except RuntimeError:
        dist.all_reduce(torch.ones(3, device="tpu"), group=group)  # the group stays failed


def test_timeout_names_who_is_late(two: Ranks, tmp_path: Path) -> None:
    said = two.run(in_group, stay_away, str(tmp_path))
    assert said[1] is None
    seconds, kind, text = said[0]
    assert seconds < TIMEOUT + GRACE
    assert kind == "DistBackendError"
    assert "timed out" in text
    assert "rank 1 has not called it" in text
    assert "collective 2 of group" in text
    data = json.loads((tmp_path / "rank0.json").read_text())
    last = data["collectives"][-1]
    assert (last["state"], last["op"], last["seq"]) == ("failed", "all_reduce", 2)
    assert "test_failures.py" in last["where"]


def differ(group: Any) -> None:
    x = torch.ones(4, device="tpu")
    if dist.get_rank() == 0:
        dist.all_reduce(x, group=group)
    else:
        dist.broadcast(x, src=0, group=group)
    x.sum().item()


def differ_in_size(group: Any) -> None:
    x = torch.ones(4 + dist.get_rank(), device="tpu")
    dist.all_reduce(x, group=group)
    x.sum().item()


def differ_later(group: Any) -> None:
    """All that is called is known, but rank 1 leaves one out."""
    for step in range(6):
        x, y = torch.ones(4, device="tpu"), torch.ones(400, device="tpu")
        if dist.get_rank() == 0 or step != 4:
            dist.all_reduce(x, group=group)
        dist.all_reduce(y, group=group)
        assert x.sum().item() + y.sum().item() > 0


def _take_turns(group: Any, first: Callable[[], None], second: Callable[[], None]) -> None:
    """Every order of the two has been seen before rank 1 calls the second instead of the first."""
    for call in (first, first, second, second, first):
        call()
    (first if dist.get_rank() == 0 else second)()
    end = time.monotonic() + TIMEOUT + GRACE
    while time.monotonic() < end:
        first()
        time.sleep(0.01)


def differ_in_reduction(group: Any) -> None:
    """Nothing hangs, results are wrong."""

    def reduce(op: Any) -> None:
        x = torch.ones(4, device="tpu")
        dist.all_reduce(x, op=op, group=group)
        x.sum().item()

    _take_turns(group, lambda: reduce(dist.ReduceOp.SUM), lambda: reduce(dist.ReduceOp.MAX))


def differ_in_known_size(group: Any) -> None:
    """One rank gets more bytes than it expects, on which Gloo would end the process."""

    def reduce(size: int) -> None:
        x = torch.ones(size, device="tpu")
        dist.all_reduce(x, group=group)
        x.sum().item()

    _take_turns(group, lambda: reduce(4), lambda: reduce(4000))


def differ_in_known_op(group: Any) -> None:
    def reduce() -> None:
        x = torch.ones(4, device="tpu")
        dist.all_reduce(x, group=group)
        x.sum().item()

    def gather() -> None:
        x = torch.ones(4, device="tpu")
        every = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(every, x, group=group)
        every[0].sum().item()

    _take_turns(group, reduce, gather)


@pytest.mark.parametrize(
    "function",
    [
        differ,
        differ_in_size,
        differ_later,
        differ_in_reduction,
        differ_in_known_size,
        differ_in_known_op,
    ],
)
def test_disagreement(two: Ranks, function: Callable[[Any], None]) -> None:
    for seconds, _, text in two.run(in_group, function):
        assert seconds < TIMEOUT + GRACE
        assert "do not agree on collective" in text
        assert "rank 0 calls" in text
        assert "rank 1 calls" in text
        assert text.count("test_failures.py") >= 2


def abort_waiting(group: Any) -> None:
    import threading

    if dist.get_rank() == 1:
        time.sleep(1)
        return
    threading.Timer(0.3, group.abort).start()
    dist.barrier(group=group)


def test_abort(two: Ranks) -> None:
    seconds, _, text = two.run(in_group, abort_waiting)[0]
    assert seconds < 1.5
    assert "aborted" in text


def wait_with_timeout(group: Any) -> None:
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(3, device="tpu"), group=group, async_op=True)
        work.wait(timedelta(seconds=0.2))
    else:
        time.sleep(1)
        dist.all_reduce(torch.ones(3, device="tpu"), group=group)


def test_wait_honours_its_timeout(two: Ranks) -> None:
    said = two.run(in_group, wait_with_timeout)
    assert said[1] is None
    seconds, _, text = said[0]
    assert seconds < 0.9
    assert "200 ms" in text


def flight_cli(*args: str) -> tuple[int, str, str]:
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO

    from torch_tpu.cli import main

    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["flight", *args])
    return code, out.getvalue(), err.getvalue()


def test_flight_command(tmp_path: Path) -> None:
    def entry(seq: int, last: int) -> dict[str, Any]:
        return {
            **{"id": seq, "group": "0", "seq": seq, "op": "all_reduce", "detail": "Float [4] SUM"},
            **{"peer": -1, "bytes": 16, "where": f"train.py:{seq} in f", "issued": 1.0 + seq},
            **{"started": 1.0, "finished": 2.0, "error": ""},
            "state": "done" if seq < last else "failed",
        }

    for rank, last in ((0, 3), (2, 2)):
        entries = [entry(seq, last) for seq in range(1, last + 1)]
        data = {"version": 1, "rank": rank, "world_size": 3, "host": "h", "pid": 1, "time": 1.0}
        (tmp_path / f"rank{rank}.json").write_text(
            json.dumps({**data, "reason": "rank 1 died", "collectives": entries})
        )
    code, out, _ = flight_cli(str(tmp_path))
    assert code == 0
    assert "no file of rank 1" in out
    assert "rank 2 stopped after collective 2" in out
    assert "MISSING" in out
    report = json.loads(flight_cli("--json", str(tmp_path))[1])
    assert report["missing_ranks"] == [1]
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    for name in (bad, tmp_path / "none.json"):
        code, _, err = flight_cli(str(name))
        assert code == 2
        assert "torch-tpu flight:" in err


def test_flight_from_the_shell(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch_tpu", "flight", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_the_client_of_this_plugin_spans_no_processes() -> None:
    code = (
        "import torch, torch.distributed as dist, torch_tpu\n"
        "torch_tpu.distributed.span_processes(dist.HashStore(), 0, 2)\n"
        "torch.ones(2, device='tpu')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert "cannot span processes" in done.stderr
    assert "go by Gloo" in done.stderr
