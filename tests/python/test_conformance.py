"""Every OpInfo entry once, in its first dtype, and the harness itself. `make conformance` runs the
rest: all dtypes, forms, transforms, error inputs, torch.compile, modules and optimizers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("expecttest")

from tests.conformance.children import ROOT
from tests.conformance.compare import MismatchError, check_layout, check_values
from tests.conformance.op_checks import (
    DTYPES,
    OPS,
    SkipError,
    check_values_and_gradients,
    dtypes_of,
)
from tests.conformance.reasons import REASONS
from tests.conformance.run import read_results, run_all

# Takes long for what one sample tells: a dozen decompositions of random matrices.
SLOW = ("linalg.lstsq.grad_oriented", "pca_lowrank", "svd_lowrank")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(set(OPS) - set(SLOW)))
def test_op(name: str) -> None:
    dtypes = dtypes_of(OPS[name])
    if name in REASONS or not dtypes:
        pytest.skip(REASONS.get(name, "none of the nine dtypes"))
    try:
        assert check_values_and_gradients(name, DTYPES[dtypes[0]], most=1) == 1
    except SkipError as reason:
        pytest.skip(str(reason))


def test_wrong_values_are_noticed() -> None:
    right = torch.tensor([1.0, 2.0])
    check_values(right.clone(), right, 1e-6, 1e-6)
    with pytest.raises(MismatchError, match="not close"):
        check_values(right + 1e-3, right, 1e-6, 1e-6)
    # Closer to the exact result than the CPU is: no error.
    check_values(right + 1e-3, right, 1e-6, 1e-6, exact=lambda: right.double() + 1e-3)
    with pytest.raises(MismatchError, match="not close"):
        check_values(right + 1e-3, right, 1e-6, 1e-6, exact=lambda: right.double())


def test_wrong_layouts_are_noticed() -> None:
    with pytest.raises(MismatchError, match="dtype"):
        check_layout(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    with pytest.raises(MismatchError, match="shape"):
        check_layout(torch.zeros(2), torch.zeros(3))
    with pytest.raises(MismatchError, match="strides"):
        check_layout(torch.zeros(2, 3), torch.zeros(3, 2).t(), strides=True)
    # Where PyTorch's accelerators differ from its CPU, meta decides.
    check_layout(torch.zeros(2), torch.zeros(3), meta=lambda: torch.zeros(2, device="meta"))


@pytest.mark.slow
def test_runner_keeps_results_and_survives_a_crash(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    tasks = [
        {"suite": "op", "name": "add", "dtype": "float32", "samples": 1},
        {"suite": "op", "name": "no such op", "dtype": "float32"},
        {"suite": "errors", "name": "cat", "dtype": "float32"},
    ]
    found = run_all(tasks, jobs=1, timeout=120.0, results=results)
    assert [r["status"] for r in found] == ["right", "raises", "right"]
    assert found[0]["samples"] == 1
    assert found[2]["same_type"] == found[2]["inputs"] > 0
    kept = read_results(results)
    assert kept["op:add:float32:"]["fallback"] == []
    # A line cut short by a kill is no result.
    with results.open("a") as file:
        file.write('{"suite": "op", "na')
    assert read_results(results) == kept


def test_worker_that_dies_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    task = {"suite": "op", "name": "add", "dtype": "float32"}
    (found,) = run_all([task], jobs=1, timeout=30.0, results=tmp_path / "r.jsonl")
    assert found["status"] == "crashes"
    assert json.loads((tmp_path / "r.jsonl").read_text())["status"] == "crashes"


def test_help() -> None:
    env = dict(os.environ, PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}")
    done = subprocess.run(
        [sys.executable, "-m", "conformance.run", "--help"],
        capture_output=True,
        text=True,
        env=env,
        check=True,
    )
    assert "--again" in done.stdout
