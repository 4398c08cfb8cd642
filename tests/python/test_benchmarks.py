"""The groups of workloads in benchmarks/: they run, agree with the CPU and are counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def ask(kind: str, device: str, *commands: dict[str, Any]) -> list[dict[str, Any]]:
    """What a contestant's process answers."""
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "worker.py"), kind, device, "fused"],
        input="".join(json.dumps(command) + "\n" for command in commands),
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert not [a["error"] for a in answers if "error" in a], done.stderr
    return answers


def spec() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import spec
    finally:
        sys.path.remove(str(BENCHMARKS))
    return spec


def test_groups_are_workloads_that_are_measured_on_request():
    groups = spec().GROUPS
    assert set(groups) == {"varlen", "moving", "tail"}
    names = [name for group in groups.values() for name in group]
    assert len(names) == 15
    assert not set(names) & set(spec().DEFAULT)
    assert set(names) <= set(spec().WORKLOADS)
    start = ask("torch", "cpu", {"do": "start"})[0]
    without_library = {name for name in names if "_hf_" not in name}
    assert without_library <= set(start["works"])


@pytest.mark.parametrize("work", ["moving_cache", "moving_lstm"])
def test_a_workload_computes_what_the_cpu_does(work):
    prepare = {"do": "prepare", "work": work, "warm_up": True}
    _, right = ask("torch", "cpu", {"do": "start"}, prepare)
    _, ours, stats = ask("ours", "tpu", {"do": "start"}, prepare, {"do": "stats"})
    assert ours["values"] == pytest.approx(right["values"], rel=1e-3)
    assert ours["second_seconds"] > 0
    assert set(stats["fused"]) == {"ready", "bounded"}


def test_the_ninth_step_is_the_second_call():
    prepare = {"do": "prepare", "work": "tail", "warm_up": True}
    _, answer = ask("torch", "cpu", {"do": "start"}, prepare)
    eight, ninth, epoch, _ = answer["values"]
    assert eight > 5 * ninth > 0
    assert epoch > eight
