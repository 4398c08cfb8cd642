"""Collectives in torch.profiler's traces: a span on the device for each, with bytes and group."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from distributed.ranks import Ranks
from torch.profiler import ProfilerActivity, profile

import torch_tpu


def traced(folder: str) -> tuple[list[str], list[dict[str, Any]]]:
    x = torch.ones(64, device="tpu")
    every = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_reduce(x)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as prof:
        dist.all_reduce(x)
        dist.all_gather(every, x)
        if dist.get_rank() == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        dist.all_reduce(x)  # still under way when the profile ends
    x.sum().item()
    on_device = [e for e in prof.events() if e.device_type == torch.autograd.DeviceType.PrivateUse1]
    path = Path(folder) / f"{dist.get_rank()}.json"
    prof.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    return [e.name for e in on_device], [
        e for e in events if e.get("name", "").startswith("tpu::collective")
    ]


def test_spans(two: Ranks, tmp_path: Path) -> None:
    """Many times: a collective may end before, while or after the profile waits for it."""
    for _ in range(12):
        for rank, (names, events) in enumerate(two.run(traced, str(tmp_path))):
            check(rank, names, events)


def check(rank: int, names: list[str], events: list[dict[str, Any]]) -> None:
    message = "send" if rank == 0 else "recv"
    expected = ["all_gather", "all_reduce", "all_reduce", message]
    assert sorted(n for n in names if n.startswith("tpu::collective")) == [
        f"tpu::collective {name}" for name in expected
    ]
    assert len(events) == 4
    for event in events:
        assert event["dur"] > 0
        assert event["args"]["bytes"] == 256
        assert event["args"]["group"] != ""
        assert event["args"]["detail"].startswith("Float [64]")
        assert "test_spans.py" in event["args"]["python"]
    reduces = [e for e in events if e["name"].endswith("all_reduce")]
    assert reduces[0]["args"]["seq"] < reduces[1]["args"]["seq"]


def counted() -> int:
    def count() -> int:
        return int(torch_tpu._C._journal_counts()["kinds"]["collective"]["count"])

    before = count()
    x = torch.ones(3, device="tpu")
    dist.all_reduce(x)
    dist.barrier()
    x.sum().item()
    end = time.monotonic() + 5
    while count() < before + 2 and time.monotonic() < end:  # noted after the results are there
        time.sleep(0.01)
    return count() - before


def test_counts(two: Ranks) -> None:
    assert two.run(counted) == [2, 2]
