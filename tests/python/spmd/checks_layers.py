"""Layers as one writes them for each device, with their gradients, in a process with 8 devices:
against the same layer whole, on the CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from spmd.checks import close, mesh
from spmd.checks_gradients import ROWS, leaf
from spmd.checks_per_device import TABLE
from torch.utils.checkpoint import checkpoint

from torch_tpu import spmd
from torch_tpu.spmd import Shard

EVERY: Any = {"dp": Shard(0), "tp": Shard(0)}


def _same(m: Any, part: Any, whole: Any, leaves: Any, places: Any, results: Any) -> None:
    alone = [t.detach().clone().requires_grad_(t.requires_grad) for t in leaves]
    ours = [spmd.shard(t, m, p) for t, p in zip(leaves, places, strict=True)]
    found, expected = spmd.per_device(part, m, results)(*ours), whole(*alone)
    close(found.detach(), expected.detach(), 1e-4)
    weight = torch.randn_like(expected)
    found.backward(spmd.shard(weight, m))
    expected.backward(weight)
    for one, other in zip(ours, alone, strict=True):
        if other.grad is not None:
            close(one.grad, other.grad, 1e-3)


def _attend(x: Any, qkv: Any, proj: Any) -> Any:
    q, k, v = torch.einsum("btc,cihd->ibhtd", x, qkv)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2) @ proj


def check_attention_by_heads() -> None:
    """Also with its activations computed again in backward."""
    m = mesh()
    tp = m.group("tp")
    torch.manual_seed(7)

    def whole(x: Any, qkv: Any, proj: Any, scale: Any) -> Any:
        return x + _attend(F.layer_norm(x, (16,), scale), qkv, proj)

    def part(x: Any, qkv: Any, proj: Any, scale: Any) -> Any:
        made = _attend(F.layer_norm(x, (16,), scale), qkv, proj)
        return x + funcol.all_reduce(made, "sum", tp)

    leaves = [leaf(4, 6, 16), leaf(16, 3, 8, 4), leaf(32, 16), leaf(16)]
    places = [ROWS, {"tp": Shard(2)}, {"tp": Shard(0)}, {}]
    _same(m, part, whole, leaves, places, ROWS)
    again = lambda *a: checkpoint(part, *a, use_reentrant=False)  # noqa: E731
    _same(m, again, whole, leaves, places, ROWS)


def check_cross_entropy_over_classes() -> None:
    """Each device has some of the classes, and knows which by its index."""
    m = mesh()
    tp = m.group("tp")
    torch.manual_seed(8)

    def part(x: Any, w: Any, y: Any) -> Any:
        logits = x @ w
        count = w.shape[1]
        top = funcol.all_reduce(logits.detach().amax(1), "max", tp)
        total = funcol.all_reduce((logits - top[:, None]).exp().sum(1), "sum", tp)
        mine = y - spmd.index(tp) * count
        here = (mine >= 0) & (mine < count)
        picked = logits.gather(1, mine.clamp(0, count - 1)[:, None])[:, 0]
        wanted = funcol.all_reduce(torch.where(here, picked, 0.0), "sum", tp)
        return total.log() + top - wanted

    def whole(x: Any, w: Any, y: Any) -> Any:
        return F.cross_entropy(x @ w, y, reduction="none")

    leaves = [leaf(16, 8), leaf(8, 32), torch.randint(32, (16,))]
    _same(m, part, whole, leaves, [ROWS, {"tp": Shard(1)}, ROWS], ROWS)


def check_statistics_of_all_rows() -> None:
    m = mesh()
    both = m.group("dp", "tp")

    def part(x: Any) -> Any:
        mean = funcol.all_reduce(x.mean(0), "avg", both)
        spread = funcol.all_reduce((x - mean).square().mean(0), "avg", both)
        return (x - mean) / torch.sqrt(spread + 1e-5)

    def whole(x: Any) -> Any:
        return (x - x.mean(0)) / torch.sqrt(x.var(0, unbiased=False) + 1e-5)

    _same(m, part, whole, [leaf(32, 5)], [EVERY], EVERY)


def check_experts() -> None:
    """Rows go to the device of their expert and come back: two uneven all-to-alls."""
    m = mesh()
    tp = m.group("tp")
    back = [list(row) for row in zip(*TABLE, strict=True)]

    def part(x: Any, w: Any) -> Any:
        got = spmd.all_to_all(x, TABLE, tp)
        return spmd.all_to_all((got @ w[0]).tanh(), back, tp)

    def whole(x: Any, w: Any) -> Any:
        out = []
        for i, rows in enumerate(x.chunk(8)):
            sizes = TABLE[i % 4]
            pieces = rows[: sum(sizes)].split(sizes)
            out += [(piece @ w[j]).tanh() for j, piece in enumerate(pieces)]
            out.append(rows.new_zeros(5 - sum(sizes), 3))
        return torch.cat(out)

    _same(m, part, whole, [leaf(40, 3), leaf(4, 3, 3)], [EVERY, {"tp": Shard(0)}], EVERY)


def check_meshes_of_other_sizes() -> None:
    """One device, three, and three axes; complex numbers."""
    for shape, names in (((1,), "a"), ((3,), "a"), ((2, 2, 2), "abc")):
        m = spmd.mesh(shape, tuple(names))
        over = names[::2]
        group = m.group(*over)
        split: Any = {name: Shard(1) for name in over}
        rows: Any = {"b": Shard(0)} if "b" in names else {}

        def part(x: Any, w: Any, group: str = group) -> Any:
            return funcol.all_reduce(x @ w, "sum", group).sin()

        def whole(x: Any, w: Any) -> Any:
            return (x @ w).sin()

        for dtype in (torch.float32, torch.complex64):
            leaves = [torch.randn(4, 12, dtype=dtype), 0.1 * torch.randn(12, 5, dtype=dtype)]
            leaves = [t.requires_grad_() for t in leaves]
            weights = {name: Shard(0) for name in over}
            _same(m, part, whole, leaves, [split | rows, weights], rows)
    one = spmd.mesh((1,), ("a",))
    twice = spmd.per_device(lambda x: funcol.all_reduce(x, "sum", one.group("a")) * 2, one, {}, {})
    found = spmd.compile(lambda x: twice(x + 1))(spmd.shard(torch.ones(2), one))
    assert found.cpu().tolist() == [4.0, 4.0]
