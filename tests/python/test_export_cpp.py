"""examples/run_exported: a C++ program without torch runs what was exported, and says what is
wrong."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_models import (
    MLP,
    Counter,
    Noise,
    change_manifest,
    export_mlp,
    manifest_of,
    randn,
)
from torch import Tensor, nn

import torch_tpu
from torch_tpu import safetensors

RUNNER = Path(__file__).resolve().parents[2] / "build" / "run_exported"


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    return export_mlp(tmp_path / "mlp")


def run_cpp(folder: Path, *options: Any, fails: bool = False) -> str:
    if not RUNNER.exists():
        pytest.skip("build/run_exported is not built")
    plugin = torch_tpu._C._device_properties(0)["plugin_path"]
    done = subprocess.run(
        [
            RUNNER,
            folder,
            *map(str, options),
            *([] if "--list" in options else ["--plugin", plugin]),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def test_cpp_program(mlp, tmp_path):
    torch.manual_seed(0)
    x = randn(2, 6)
    expected = MLP().eval()(x).detach()
    np.save(tmp_path / "x.npy", x.numpy())
    (tmp_path / "x.bin").write_bytes(x.numpy().tobytes())
    safetensors.save_file({"x": x}, tmp_path / "in.safetensors")
    assert "input  x: float32[2,6]" in run_cpp(mlp, "--list")
    for given in (
        ["--input", f"x={tmp_path / 'x.npy'}"],
        ["--input", f"x={tmp_path / 'x.bin'}"],
        ["--inputs", tmp_path / "in.safetensors", "--runs", 3],
    ):
        out = run_cpp(mlp, *given, "--output", tmp_path / "out")
        assert out.startswith("output: float32[2,3] ")
        actual = torch.from_numpy(np.load(tmp_path / "out" / "output.npy"))
        torch.testing.assert_close(actual, expected)


def test_cpp_program_keeps_states_and_draws(tmp_path):
    model = Counter()
    torch_tpu.export(model, (randn(2, 3),), path=tmp_path / "counter")
    x = randn(2, 3)
    safetensors.save_file({"x": x}, tmp_path / "in.safetensors")
    file = tmp_path / "out.safetensors"
    run_cpp(tmp_path / "counter", "--inputs", tmp_path / "in.safetensors", "--runs", 3, "-o", file)
    model(x)
    model(x)
    torch.testing.assert_close(safetensors.load_file(file, "cpu")["output"], model(x))

    torch_tpu.export(Noise(), (torch.zeros(8),), path=tmp_path / "noise")
    safetensors.save_file({"x": torch.zeros(8)}, tmp_path / "in.safetensors")
    options = ["--inputs", tmp_path / "in.safetensors", "--seed", 5, "-o", file]
    run_cpp(tmp_path / "noise", *options)
    torch.manual_seed(5)
    expected = torch_tpu.load(tmp_path / "noise")(torch.zeros(8, device="tpu"))
    assert torch.equal(safetensors.load_file(file, "cpu")["output"], expected.cpu())


def test_cpp_program_with_bfloat16_and_nested_results(tmp_path):
    class Model(nn.Module):
        def forward(self, x: Tensor, index: Tensor) -> Any:
            return {"logits": x * 2, "rest": (x[index], x > 0)}

    x = randn(4).bfloat16()
    index = torch.tensor([3, 1])
    torch_tpu.export(Model(), (x, index), path=tmp_path / "model")
    safetensors.save_file({"x": x, "index": index}, tmp_path / "in.safetensors")
    file = tmp_path / "out.safetensors"
    run_cpp(tmp_path / "model", "--inputs", tmp_path / "in.safetensors", "-o", file)
    results = safetensors.load_file(file, "cpu")
    assert torch.equal(results["output.logits"], x * 2)
    assert torch.equal(results["output.rest.0"], x[index])
    assert torch.equal(results["output.rest.1"], x > 0)
    bad = {"x": x, "index": torch.tensor([4, 0])}
    safetensors.save_file(bad, tmp_path / "in.safetensors")
    options = ["--inputs", tmp_path / "in.safetensors"]
    assert "out of " in run_cpp(tmp_path / "model", *options, fails=True)


def test_cpp_program_says_what_is_wrong(mlp, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 6), np.float32))
    given = f"x={tmp_path / 'x.npy'}"
    text = run_cpp(mlp, "--input", given, fails=True)
    assert "expected x: float32[2,6], got float32[3,6]" in text
    assert "an input is missing: x" in run_cpp(mlp, fails=True)
    assert "no input 'y'" in run_cpp(mlp, "--input", "y=z", fails=True)
    assert "--help" in run_cpp(mlp, "--nothing", fails=True)
    np.save(tmp_path / "x.npy", np.zeros((2, 6), np.float32))
    weights = mlp / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    assert "model.safetensors" in run_cpp(mlp, "--input", given, fails=True)
    (mlp / "manifest.json").write_text("{")
    assert "manifest.json: not JSON" in run_cpp(mlp, "--list", fails=True)


def test_cpp_program_compares_the_manifest_with_the_module(tmp_path):
    """Every argument and result; a wrong shape read other memory, a large one crashed."""
    torch_tpu.export(Counter(), (randn(2, 3),), path=tmp_path / "counter")
    folder = tmp_path / "counter"
    safetensors.save_file({"x": randn(2, 3)}, tmp_path / "in.safetensors")
    given = ["--inputs", tmp_path / "in.safetensors"]
    good = manifest_of(folder)
    for side, number in (("arguments", 0), ("arguments", 1), ("results", 0), ("results", 1)):
        for change in ({"shape": [50_000, 3]}, {"shape": [3]}, {"dtype": "int32"}):
            data = json.loads(json.dumps(good))
            value = data["programs"][0][side][number]
            value.update(change)
            for other in data["programs"][0]["results"]:  # what is written to it
                if side == "arguments" and value["kind"] == other["kind"] == "state":
                    other.update(change)
            change_manifest(folder, **data)
            said = run_cpp(folder, *given, fails=True)
            wanted = ["in the module it is float32["]
            if value["kind"] == "input":  # what is given no longer fits
                wanted.append("wrong input")
            if value["kind"] == "state":
                wanted.append("written to no argument")
            assert any(text in said for text in wanted), (side, number, change, said)
    for change, text in (
        ({"weights": "../model.safetensors"}, "outside the folder"),
        ({"programs": [{**good["programs"][0], "module": "/module.mlir"}]}, "outside the folder"),
        ({"programs": [{**good["programs"][0], "results": []}]}, "has 0 results of module.mlir"),
    ):
        change_manifest(folder, **{**good, **change})
        assert text in run_cpp(folder, *given, fails=True)
    data = json.loads(json.dumps(good))
    data["programs"][0]["arguments"][0]["kind"] = "something"
    change_manifest(folder, **data)
    assert "unknown kind 'something'" in run_cpp(folder, *given, fails=True)
    change_manifest(folder, **good)
    run_cpp(folder, *given)
