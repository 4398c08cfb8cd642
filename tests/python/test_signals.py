"""Signals reach the program's own threads only."""

from __future__ import annotations

import signal
from typing import Any


def test_a_profiler_by_signals_damages_nothing(run_python: Any) -> None:
    """XLA:CPU's threads, interrupted in a matrix product, would damage the heap."""
    out = run_python("""
        import signal, time
        import torch
        seen = []
        signal.signal(signal.SIGPROF, lambda *_: seen.append(1))
        a, b = (torch.randn(512, 512).to("tpu") for _ in range(2))
        expected = (a @ b).cpu()
        signal.setitimer(signal.ITIMER_PROF, 0.0005, 0.0005)
        end = time.monotonic() + 4
        while time.monotonic() < end:
            c = a @ b
            for _ in range(4):
                c = (c @ b) * 0.01
            assert torch.equal((a @ b).cpu(), expected)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(len(seen) > 100)
    """)
    assert out.split() == ["True"]


def test_the_threads_that_compute_block_signals(run_python: Any) -> None:
    out = run_python("""
        import os
        import torch
        torch.ones(3, device="tpu").sum().item()
        masks = []
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/status") as status:
                lines = dict(line.split(":", 1) for line in status)
            if "XLAEigen" in lines["Name"]:  # which compute; those of a compile come and go
                masks.append(int(lines["SigBlk"], 16))
        print(*masks)
    """)
    masks = [int(word) for word in out.split()]
    assert masks
    blocked = [bool(mask >> (signal.SIGPROF - 1) & 1) for mask in masks]
    assert all(blocked)
