"""per_device beside its gradients, in a process with 8 devices: uneven pieces, inside a compiled
function, and what is wrong on one device only."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from spmd.checks import close, mesh, raises
from spmd.checks_gradients import ROWS, TP, Parts, leaf, over

from torch_tpu import spmd
from torch_tpu.spmd import Shard

TABLE = [[1, 0, 2, 1], [0, 3, 0, 0], [2, 2, 0, 1], [0, 0, 0, 4]]


def _uneven(parts: Parts, table: list[list[int]]) -> Parts:
    cut = [p[: sum(row)].split(row) for p, row in zip(parts, table, strict=True)]
    rows = max(sum(row[j] for row in table) for j in range(4))
    out = []
    for j in range(4):
        got = torch.cat([c[j] for c in cut])
        out.append(torch.cat([got, got.new_zeros(rows - len(got), *got.shape[1:])]))
    return out


def check_uneven_all_to_all() -> None:
    """By a table of sizes: rows that are not sent, and zeros where less came; and its gradients.
    By two lists of sizes it cannot be, and says so."""
    m = mesh()
    tp = m.group("tp")
    every: Any = {"dp": Shard(0), "tp": Shard(0)}
    a = torch.randn(40, 3).requires_grad_()  # 5 rows per device
    x = over(a, every)
    for table in (TABLE, [[5 * (j == (i + 1) % 4) for j in range(4)] for i in range(4)]):
        program = spmd.per_device(lambda x, t: spmd.all_to_all(x * x, t, tp), m, every)
        found = program(x, table)
        halves = [_uneven(list((h * h).chunk(4)), table) for h in a.chunk(2)]
        expected = torch.cat([p for half in halves for p in half])
        close(found.detach(), expected.detach())
        with torch.no_grad():
            close(program(x, table), expected.detach())
        weight = torch.randn_like(expected)
        x.grad = a.grad = None
        (found * over(weight, every)).sum().backward()
        (expected * weight).sum().backward()
        close(x.grad, a.grad)
    where = spmd.per_device(lambda x: spmd.index(tp).reshape(1), m, every)(x.detach())
    assert where.cpu().tolist() == [0, 1, 2, 3] * 2

    def uneven(x: Any) -> Any:
        return funcol.all_to_all_single(x, [2, 1, 1, 1], [2, 1, 1, 1], tp)

    for given in (x, x.detach()):
        program = spmd.per_device(uneven, m, every)
        raises(NotImplementedError, "spmd.all_to_all takes a table", program, given)
    few = spmd.per_device(lambda x: spmd.all_to_all(x, TABLE[:3], tp), m, every)
    raises(ValueError, "over 4 devices", few, x)
    short = spmd.per_device(lambda x: spmd.all_to_all(x[1:], TABLE, tp), m, every)
    raises(ValueError, "sends 5 rows", short, x)


def check_per_device_inside_compile() -> None:
    """A step of which one layer says its collectives: one program with the optimizer in it, the
    losses and weights of one device; and again with the layer called twice."""
    m = mesh()
    tp = m.group("tp")
    torch.manual_seed(6)

    def part(x: Any, up: Any, down: Any) -> Any:
        hidden = torch.relu(x @ up)
        return x + funcol.all_reduce(hidden @ down, "sum", tp)

    columns: Any = {"tp": Shard(1)}
    layer = spmd.per_device(part, m, ROWS, [ROWS, columns, {"tp": Shard(0)}])
    a, up, down, head = leaf(16, 8), leaf(8, 32), leaf(32, 8), leaf(8, 4)
    leaves = [(0.2 * t.detach()).requires_grad_() for t in (up, down, head)]
    up, down, head = leaves
    places: list[Any] = [columns, {"tp": Shard(0)}, {}]
    ours = [over(t, p) for t, p in zip(leaves, places, strict=True)]
    mine = torch.optim.SGD(ours, lr=0.05)
    theirs = torch.optim.SGD(leaves, lr=0.05)

    @spmd.compile
    def step(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = layer(x.tanh(), ours[0], ours[1])
        loss = (x @ ours[2]).square().mean()
        mine.zero_grad()
        loss.backward()
        mine.step()
        return loss

    x = over(a.detach(), ROWS)
    for _ in range(3):
        y = a.detach()
        for _ in range(2):
            y = y.tanh() + torch.relu(y.tanh() @ up) @ down
        loss = (y @ head).square().mean()
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        found = step(x).item()
        assert abs(found - loss.item()) < 1e-4 * abs(loss.item()), (found, loss.item())
    for one, other in zip(ours, leaves, strict=True):
        close(one.detach(), other.detach(), 1e-3)
    assert sum(map(len, step._variants.values())) == 2  # without and with gradients before
    assert step.text().count("sdy.manual_computation") == 4
    assert TP in {c.groups for c in step.collectives()}
    plain = spmd.per_device(part, m, ROWS)
    unknown = spmd.compile(lambda x: plain(x + 1, ours[0], ours[1]))
    raises(RuntimeError, "arguments=", unknown, x)
    noisy = spmd.per_device(lambda x: F.dropout(x), m, ROWS, ROWS)
    raises(RuntimeError, "random numbers", spmd.compile(lambda x: noisy(x * 2)), x)


def check_checks_of_every_device() -> None:
    """A bad index on one device is an error, also where it is not the first."""
    m = mesh()
    every: Any = {"dp": Shard(0), "tp": Shard(0)}
    table = over(torch.randn(10, 3), {})
    look = spmd.per_device(lambda t, i: F.embedding(i, t), m, every)
    inside = spmd.compile(lambda t, i: look(t, i) * 2)
    good = torch.arange(16) % 10
    close(look(table, over(good, every)), table.cpu()[good])
    close(inside(table, over(good, every)), 2 * table.cpu()[good])
    for place in (0, 13):
        bad = good.clone()
        bad[place] = 10
        for call in (look, inside):
            raises(
                IndexError,
                "out of",
                lambda call=call, bad=bad: call(table, over(bad, every)).cpu(),
            )


def check_torch_compile_and_meshes() -> None:
    """torch.compile leaves what makes programs by itself alone; a function that it made is taken
    as it is."""
    m = mesh()
    tp = m.group("tp")
    a, b = torch.randn(16, 32), torch.randn(32, 8)
    x, w = over(a, {"dp": Shard(0), "tp": Shard(1)}), over(b, {"tp": Shard(0)})

    def part(x: Any, w: Any) -> Any:
        return funcol.all_reduce(x @ w, "sum", tp)

    layer = spmd.per_device(torch.compile(part), m, ROWS)
    close(layer(x, w), a @ b, 1e-4)
    w.requires_grad_()
    layer(x, w).sum().backward()
    close(w.grad, a.sum(0)[:, None].expand(32, 8), 1e-4)
    assert [c.groups for c in layer.collectives()] == [TP]
    close(torch.compile(lambda x, w: torch.relu(layer(x, w)))(x, w).detach(), (a @ b).relu(), 1e-4)
    close(torch.compile(lambda x, w: torch.relu(x @ w))(x, w.detach()), (a @ b).relu(), 1e-4)


def check_per_device_from_disk() -> None:
    """Forward and backward are compiled once for all processes."""
    m = mesh()
    tp = m.group("tp")
    for _ in range(2):
        x = over(torch.ones(16, 8).requires_grad_(), ROWS)
        layer = spmd.per_device(lambda x: funcol.all_reduce(x.sinh(), "sum", tp), m, ROWS)
        layer(x).sum().backward()
        close(x.grad, 4 * torch.ones(16, 8).cosh())
    ((_, made),) = layer._variants.values()
    programs = [p for local in (made.forward, *made.backward.values()) for p in local.programs()]
    assert [p.native.from_disk for p in programs] == [True, True]
