"""The tutorials run as they say, under torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "distributed"


def run(*command: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *command],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def torchrun(name: str) -> str:
    return run(
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLES / name)
    )


def losses(output: str) -> list[float]:
    return [float(found) for found in re.findall(r"loss (\S+)", output)]


def test_ddp_equals_one_process() -> None:
    together, alone = losses(torchrun("ddp.py")), losses(run(str(EXAMPLES / "ddp.py")))
    assert len(together) == 20
    assert together == pytest.approx(alone, abs=2e-5)


def test_fsdp2() -> None:
    output = torchrun("fsdp2.py")
    found = losses(output)
    assert len(found) == 10
    assert found[-1] < found[0]
    assert "14 tensors" in output


def test_tensor_parallel() -> None:
    output = torchrun("tensor_parallel.py")
    found = losses(output)
    assert found[-1] < found[0]
    assert "weight (64, 16), here (32, 16)" in output


def test_rank0_logging() -> None:
    assert len(losses(torchrun("rank0_logging.py"))) == 3


def test_single_controller() -> None:
    output = run(str(EXAMPLES / "single_controller.py"))
    found = losses(output)
    assert len(found) == 10
    assert found[-1] < found[0]
    assert "of (256, 64): (64, 64) a device" in output
    assert re.search(r"\d+ x all-reduce between 2 devices", output)
    assert re.search(r"\d+ x all-reduce between 4 devices", output)
