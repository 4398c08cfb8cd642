"""What the tests of torch_tpu.spmd check, in a process that has 8 devices."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_tpu import _C, spmd
from torch_tpu.spmd import Replicate, Shard, ShardedTensor

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))
from gpt import GPT, Config


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
    raises(RuntimeError, "full_tensor", torch.save, y, "never")
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


PLAN: dict[str, Any] = {
    "blocks.*.qkv.*": {"tp": Shard(0)},
    "blocks.*.up.*": {"tp": Shard(0)},
    "blocks.*.proj.weight": {"tp": Shard(1)},
    "blocks.*.down.weight": {"tp": Shard(1)},
    "tokens.weight": {"tp": Shard(0)},
}


def _model() -> GPT:
    torch.manual_seed(0)
    return GPT(Config(vocab=64, context=16, layers=2, width=32, heads=4))


def _batches(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    tokens = [(torch.arange(17) + 7 * torch.arange(8)[:, None] + i) % 64 for i in range(steps)]
    return [(t[:, :-1].contiguous(), t[:, 1:].contiguous()) for t in tokens]


def _losses_alone(steps: int, lrs: list[float]) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = _model().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=lrs[0])
    losses = []
    for (x, y), lr in zip(_batches(steps), lrs, strict=True):
        optimizer.param_groups[0]["lr"] = lr
        logits = model(x.to("tpu"))
        loss = F.cross_entropy(logits.flatten(0, 1), y.to("tpu").flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {k: v.cpu() for k, v in model.state_dict().items()}


def check_gpt() -> None:
    """Forward, backward and optimizer as one program over dp x tp: the losses of one device, and
    the collectives that belong there."""
    m = mesh()
    steps = 6
    lrs = [1e-2 * (1 + i) / steps for i in range(steps)]
    expected, weights = _losses_alone(steps, lrs)
    model = spmd.shard_module(_model(), m, PLAN)
    assert model.head.weight is model.tokens.weight
    rate = spmd.replicate(torch.tensor(lrs[0]), m)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)

    @spmd.compile
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    losses = []
    for (x, y), lr in zip(_batches(steps), lrs, strict=True):
        rate.copy_(spmd.replicate(torch.tensor(lr), m))
        loss = step(spmd.shard(x, m, {"dp": Shard(0)}), spmd.shard(y, m, {"dp": Shard(0)}))
        losses.append(loss.item())
    for found, want in zip(losses, expected, strict=True):
        assert abs(found - want) < 2e-4, (losses, expected)
    assert losses[-1] < losses[0]
    for name, value in model.state_dict().items():
        close(value, weights[name], 3e-3)
    state = optimizer.state[model.blocks[0].up.weight]["exp_avg"]
    assert state.parts[0].shape == (32, 32), state.placements  # a quarter of it

    groups: dict[str, set[Any]] = {}
    for c in step.collectives():
        groups.setdefault(c.kind, set()).add(c.groups)
    over_tp = ((0, 1, 2, 3), (4, 5, 6, 7))
    over_dp = ((0, 4), (1, 5), (2, 6), (3, 7))
    # Gradients over dp, activations over tp.
    assert over_dp in groups["all-reduce"], groups
    assert over_tp in groups["all-reduce"], groups
    assert sum(map(len, step._variants.values())) == 1


def check_learning_rate_as_a_number() -> None:
    """A number of the optimizer that changes is noticed, not kept."""
    m = mesh()
    layer = spmd.shard_module(nn.Linear(4, 4), m)
    alone = nn.Linear(4, 4)
    alone.load_state_dict({k: v.cpu() for k, v in layer.state_dict().items()})
    ours = torch.optim.SGD(layer.parameters(), lr=0.1)
    theirs = torch.optim.SGD(alone.parameters(), lr=0.1)
    a = torch.randn(8, 4)
    x = spmd.shard(a, m, {"dp": Shard(0)})

    @spmd.compile
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = layer(x).square().mean()
        ours.zero_grad()
        loss.backward()
        ours.step()
        return loss

    for lr in (0.1, 0.1, 0.2, 0.05):
        ours.param_groups[0]["lr"] = theirs.param_groups[0]["lr"] = lr
        expected = alone(a).square().mean()
        theirs.zero_grad()
        expected.backward()
        theirs.step()
        assert abs(step(x).item() - expected.item()) < 1e-5
    close(layer.weight.detach(), alone.weight.detach())


def check_collective_modules() -> None:
    """Each collective as a program of its own, on 8 devices."""
    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
    torch.manual_seed(0)
    xs = [torch.randint(1, 5, (8, 3)) for _ in range(8)]

    def run(op: str, dtype: torch.dtype, reduction: str = "sum") -> list[torch.Tensor]:
        text = _C._collective_module(op, dtype, [8, 3], groups, reduction)
        program = _C._ShardedProgram(op, text, list(range(8)), [(-1, dtype)], [], 0)
        parts = [_C._plain(x.to(dtype).to(f"tpu:{i}")) for i, x in enumerate(xs)]
        return [p.cpu() for p in program.run([parts])[0]]

    def group_of(i: int) -> list[torch.Tensor]:
        return xs[:4] if i < 4 else xs[4:]

    reductions: dict[str, Any] = {
        "sum": lambda t: t.sum(0),
        "product": lambda t: t.prod(0),
        "min": lambda t: t.amin(0),
        "max": lambda t: t.amax(0),
        "band": lambda t: t[0] & t[1] & t[2] & t[3],
        "bor": lambda t: t[0] | t[1] | t[2] | t[3],
        "bxor": lambda t: t[0] ^ t[1] ^ t[2] ^ t[3],
    }
    for name, reduce in reductions.items():
        whole = [reduce(torch.stack(group_of(i))) for i in range(8)]
        assert all(map(torch.equal, run("all_reduce", torch.int64, name), whole)), name
        for i, found in enumerate(run("reduce_scatter", torch.int32, name)):
            k = 2 * (i % 4)
            assert torch.equal(found.long(), whole[i][k : k + 2]), name
        if name in ("sum", "min", "max", "product"):
            for i, found in enumerate(run("all_reduce", torch.float32, name)):
                close(found, whole[i].float())
    for i, found in enumerate(run("all_reduce", torch.float32, "avg")):
        close(found, torch.stack(group_of(i)).float().mean(0))
    for i, found in enumerate(run("all_gather", torch.float32)):
        close(found, torch.cat(group_of(i)).float())
    for i, found in enumerate(run("broadcast", torch.float32)):
        close(found, group_of(i)[0].float())
    for i, found in enumerate(run("permute", torch.float32)):
        close(found, group_of(i)[(i - 1) % 4].float())
    for i, found in enumerate(run("all_to_all", torch.float32)):
        k = 2 * (i % 4)
        close(found, torch.cat([t[k : k + 2] for t in group_of(i)]).float())


CHECKS = {name.removeprefix("check_"): f for name, f in globals().items() if "check_" in name}


def main() -> None:
    import traceback

    from conformance.children import serve

    def answer(task: dict[str, Any]) -> dict[str, Any]:
        try:
            CHECKS[task["check"]]()
        except BaseException:
            return {"failed": traceback.format_exc()}
        return {"failed": ""}

    serve(answer)


if __name__ == "__main__":
    main()
