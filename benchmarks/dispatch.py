"""What one small op costs, in nanoseconds a call, beside PyTorch's own device.

`issued` is the time until the last call returned, `done` the time until all results were there,
both divided by the number of calls. Tensors are 8x8, so the arithmetic itself is free. Devices take
turns, and the fastest of the repeats counts.

    python benchmarks/dispatch.py --modes strict,fused
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_work import synchronize

import torch_tpu

Call = Callable[[], object]
MODES = ("strict", "fused", "debug")


def view_then_add(x: Tensor) -> Tensor:
    """A view costs no program of its own; the add reads through it."""
    return x.view(4, 16) + 1.0


def calls(device: str) -> dict[str, Call]:
    """The ops under test, on tensors of their own."""
    x = torch.ones(8, 8, device=device)
    y = torch.ones(8, 8, device=device)
    z = torch.ones(8, 8, device=device)
    return {
        "add": lambda: x + y,
        "mul scalar": lambda: x * 0.5,
        "relu_": lambda: z.relu_(),
        "view": lambda: x.view(4, 16),
        "view + add": lambda: view_then_add(x),
        "sum": lambda: x.sum(),
        "empty": lambda: torch.empty(8, 8, device=device),
    }


@dataclass
class Cost:
    """Nanoseconds a call."""

    issued: float = math.inf
    done: float = math.inf


def measure(call: Call, device: str, count: int) -> Cost:
    """One repeat."""
    synchronize(device)
    begin = time.perf_counter_ns()
    for _ in range(count):
        call()
    issued = time.perf_counter_ns()
    synchronize(device)
    done = time.perf_counter_ns()
    return Cost((issued - begin) / count, (done - begin) / count)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=200, help="calls a repeat (default: 200)")
    parser.add_argument("--repeats", type=int, default=50, help="repeats (default: 50)")
    parser.add_argument("--modes", default="strict,fused", help=f"of {MODES} (default: both)")
    parser.add_argument("--against", default="cpu", help="PyTorch's own device (default: cpu)")
    args = parser.parse_args()
    modes = args.modes.split(",")
    if unknown := set(modes) - set(MODES):
        parser.error(f"unknown mode {', '.join(unknown)}")

    ours, theirs = calls("tpu"), calls(args.against)
    print(f"ns a call, issued / done{'':<2} {args.against:>17}", end="")
    print("".join(f"{mode:>20} {'ratio':>6}" for mode in modes))
    for name in ours:
        costs = {where: Cost() for where in (args.against, *modes)}
        for _ in range(args.repeats):
            for where, cost in costs.items():
                if where == args.against:
                    found = measure(theirs[name], args.against, args.calls)
                else:
                    with torch_tpu.mode(where):
                        measure(ours[name], "tpu", 10)  # compiles, if need be
                        found = measure(ours[name], "tpu", args.calls)
                cost.issued = min(cost.issued, found.issued)
                cost.done = min(cost.done, found.done)
        base = costs[args.against]
        line = f"{name:<20} {base.issued:>12.0f} / {base.done:>8.0f}"
        for mode in modes:
            mine = costs[mode]
            line += f"{mine.issued:>10.0f} / {mine.done:>7.0f} {mine.done / base.done:>6.2f}"
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
