"""Models and helpers for the tests of the export."""

from __future__ import annotations

import json
from collections import namedtuple
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import torch_tpu


def to_tpu(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t.to("tpu"), value)


def to_cpu(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t.cpu(), value)


def randn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def manifest_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


def change_manifest(folder: Path, **changes: Any) -> None:
    data = {**manifest_of(folder), **changes}
    (folder / "manifest.json").write_text(json.dumps(data))


def check(model: nn.Module, args: tuple[Any, ...], folder: Path, **kwargs: Any) -> Any:
    """Exports a CPU model, loads it, and compares a call with the model's own."""
    with torch.no_grad():
        expected = model(*args, **kwargs)
    torch_tpu.export(model, args, kwargs, path=folder)
    loaded = torch_tpu.load(folder)
    actual = loaded(*to_tpu(args), **to_tpu(kwargs))
    torch.testing.assert_close(to_cpu(actual), expected, rtol=1e-4, atol=1e-5)
    return loaded


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 16)
        self.down = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.head(x.mean((2, 3)))


class Calls(nn.Module):
    """Takes and returns nested structures."""

    def forward(self, x: Tensor, pair: Any, flag: bool = True, *, scale: dict[str, Tensor]) -> Any:
        a, b = pair
        total = x * scale["in"] + a - b
        return {"sum": total, "parts": (a, [b, total[0]]), "flag": flag, "none": None}


class Counter(nn.Module):
    """Has a buffer that calls replace, and one that no call uses."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2, 3))
        self.register_buffer("unused", torch.zeros(100))

    def forward(self, x: Tensor) -> Tensor:
        before = self.count.view(3, 2)
        result = before + 1
        self.count.add_(x)
        return result


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)

    def forward(self, index: Tensor) -> Tensor:
        return self.table(index)


class Scaled(nn.Module):
    """Writes to its argument."""

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


Point = namedtuple("Point", ["x", "y"])


class Points(nn.Module):
    def forward(self, p: Point) -> Point:
        return Point(p.y, p.x * 2)


def export_mlp(folder: Path) -> Path:
    """Always the same one."""
    torch.manual_seed(0)
    torch_tpu.export(MLP().eval(), (randn(2, 6),), path=folder)
    return folder
