"""What the backend "tpu" adds to Gloo, and whether gradients reduce while backward runs.

    python benchmarks/distributed.py [--ranks 2] [--rounds 5] [--trace PREFIX] [--json]

all_reduce of tpu tensors beside the same of CPU tensors, both over Gloo, in turns in the same run;
the median of the rounds. The traces are Chrome traces of one backward on rank 0.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from datetime import timedelta
from typing import Any

import torch.multiprocessing as mp

LARGE = 16 << 20  # elements of float32: 64 MB
SMALL = 16


def seconds_per_call(x: Any, count: int, wait: bool) -> float:
    """Calls one after the other on the same tensor."""
    import torch.distributed as dist

    dist.barrier()
    start = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        if wait and x.device.type == "tpu":
            x.cpu()
    if x.device.type == "tpu":
        x.cpu() if x.numel() < 1000 else x[:1].cpu()
    return (time.perf_counter() - start) / count


def compare(elements: int, count: int, rounds: int, wait: bool = False) -> dict[str, float]:
    """Medians in microseconds, and how many times Gloo's ours is (the median of the rounds')."""
    import torch

    host = torch.ones(elements)
    device = host.to("tpu")
    for x in (host, device):
        seconds_per_call(x, max(1, count // 4), wait)
    times: dict[str, list[float]] = {"gloo": [], "tpu": []}
    for _ in range(rounds):
        times["gloo"].append(seconds_per_call(host, count, wait))
        times["tpu"].append(seconds_per_call(device, count, wait))
    ratios = [ours / theirs for ours, theirs in zip(times["tpu"], times["gloo"], strict=True)]
    return {
        "gloo_us": statistics.median(times["gloo"]) * 1e6,
        "tpu_us": statistics.median(times["tpu"]) * 1e6,
        "ratio": statistics.median(ratios),
    }


def overlap(kind: str, trace: str | None) -> dict[str, Any]:
    """A step of a few large layers: when the collectives of backward ran, against backward."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    import torch_tpu

    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())]
    model: Any = nn.Sequential(*layers).to("tpu")
    if kind == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=1)
    else:
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    x = torch.randn(256, 512, device="tpu")
    start = issued = end = 0.0
    for _ in range(6):  # the last one counts: by then all programs are compiled
        loss = model(x).square().mean()
        torch.tpu.synchronize()
        dist.barrier()
        torch_tpu.distributed.clear_flight()
        start = time.time()
        loss.backward()
        issued = time.time()
        torch.tpu.synchronize()
        end = time.time()
        model.zero_grad()
        torch_tpu.fused.wait()
    calls = [c for c in torch_tpu.distributed.flight() if c["op"] != "barrier"]
    early = [c for c in calls if c["finished"] < max(d["issued"] for d in calls)]
    if trace and dist.get_rank() == 0:
        events = [("backward", 0, start, end)]
        events += [(f"{c['op']} {c['detail']}", 1, c["started"], c["finished"]) for c in calls]
        events += [(f"{c['seq']} waits for its input", 2, c["issued"], c["started"]) for c in calls]
        rows = [
            {"name": n, "ph": "X", "pid": 0, "tid": t, "ts": a * 1e6, "dur": (b - a) * 1e6}
            for n, t, a, b in events
        ]
        with open(f"{trace}.{kind}.json", "w", encoding="utf-8") as file:
            json.dump({"traceEvents": rows}, file)

    def ms(moment: float) -> float:
        return round((moment - start) * 1e3, 1)

    return {
        "collectives": len(calls),
        "done_before_the_last_was_issued": len(early),
        "backward_ms": ms(end),
        "host_free_after_ms": ms(issued),
        "spans_ms": [[c["op"], ms(c["started"]), ms(c["finished"])] for c in calls],
    }


def run(rank: int, args: argparse.Namespace, port: int) -> None:
    """One rank; rank 0 prints."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=args.ranks,
        timeout=timedelta(seconds=120),
    )
    report = {
        "all_reduce 64 MB": compare(LARGE, 3, args.rounds),
        "all_reduce 64 B": compare(SMALL, 300, args.rounds),
        "all_reduce 64 B, read each time": compare(SMALL, 300, args.rounds, wait=True),
        "ddp": overlap("ddp", args.trace),
        "fsdp2": overlap("fsdp2", args.trace),
    }
    dist.destroy_process_group()
    if rank == 0 and args.json:
        print(json.dumps(report, indent=2))
    elif rank == 0:
        for name, row in report.items():
            print(
                name + ":",
                ", ".join(
                    f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
                ),
            )


def main() -> int:
    """Starts the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--trace", metavar="PREFIX", help="write PREFIX.ddp.json, PREFIX.fsdp2.json"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(run, (args, port), nprocs=args.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
