"""Where a workload's time goes: every ATen op of it, timed alone, with the CPU's time beside it.

Each op is waited for, so the sum is that of strict mode without overlap. The workload runs several
times and the fastest time of each call counts, which keeps a busy machine out of the table.

    python benchmarks/op_times.py gpt --top 25 --shapes
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from spec import WORKLOADS
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch_work import WORK, synchronize


class OpTimer(TorchDispatchMode):
    """Records (op, shapes, seconds) of every call, in order."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.calls: list[tuple[str, str, float]] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        begin = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        synchronize(self.device)
        seconds = time.perf_counter() - begin
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        shapes = " ".join("x".join(map(str, t.shape)) or "()" for t in tensors[:3])
        if len(tensors) > 3:
            shapes += f" +{len(tensors) - 3}"
        self.calls.append((str(func).removeprefix("aten."), shapes, seconds))
        return result


def fastest_calls(work: str, device: str, repeats: int) -> list[tuple[str, str, float]]:
    """The op stream of one warm call of the workload, with each op's fastest time."""
    run = WORK[work](device)
    for _ in range(3):
        run()
    best: list[tuple[str, str, float]] = []
    for _ in range(repeats):
        with OpTimer(device) as timer:
            run()
        if not best:
            best = timer.calls
        elif len(best) == len(timer.calls):
            best = [
                (op, shapes, min(old, new))
                for (op, shapes, old), (_, _, new) in zip(best, timer.calls, strict=True)
            ]
    return best


def grouped(
    calls: list[tuple[str, str, float]], by_shape: bool
) -> dict[tuple[str, str], tuple[int, float]]:
    """(op, shapes) -> (calls, seconds); shapes are empty unless asked for."""
    groups: dict[tuple[str, str], tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for op, shapes, seconds in calls:
        key = (op, shapes if by_shape else "")
        count, total = groups[key]
        groups[key] = (count + 1, total + seconds)
    return dict(groups)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", choices=WORKLOADS, help="the workload")
    parser.add_argument("--device", default="tpu", help="the device (default: tpu)")
    parser.add_argument("--against", default="cpu", help="the device beside it (default: cpu)")
    parser.add_argument("--repeats", type=int, default=10, help="runs (default: 10)")
    parser.add_argument("--top", type=int, default=20, help="rows (default: 20)")
    parser.add_argument("--shapes", action="store_true", help="one row per op and shapes")
    args = parser.parse_args()
    if args.device == "tpu":
        os.environ.setdefault("TORCH_TPU_MODE", "strict")
    calls = fastest_calls(args.work, args.device, args.repeats)
    mine = grouped(calls, args.shapes)
    other = grouped(fastest_calls(args.work, args.against, args.repeats), args.shapes)
    total = sum(seconds for _, _, seconds in calls)
    print(f"{args.work}: {len(calls)} ops, {total * 1e3:.2f} ms on {args.device} op by op; in us:")
    print(f"{'op':<44} {'calls':>5} {args.device:>9} {'share':>6} {'each':>8} {args.against:>9}")
    rows = sorted(mine.items(), key=lambda item: -item[1][1])
    for (op, shapes), (count, seconds) in rows[: args.top]:
        theirs = f"{other[op, shapes][1] * 1e6:9.0f}" if (op, shapes) in other else f"{'-':>9}"
        print(
            f"{op:<44} {count:>5} {seconds * 1e6:>9.0f} {seconds / total:>6.1%} "
            f"{seconds / count * 1e6:>8.1f} {theirs}  {shapes}"
        )
    return 0


if __name__ == "__main__":
    if not torch.accelerator.is_available():
        sys.exit("no accelerator: is torch_tpu installed?")
    sys.exit(main())
