"""What a call of a kernel in JAX costs beside the same op of PyTorch's, in microseconds. Needs JAX.

Both are on the device "tpu", on tensors of 8x8, and known: nothing is traced or compiled. `forward`
is the call, `forward, recorded` with autograd, `forward, backward` the call and torch.autograd.grad
of it, on the calling thread. By default backward runs on a thread of autograd's: waking it takes
30 us or 100, as the machine likes, and would be all that is seen (--threads does so).

    python benchmarks/kernel_calls.py --modes strict,fused
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import torch_tpu
from torch_tpu.pallas import jax_op

Call = Callable[[], object]


def pairs() -> dict[str, tuple[Any, Any, int]]:
    """PyTorch's op, the kernel, and how many tensors they take."""
    from jax import numpy as jnp

    def backward(inputs: Any, output: Any, grad: Any) -> Any:
        return (grad * (1 - output * output),)

    return {
        "add": (torch.add, jax_op("bench::add", lambda x, y: x + y), 2),
        "mul": (torch.mul, jax_op("bench::mul", lambda x, y: x * y), 2),
        "tanh": (torch.tanh, jax_op("bench::tanh", lambda x: jnp.tanh(x)), 1),
        "tanh, own backward": (
            torch.tanh,
            jax_op("bench::tanh_own", lambda x: jnp.tanh(x), backward=backward),
            1,
        ),
    }


def calls(function: Any, inputs: list[torch.Tensor], grad: torch.Tensor) -> dict[str, Call]:
    """What is timed."""
    recorded = [x.detach().requires_grad_() for x in inputs]
    return {
        "forward": lambda: function(*inputs),
        "forward, recorded": lambda: function(*recorded),
        "forward, backward": lambda: torch.autograd.grad(function(*recorded), recorded, grad),
    }


def measure(call: Call, count: int) -> float:
    """Microseconds a call until the last one returned."""
    torch.tpu.synchronize()
    begin = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - begin) / count / 1000


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=50, help="calls a repeat (default: 50)")
    parser.add_argument("--repeats", type=int, default=60, help="repeats (default: 60)")
    parser.add_argument("--modes", default="strict,fused", help="default: strict,fused")
    parser.add_argument("--threads", action="store_true", help="backward on autograd's threads")
    args = parser.parse_args()

    data = [torch.randn(8, 8, device="tpu") for _ in range(3)]
    print(f"{'us a call':<10}{'op':<20}{'what':<20}{'PyTorch':>9}{'kernel':>9}{'':>8}")
    for mode in args.modes.split(","):
        for name, (native, kernel, count) in pairs().items():
            ours = calls(kernel, data[:count], data[2])
            for what, theirs in calls(native, data[:count], data[2]).items():
                best = [float("inf")] * 2
                with (
                    torch_tpu.mode(mode),
                    torch.autograd.set_multithreading_enabled(args.threads),
                ):
                    for repeat in range(args.repeats + 5):  # some to warm up
                        for i, call in enumerate((theirs, ours[what])):
                            found = measure(call, args.calls)
                            best[i] = min(best[i], found) if repeat >= 5 else best[i]
                more = f"{best[1] / best[0] - 1:+.0%}"
                print(f"{mode:<10}{name:<20}{what:<20}{best[0]:>9.2f}{best[1]:>9.2f}{more:>8}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
