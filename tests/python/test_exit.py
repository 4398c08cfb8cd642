"""A process that used the device ends with its own exit code."""

from __future__ import annotations

import subprocess
import sys

BACKWARD_LAST = """
import torch
x = torch.ones(4, 4, device="tpu", requires_grad=True)
(x * 2).sum().backward()
print(x.grad.sum().item())
"""


def test_backward_as_the_last_thing() -> None:
    # PyTorch's autograd thread may still hold Python objects when the interpreter goes down.
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", BACKWARD_LAST], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "32.0\n"
        assert "terminate" not in done.stderr
