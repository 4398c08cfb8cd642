"""Export: folders that are damaged, missing or of another kind; models that cannot be exported."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from export_models import change_manifest, export_mlp, randn
from torch import Tensor, nn

import torch_tpu
from torch_tpu import safetensors
from torch_tpu.cli import main


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    return export_mlp(tmp_path / "mlp")


# Bad folders


def test_no_export(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        torch_tpu.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"has no manifest\.json"):
        torch_tpu.load(tmp_path)
    (tmp_path / "manifest.json").write_text('{"some": "thing"}')
    with pytest.raises(ValueError, match=r"is no manifest of torch_tpu\.export"):
        torch_tpu.load(tmp_path)


@pytest.mark.parametrize("file", ["manifest.json", "module.mlir", "model.safetensors"])
def test_truncated_or_missing_files(mlp, file):
    path = mlp / file
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=rf"{file}.*(damaged|cut off).*[Cc]opy it again"):
        torch_tpu.load(mlp)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{file}"):
        torch_tpu.load(mlp)


def test_newer_version(mlp):
    change_manifest(mlp, version=99, torch_tpu="9.9")
    with pytest.raises(ValueError, match=r"version 99; this torch_tpu reads up to 1.*9\.9"):
        torch_tpu.load(mlp)


@pytest.mark.parametrize(
    "changes",
    [
        {"programs": []},
        {"programs": [{"module": "../module.mlir"}]},
        {"inputs": []},
        {"outputs": [{"name": "a"}, {"name": "b"}]},
        {"target": "gpu"},
        {"name": 3},
        {"args": [{"tensor": 1}]},
        {"args": [3]},
        {"names": []},
        {"returns": {"set": []}},
        {"returns": {"tuple": []}},
        {"inputs": [{"name": "x", "dtype": "float33"}]},
    ],
)
def test_manifest_that_cannot_be(mlp, changes):
    change_manifest(mlp, **changes)
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        torch_tpu.load(mlp)


def test_other_weights(mlp):
    path = mlp / "model.safetensors"
    weights = safetensors.load_file(path, "cpu")
    safetensors.save_file({**weights, "up.weight": torch.zeros(4, 4)}, path)
    with pytest.raises(ValueError, match=r"'up\.weight' as float32\[4,4\].*float32\[16,6\]"):
        torch_tpu.load(mlp)
    safetensors.save_file({**weights, "up.weight": weights["up.weight"].double()}, path)
    with pytest.raises(ValueError, match=r"'up\.weight' as float64"):
        torch_tpu.load(mlp)
    del weights["up.weight"]
    safetensors.save_file(weights, path)
    with pytest.raises(ValueError, match=r"model\.safetensors lacks the tensor 'up\.weight'"):
        torch_tpu.load(mlp)


def test_weights_may_be_replaced(mlp):
    """By others of the same shapes: fine-tuned ones, say."""
    path = mlp / "model.safetensors"
    weights = {k: torch.ones_like(v) for k, v in safetensors.load_file(path, "cpu").items()}
    safetensors.save_file(weights, path)
    x = torch.ones(2, 6, device="tpu")
    assert torch.equal(torch_tpu.load(mlp)(x).cpu(), torch.full((2, 3), 16 * 7 + 1.0))


# What cannot be exported


def test_value_that_decides(tmp_path):
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[x > 0]

    with pytest.raises(
        RuntimeError, match=r"(?s)cannot become one module.*In the model.*x\[x > 0\]"
    ):
        torch_tpu.export(Branch(), (randn(4),), path=tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_buffers_that_share_memory_and_change(tmp_path):
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.zeros(4)
            self.register_buffer("a", whole)
            self.register_buffer("b", whole[:2])

        def forward(self, x: Tensor) -> Tensor:
            self.a.add_(x)
            return self.b + 1

    with pytest.raises(RuntimeError, match="shares memory"):
        torch_tpu.export(Shared(), (randn(4),), path=tmp_path / "model")


def test_wrong_arguments_of_export(tmp_path):
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module"):
        torch_tpu.export(torch.sin, (randn(4),), path=tmp_path / "model")
    with pytest.raises(TypeError, match=r"write \(x,\)"):
        torch_tpu.export(nn.ReLU(), randn(4), path=tmp_path / "model")
    with pytest.raises(RuntimeError, match="'meta': load it first"):
        torch_tpu.export(nn.Linear(2, 2).to("meta"), (randn(2, 2),), path=tmp_path / "model")


def test_place(mlp, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is no export"):
        torch_tpu.export(nn.ReLU(), (randn(4),), path=other)
    with pytest.raises(FileExistsError, match="is a file"):
        torch_tpu.export(nn.ReLU(), (randn(4),), path=other / "notes.txt")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        torch_tpu.export(nn.ReLU(), (randn(4),), path=tmp_path / "a" / "b")
    loaded = torch_tpu.load(mlp)
    before = loaded(torch.zeros(2, 6, device="tpu")).cpu()
    torch_tpu.export(nn.ReLU(), (randn(4),), path=mlp)  # replaces it
    assert "ReLU" in repr(torch_tpu.load(mlp))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mlp", "other"]
    assert torch.equal(loaded(torch.zeros(2, 6, device="tpu")).cpu(), before)


def test_folder_can_be_moved(mlp, tmp_path):
    shutil.move(mlp, tmp_path / "moved")
    assert torch_tpu.load(os.fspath(tmp_path / "moved")).path == tmp_path / "moved"


# The command


def test_command(tmp_path, capsys):
    script = tmp_path / "model.py"
    script.write_text(
        "import torch\n"
        "def build():\n    return torch.nn.ReLU(), (torch.zeros(3),)\n"
        "def nothing():\n    return 1\n"
        "def broken():\n    return undefined\n"
        "def masked():\n    return Masked(), (torch.zeros(3),)\n"
        "def wrong():\n    return Own(2, 2), (torch.zeros(3),)\n"
        "class Own(torch.nn.Linear):\n    def forward(self, x):\n"
        "        return super().forward(x)\n"
        "class Masked(torch.nn.Module):\n    def forward(self, x):\n        return x[x > 0]\n"
    )
    folder = tmp_path / "relu"
    assert main(["export", f"{script}:build", "-o", str(folder)]) == 0
    assert "wrote ReLU" in capsys.readouterr().out
    assert torch_tpu.load(folder)(torch.ones(3, device="tpu")).sum().item() == 3
    for build, text in [
        (f"{script}:other", "has no function other"),
        (f"{script}:nothing", "must return (model, args)"),
        (f"{script}:masked", "cannot become one module"),
        (f"{script}:broken", "broken of"),
        (f"{script}:wrong", f" at {script}:14 in forward: return super().forward(x)"),
        ("nowhere.py:build", "there is no script"),
    ]:
        assert main(["export", build, "-o", str(folder)]) == 2
        said = capsys.readouterr().err
        assert text in said
        assert "Traceback" not in said
    assert main(["export", "model.py", "-o", str(folder)]) == 2
    assert "expected SCRIPT:FUNCTION" in capsys.readouterr().err
