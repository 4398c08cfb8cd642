"""One line on stderr for each cause of waiting for the compiler: what, why, where, what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import os, sys, torch, torch_tpu
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        widths = (3, 8, 12, 16)
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3) for a, b in zip(widths, widths[1:]))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x.mean((2, 3)))

def train(model, batches, read):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for n in batches:
        x = torch.zeros(n, 3, 12, 12).to("tpu")
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if read:
            loss.item()
    return loss.item()

model = Net().to("tpu")
if "compile" in sys.argv:
    model = torch.compile(model, backend="tpu", dynamic=False)
train(model, [32, 32, 32, 8], read="read" in sys.argv)
if "fork" in sys.argv:
    child = os.fork()
    if child == 0:
        sys.exit(0)  # an ordinary end, with all that runs then
    os.waitpid(child, 0)
"""


def run(tmp_path: Path, *arguments: str, code: str = TRAIN, **env: str) -> list[str]:
    """Our lines on stderr."""
    script = tmp_path / "train.py"
    script.write_text(code, encoding="utf-8")
    settings = {"TORCH_TPU_CACHE_DIR": "off", "TORCH_TPU_COMPILE_NOTICE": "0.02", **env}
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, **settings},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # A busy machine may be compiling in the background still when the script ends, and says that.
    lines = done.stderr.splitlines()
    return [line for line in lines if line.startswith("torch_tpu: ") and "waiting for" not in line]


@pytest.mark.parametrize("read", [["read"], []], ids=["reads", "no reads"])
@pytest.mark.parametrize("mode", ["fused", "strict"])
def test_a_smaller_last_batch_is_named(mode, read, tmp_path):
    """And not the widths of the layers, which share a line."""
    lines = run(tmp_path, *read, TORCH_TPU_MODE=mode)
    first = [line for line in lines if "): first step at train.py:" in line]
    assert first, lines
    assert "A cache on disk (TORCH_TPU_CACHE_DIR) would spare" in first[0]
    changed = [line for line in lines if line not in first]
    assert len(changed) == 1, lines
    assert "): batch 32 → 8 at train.py:14 in forward. drop_last=True" in changed[0]
    assert re.match(r"torch_tpu: waited [\d.]+ s for the compiler \(\d+ program", changed[0])


def test_graphs_of_torch_compile(tmp_path):
    lines = run(tmp_path, "compile", "read")
    assert any("first step at train.py:" in line for line in lines), lines
    changed = [line for line in lines if "batch 32 → 8 at train.py:" in line]
    assert changed, lines
    assert any("in train" in line for line in changed)


def test_each_cause_is_told_once_also_after_a_fork(tmp_path):
    lines = run(tmp_path, "read", "fork")
    assert len(lines) == len(set(lines)), lines
    assert sum("batch 32 → 8" in line for line in lines) == 1


def test_off(tmp_path):
    assert run(tmp_path, TORCH_TPU_COMPILE_NOTICE="0") == []


def test_two_seconds_by_default(tmp_path):
    small = "import torch, torch_tpu\ntorch.ones(3, device='tpu').sin().cpu()\n"
    assert run(tmp_path, code=small, TORCH_TPU_COMPILE_NOTICE="") == []


def test_nothing_is_waited_for_when_the_disk_has_it(tmp_path):
    kept = {"TORCH_TPU_CACHE_DIR": str(tmp_path / "cache"), "TORCH_TPU_FUSED_COMPILE": "never"}
    assert run(tmp_path, **kept)
    assert run(tmp_path, **kept) == []


SIZES = """
import torch, torch_tpu
for n in (40, 49, 58):
    x = torch.ones(2, n).to("tpu")
    torch.softmax(x, -1).cpu()
"""


def test_every_compile_is_logged_on_request(tmp_path):
    env = {"TORCH_TPU_LOG_COMPILES": "1", "TORCH_TPU_COMPILE_NOTICE": "0"}
    lines = run(tmp_path, code=SIZES, TORCH_TPU_MODE="strict", **env)
    assert len(lines) == 3
    assert lines[0].startswith("torch_tpu: compiled aten::_softmax in 0.")
    assert lines[0].endswith(" s, while main waited: first step at train.py:5 in <module>")
    for line, sizes in zip(lines[1:], ("40 → 49", "40, 49, 58"), strict=True):
        assert line.endswith(f": size {sizes} (dim 1 of aten::_softmax) at train.py:5 in <module>")


def test_a_thread_that_waits_for_another_one_counts(tmp_path):
    code = """
import threading, torch, torch_tpu
x = torch.ones(7, 7).to("tpu")
threads = [threading.Thread(target=lambda: torch.linalg.svdvals(x)) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
waited = sum(cause["waited_seconds"] for cause in torch_tpu._C._causes())
assert waited > 1.5 * torch_tpu.stats()["compile_seconds"], waited
"""
    run(tmp_path, code=code, TORCH_TPU_MODE="strict")


@pytest.mark.parametrize("name", ["TORCH_TPU_COMPILE_NOTICE", "TORCH_TPU_LOG_COMPILES"])
def test_a_bad_value_names_the_variable(name):
    code = [sys.executable, "-c", "import torch_tpu"]
    env = {**os.environ, name: "often"}
    done = subprocess.run(code, env=env, capture_output=True, text=True, check=False)
    assert name in done.stderr
    assert "often" in done.stderr
