"""What the tests of torch_tpu.spmd check, in a process that has 8 devices."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_tpu import spmd
from torch_tpu.spmd import Replicate, Shard, ShardedTensor


def mesh() -> spmd.Mesh:
    return spmd.mesh((2, 4), ("dp", "tp"))


def raises(kind: type[Exception], pattern: str, call: Any, *args: Any) -> None:
    with pytest.raises(kind, match=pattern):
        call(*args)


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    if isinstance(found, ShardedTensor):
        found = found.full_tensor()
    torch.testing.assert_close(found.cpu(), expected, rtol=tolerance, atol=tolerance)


def check_parts_and_back() -> None:
    m = mesh()
    x = torch.arange(8 * 12.0).reshape(8, 12)
    for placements in (
        [Replicate(), Replicate()],
        [Shard(0), Shard(1)],
        [Shard(0), Shard(0)],
        [Shard(1), Replicate()],
        [Replicate(), Shard(-1)],
        {"tp": Shard(0)},
    ):
        s = spmd.shard(x, m, placements)
        assert s.shape == x.shape
        assert [p.device.index for p in s.parts] == list(m.devices)
        assert torch.equal(s.full_tensor().cpu(), x)
        assert torch.equal(s.cpu(), x)
    # The order of DTensor: the first axis of the mesh divides first.
    both = spmd.shard(x, m, [Shard(0), Shard(0)])
    assert [p[0, 0].item() / 12 for p in both.parts] == list(range(8))
    one = spmd.shard(x, m, [Shard(1), Shard(0)])
    assert torch.equal(one.parts[6].cpu(), x[4:6, 6:])  # device (1, 2)
    assert spmd.shard(one, m, {"dp": Shard(0)}).parts[7].shape == (4, 12)


def check_bad_input() -> None:
    m = mesh()
    x = torch.ones(6, 8)
    raises(ValueError, "cannot be divided into 4 equal parts", spmd.shard, x, m, {"tp": Shard(0)})
    raises(ValueError, r"Shard\(dim=2\) over 'tp'", spmd.shard, x, m, {"tp": Shard(2)})
    raises(ValueError, "no axis", spmd.shard, x, m, {"pp": Shard(0)})
    raises(ValueError, "1 placements for the 2 axes", spmd.shard, x, m, [Shard(0)])
    raises(ValueError, "one name each", spmd.mesh, (2, 4), ("dp",))
    raises(ValueError, "this process has 8", spmd.mesh, (4, 4), ("dp", "tp"))
    raises(ValueError, "no parameter", spmd.shard_module, nn.Linear(8, 8), m, {"w": {}})
    plan = {"weight": {"tp": Shard(0)}}
    raises(ValueError, "'weight': dimension 0", spmd.shard_module, nn.Linear(8, 6), m, plan)

    def add(a: Any, b: Any) -> Any:
        return a + b

    s = spmd.shard(x, m)
    raises(TypeError, "an argument on cpu", spmd.compile(add), s, x)
    raises(RuntimeError, "mixes tensors of a mesh", spmd.compile(lambda a: a + x), s)
    raises(RuntimeError, "reads values", spmd.compile(lambda a: a * a.sum().item()), s)
    raises(RuntimeError, "mixes tensors", add, s, x.to("tpu"))
    count = torch.zeros(())
    raises(RuntimeError, "capturable", spmd.compile(lambda a: (count.add_(1), a * 2)[1]), s)
    other = spmd.shard(x, spmd.mesh((8,), ("x",)))
    raises(RuntimeError, "two meshes", add, s, other)


def check_matmul() -> None:
    m = mesh()
    a, b = torch.randn(16, 32), torch.randn(32, 24)
    product = spmd.compile(lambda a, b: a @ b)
    y = product(spmd.shard(a, m, {"dp": Shard(0)}), spmd.shard(b, m, {"tp": Shard(1)}))
    close(y, a @ b)
    assert y.placements == (Shard(0), Shard(1))
    assert y.parts[0].shape == (8, 6)
    assert product.collectives() == []
    # Divided along what is summed: an all-reduce over tp.
    y = product(spmd.shard(a, m, [Shard(0), Shard(1)]), spmd.shard(b, m, [Replicate(), Shard(0)]))
    close(y, a @ b)
    kinds = {c.kind: c.groups for c in product.collectives()}
    assert set(kinds) <= {"all-reduce", "reduce-scatter"}, kinds
    assert ((0, 1, 2, 3), (4, 5, 6, 7)) in kinds.values(), kinds
    assert '"dp"=2, "tp"=4' in product.text()


def check_ops_alone() -> None:
    """Outside a compiled function each op is a program."""
    m = mesh()
    a, w = torch.randn(8, 16), torch.randn(4, 16)
    x = spmd.shard(a, m, {"dp": Shard(0)})
    v = spmd.shard(w, m, {"tp": Shard(1)}).requires_grad_()
    loss = F.relu(F.linear(x, v)).square().mean()
    loss.backward()
    e = w.clone().requires_grad_()
    expected = F.relu(F.linear(a, e)).square().mean()
    expected.backward()
    assert abs(loss.item() - expected.item()) < 1e-5
    close(v.grad, e.grad)
    with torch.no_grad():
        v.sub_(0.1 * v.grad)
        e.sub_(0.1 * e.grad)
    close(v.detach(), e.detach())
    y = x.clone()
    y.add_(1)
    close(y, a + 1)
    close(x, a)
    assert "Shard" in repr(x)
    state = {"weight": torch.randn(4, 16), "bias": torch.randn(4)}
    layer = spmd.shard_module(nn.Linear(16, 4), m, {"weight": {"tp": Shard(1)}})
    layer.load_state_dict(state)
    close(layer.weight.detach(), state["weight"])
    close(layer(x).detach(), F.linear(a, state["weight"], state["bias"]))
    raises(RuntimeError, "is a copy", lambda: y[0].zero_())
    row = y[0]
    close(row, a[0] + 1)
    y.add_(1)
    raises(RuntimeError, "written since", lambda: row + 1)
    close(y[0], a[0] + 2)
    raises(RuntimeError, "full_tensor", torch.save, y, io.BytesIO())
    before = len(spmd._eager._programs)
    _ = x * 2, x * 2, y * 2
    assert len(spmd._eager._programs) == before + 1


def check_random() -> None:
    """The numbers of one device, whatever the mesh."""
    m = mesh()
    x = torch.ones(64, 64)
    drop = spmd.compile(lambda t: F.dropout(t, 0.5) + torch.rand(64, 64, device=t.device))
    found = []
    for placements in ({"dp": Shard(0), "tp": Shard(1)}, {}):
        torch.manual_seed(3)
        found.append(drop(spmd.shard(x, m, placements)).cpu())
    assert torch.equal(*found)
    assert not torch.equal(drop(spmd.shard(x, m)).cpu(), found[0])
    assert 0.9 < (found[0] >= 2).float().mean() * 2 < 1.1


def check_writes_and_views() -> None:
    m = mesh()
    x = torch.arange(32.0).reshape(8, 4)
    s = spmd.shard(x, m, {"dp": Shard(0), "tp": Shard(1)})

    @spmd.compile
    def change(t: torch.Tensor) -> torch.Tensor:
        t[2:4].mul_(10)
        t.t()[0] = -1
        return t

    expected = x.clone()
    for _ in range(2):
        expected[2:4].mul_(10)
        expected.t()[0] = -1
        out = change(s)
        assert out is s
        close(s, expected)
    # An index out of range is found in the partitioned program too.
    table = spmd.shard(torch.randn(16, 4), m, {"tp": Shard(0)})
    rows = spmd.shard(torch.tensor([1, 99]), m)

    def look() -> None:
        F.embedding(rows, table)
        torch.tpu.synchronize()

    raises(IndexError, "out of range", look)


def check_state_outside() -> None:
    """What a function keeps, and gradients that add up."""
    m = mesh()
    w = spmd.shard(torch.ones(4, 4), m, {"tp": Shard(0)}).requires_grad_()
    x = spmd.shard(torch.ones(2, 4), m, {"dp": Shard(0)})

    @spmd.compile
    def accumulate(x: torch.Tensor) -> torch.Tensor:
        loss = (x @ w).sum()
        loss.backward()
        return loss

    for count in range(1, 5):
        assert accumulate(x).item() == 32.0
        close(w.grad, torch.full((4, 4), 2.0 * count))
    w.grad = None
    accumulate(x)
    close(w.grad, torch.full((4, 4), 2.0))

    multiply = spmd.compile(lambda x, k: x * k)
    close(multiply(x, 2), torch.full((2, 4), 2.0))
    close(multiply(x, 3), torch.full((2, 4), 3.0))


def check_what_is_watched() -> None:
    """State around a function that changes what it does makes another program."""
    m = mesh()
    layer = spmd.shard_module(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), m)
    x = spmd.shard(torch.ones(4, 8), m)
    scale = 2.0

    def inner(x: torch.Tensor) -> torch.Tensor:
        return layer(x) * scale

    @spmd.compile
    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    whole = spmd.compile(layer)
    with torch.no_grad():
        assert (outer(x).cpu() == 0).any()
        layer.eval()
        expected = F.linear(torch.ones(4, 8), layer[0].weight.cpu(), layer[0].bias.cpu())
        close(outer(x), expected * 2)
        close(whole(x), expected)
        scale = 3.0
        close(outer(x), expected * 3)
        with torch.autocast("tpu"):
            assert whole(x).dtype is torch.bfloat16
        assert whole(x).dtype is torch.float32
        layer.train()
        assert (whole(x).cpu() == 0).any()


def check_disk_cache() -> None:
    """A partitioned program is compiled once for all processes."""
    m = mesh()
    a = torch.randn(8, 24)
    x = spmd.shard(a, m, {"dp": Shard(0), "tp": Shard(1)})
    found = []
    for _ in range(2):
        total = spmd.compile(lambda x: (x.square().sum(1), x.cos()))
        rows, cosine = total(x)
        close(rows, a.square().sum(1))
        close(cosine, a.cos())
        found.append((total.collectives(), rows.placements, cosine.placements))
    assert total._last.native.from_disk
    assert found[0] == found[1]
    assert found[0][2] == (Shard(0), Shard(1))


def check_one_device() -> None:
    m = spmd.mesh((1, 1), ("dp", "tp"), devices=[3])
    a = torch.randn(4, 4)
    y = spmd.compile(torch.tanh)(spmd.shard(a, m, {"dp": Shard(0)}))
    close(y, a.tanh())
    assert y.parts[0].device.index == 3


def check_many_collectives() -> None:
    """More that wait for each other than there are processors, and calls that nobody waits for."""
    m = mesh()
    a = torch.randn(256, 256)
    x = spmd.shard(a, m, {"dp": Shard(0), "tp": Shard(1)})

    @spmd.compile
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        products = [(x + i) @ (x - i).t() for i in range(8)]
        return [r for y in products for r in (y.sum(0).cos(), (y @ x).sum(1))]

    for _ in range(20):
        out = f(x)
    assert len(f.collectives()) > 8
    product = (a + 7) @ (a - 7).t() @ a
    torch.testing.assert_close(out[-1].cpu(), product.sum(1), rtol=1e-3, atol=0.5)
