"""Gradients through per_device, in a process with 8 devices: against the same function of lists, a
tensor per device, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from spmd.checks import close, mesh, raises
from torch import nn

from torch_tpu import spmd
from torch_tpu.spmd import Shard, ShardedTensor

# Under other names before torch 2.13.
all_gather_single = getattr(funcol, "all_gather_single", None) or funcol.all_gather_tensor
reduce_scatter_single = (
    getattr(funcol, "reduce_scatter_single", None) or funcol.reduce_scatter_tensor
)

Parts = list[torch.Tensor]
TP = ((0, 1, 2, 3), (4, 5, 6, 7))
ROWS: Any = {"dp": Shard(0)}


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape).requires_grad_()


def over(tensor: torch.Tensor, placements: Any) -> ShardedTensor:
    return spmd.shard(tensor, mesh(), placements)


def backward_of(program: Any) -> list[Any]:
    """What the backward programs of a function exchange."""
    made = [v for _, v in program._variants.values() if hasattr(v, "backward")]
    return [
        c for v in made for b in v.backward.values() for p in b.programs() for c in p.collectives()
    ]


def check_gradients_of_tensor_parallel() -> None:
    """A layer by columns, the next by rows: the gradients of one device, with one reduction over tp
    for the input, and the weights' over dp."""
    torch.manual_seed(0)
    m = mesh()
    tp = m.group("tp")
    leaves = [leaf(16, 8), leaf(32, 8), leaf(32), leaf(8, 32), leaf(8)]
    places: list[Any] = [ROWS, {"tp": Shard(0)}, {"tp": Shard(0)}, {"tp": Shard(1)}, {}]
    ours = [over(t, p) for t, p in zip(leaves, places, strict=True)]

    def whole(x: Any, up: Any, b: Any, down: Any, c: Any) -> Any:
        return F.linear(F.gelu(F.linear(x, up, b)), down) + c

    def part(x: Any, up: Any, b: Any, down: Any, c: Any) -> Any:
        hidden = F.gelu(F.linear(x, up, b))
        return funcol.all_reduce(F.linear(hidden, down), "sum", tp) + c

    layer = spmd.per_device(part, m, ROWS)
    for _ in range(2):  # the second time without tracing
        found, expected = layer(*ours), whole(*leaves)
        close(found.detach(), expected.detach(), 1e-4)
        found.square().mean().backward()
        expected.square().mean().backward()
    for one, other, place in zip(ours, leaves, places, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert one.grad.placements == m.placements(place)
        close(one.grad, other.grad, 1e-4)
    exchanged = backward_of(layer)
    assert [c.groups for c in exchanged if c.shape == (8, 8)] == [TP]
    assert {c.kind for c in exchanged} == {"all-reduce"}
    assert len(exchanged) <= 5
    with torch.no_grad():
        assert not layer(*ours).requires_grad


def check_gradients_of_sequence_parallel() -> None:
    """The same layers with the rows divided over tp between them: all_gather before, reduce_scatter
    after, and the reverse in backward."""
    torch.manual_seed(1)
    m = mesh()
    tp = m.group("tp")
    x, up, down = leaf(4, 16, 8), leaf(32, 8), leaf(8, 32)
    split: Any = {"dp": Shard(0), "tp": Shard(1)}
    ours = [over(x, split), over(up, {"tp": Shard(0)}), over(down, {"tp": Shard(1)})]

    def part(x: Any, up: Any, down: Any) -> Any:
        every = funcol.all_gather_tensor_autograd(x, 1, tp)
        made = F.linear(torch.tanh(F.linear(every, up)), down)
        return funcol.reduce_scatter_tensor_autograd(made, "sum", 1, tp)

    layer = spmd.per_device(part, m, split)
    weight = torch.randn(4, 16, 8)
    expected = F.linear(torch.tanh(F.linear(x, up)), down)
    found = layer(*ours)
    close(found.detach(), expected.detach(), 1e-4)
    (found * over(weight, {})).sum().backward()  # a gradient that is divided in another way
    (expected * weight).sum().backward()
    for one, other in zip(ours, (x, up, down), strict=True):
        close(one.grad, other.grad, 1e-4)
    kinds = {c.kind for c in backward_of(layer)}
    assert {"all-gather", "reduce-scatter"} <= kinds, kinds


def _groups() -> dict[str, list[list[int]]]:
    return {
        "tp": [list(g) for g in TP],
        "dp": [[i, i + 4] for i in range(4)],
        "both": [list(range(8))],
    }


def _everyone(parts: Parts, axes: str, combine: Callable[[Parts], torch.Tensor]) -> Parts:
    out: dict[int, torch.Tensor] = {}
    for group in _groups()[axes]:
        made = combine([parts[i] for i in group])
        out.update(dict.fromkeys(group, made))
    return [out[i] for i in range(8)]


def _pieces(parts: Parts, axes: str) -> list[Parts]:
    """Per device: what the others of its group have for it."""
    out: dict[int, Parts] = {}
    for group in _groups()[axes]:
        cut = [parts[i].chunk(len(group)) for i in group]
        out.update({i: [c[k] for c in cut] for k, i in enumerate(group)})
    return [out[i] for i in range(8)]


def _sent(parts: Parts, axes: str, to: Callable[[int, int], int]) -> Parts:
    out: dict[int, torch.Tensor] = {}
    for group in _groups()[axes]:
        out.update({group[to(k, len(group))]: parts[i] for k, i in enumerate(group)})
    return [out[i] for i in range(8)]


def check_gradients_of_collectives() -> None:
    """Each collective that has a gradient, over one axis and over two. Every device's result counts
    with another weight, so that a gradient that took a wrong way shows."""
    m = mesh()
    names = {"tp": m.group("tp"), "dp": m.group("dp"), "both": m.group("dp", "tp")}
    rings = {names["tp"]: [1, 2, 3, 0], names["both"]: [1, 2, 3, 4, 5, 6, 7, 0]}
    pairs = {names["tp"]: [1, 0, 2, 3], names["both"]: [1, 0, 2, 3, 4, 5, 6, 7]}
    cases: list[tuple[str, Any, Any]] = [
        (
            "all_reduce",
            lambda x, g: funcol.all_reduce(x, "sum", g),
            lambda ps, a: _everyone(ps, a, lambda t: sum(t[1:], t[0])),
        ),
        (
            "average",
            lambda x, g: funcol.all_reduce(x, "avg", g),
            lambda ps, a: _everyone(ps, a, lambda t: torch.stack(t).mean(0)),
        ),
        (
            "all_gather",
            lambda x, g: all_gather_single(x, 0, g),
            lambda ps, a: _everyone(ps, a, torch.cat),
        ),
        (
            "reduce_scatter",
            lambda x, g: reduce_scatter_single(x, "sum", 0, g),
            lambda ps, a: [sum(p[1:], p[0]) for p in _pieces(ps, a)],
        ),
        (
            "all_to_all",
            lambda x, g: funcol.all_to_all_single_autograd(x, None, None, g),
            lambda ps, a: [torch.cat(p) for p in _pieces(ps, a)],
        ),
        (
            "ring",
            lambda x, g: spmd.permute(x, rings[g], g),
            lambda ps, a: _sent(ps, a, lambda i, n: (i + 1) % n),
        ),
        (
            "pairs",  # and others stay where they are
            lambda x, g: spmd.permute(x, pairs[g], g),
            lambda ps, a: _sent(ps, a, lambda i, n: 1 - i if i < 2 else i),
        ),
        (
            "broadcast",
            lambda x, g: funcol.broadcast(x, 1, g),
            lambda ps, a: _everyone(ps, a, lambda t: t[1]),
        ),
        (
            "coalesced",
            lambda x, g: sum(funcol.all_reduce_coalesced([x, x * x], "sum", g)),
            lambda ps, a: _everyone([p + p * p for p in ps], a, lambda t: sum(t[1:], t[0])),
        ),
    ]
    every: Any = {"dp": Shard(0), "tp": Shard(0)}
    torch.manual_seed(2)
    a = torch.randn(64, 3)
    for name, call, reference in cases:
        for axes in ("tp", "both"):
            whole = a.clone().requires_grad_()
            parts = reference([p.sin() for p in whole.chunk(8)], axes)
            expected = torch.cat(parts)
            weight = torch.randn_like(expected)
            (expected * weight).sum().backward()
            x = over(a.clone().requires_grad_(), every)

            def run(x: Any, call: Any = call, group: str = names[axes]) -> Any:
                return call(x.sin(), group)

            found = spmd.per_device(run, m, every)(x)
            close(found.detach(), expected.detach())
            found.backward(over(weight, every))
            assert x.grad is not None
            assert whole.grad is not None
            torch.testing.assert_close(
                x.grad.cpu(), whole.grad, rtol=1e-4, atol=1e-5, msg=f"{name} over {axes}"
            )


def check_gradients_of_copies() -> None:
    """Arguments and results of which devices have copies count once, whatever is in between; and
    what backward takes is not only what forward gave."""
    m = mesh()
    tp, both = m.group("tp"), m.group("dp", "tp")
    torch.manual_seed(3)
    a, s = leaf(8, 12), leaf()
    x, scale = over(a, {"tp": Shard(1)}), over(s, {})

    def part(x: Any, scale: Any, power: int) -> Any:
        rows = funcol.all_reduce((x * scale).exp().sum(1), "sum", tp)  # alike on all devices
        biggest = funcol.all_reduce(x.detach().amax(), "max", both)
        turned = (x * scale).t() @ x
        count = funcol.all_reduce(torch.arange(2, device=x.device), "avg", tp)
        return {
            "rows": rows**power,
            "biggest": biggest,
            "same": scale,
            "turned": turned,
            "n": 7,
            "count": count,
        }

    program = spmd.per_device(part, m, [{}, {}, {}, {"tp": Shard(0)}, {}])
    found = program(x, scale, 2)
    assert found["n"] == 7
    assert found["count"].dtype == torch.int64
    assert not found["biggest"].requires_grad
    assert found["biggest"].item() == a.max().item()
    found["turned"].sum().backward(retain_graph=True)  # a gradient of one result only
    blocks = torch.cat([(p * s).t() @ p for p in a.chunk(4, 1)])
    blocks.sum().backward(retain_graph=True)
    close(x.grad, a.grad, 1e-4)
    close(scale.grad, s.grad, 1e-4)
    (found["rows"].sum() + 3 * found["same"]).backward()
    (((a * s).exp().sum(1) ** 2).sum() + 3 * s).backward()
    close(x.grad, a.grad, 1e-4)
    close(scale.grad, s.grad, 1e-4)


def check_gradients_in_half_precision() -> None:
    """Under autocast, in forward and backward."""
    m = mesh()
    tp = m.group("tp")
    torch.manual_seed(4)
    a, b = leaf(16, 32), leaf(32, 8)
    x, w = over(a, {"dp": Shard(0), "tp": Shard(1)}), over(b, {"tp": Shard(0)})
    layer = spmd.per_device(lambda x, w: funcol.all_reduce((x @ w).float(), "sum", tp), m, ROWS)
    with torch.autocast("tpu", torch.bfloat16):
        found = layer(x, w)
    found.square().sum().backward()
    (a @ b).square().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
    close(x.grad / 50, a.grad / 50, 3e-2)
    assert "bf16" in layer.text()
    layer(x, w)
    assert "bf16" not in layer.text()


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def check_data_parallel_steps() -> None:
    """A module as a function of its parameters, the batch over all devices: the losses and weights
    of one device."""
    m = mesh()
    both = m.group("dp", "tp")
    torch.manual_seed(5)
    alone = _Net()
    plan = {name: over(p.detach(), {}) for name, p in alone.named_parameters()}
    weights = {name: p.requires_grad_() for name, p in plan.items()}
    skeleton = _Net().to("meta")

    def part(weights: Any, x: Any, y: Any) -> Any:
        out = torch.func.functional_call(skeleton, weights, (x,))
        return funcol.all_reduce(F.cross_entropy(out, y), "avg", both)

    loss_of = spmd.per_device(part, m, {})
    ours = torch.optim.SGD(weights.values(), lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    every: Any = {"dp": Shard(0), "tp": Shard(0)}
    for _ in range(4):
        x, y = torch.randn(32, 8), torch.randint(4, (32,))
        ours.zero_grad()
        loss = loss_of(weights, over(x, every), over(y, every))
        loss.backward()
        ours.step()
        theirs.zero_grad()
        expected = F.cross_entropy(alone(x), y)
        expected.backward()
        theirs.step()
        assert abs(loss.item() - expected.item()) < 1e-5
    for name, weight in alone.named_parameters():
        close(weights[name].detach(), weight.detach(), 1e-4)
    assert len(loss_of._variants) == 1
    assert {c.groups for c in backward_of(loss_of)} == {(tuple(range(8)),)}


def check_dropout_in_forward_and_backward() -> None:
    """The mask of backward is that of forward."""
    m = mesh()
    x = over(torch.ones(16, 8).requires_grad_(), ROWS)
    drop = spmd.per_device(lambda x: F.dropout(x, 0.5), m, ROWS)
    found = drop(x)
    found.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), found.detach().cpu())
    assert 0 < found.detach().cpu().count_nonzero() < 16 * 8
    first, *others = (part.cpu() for part in found.detach().parts)
    assert all(torch.equal(first, other) for other in others)  # all draw the same


def check_gradients_that_are_refused() -> None:
    m = mesh()
    tp = m.group("tp")
    x = over(torch.ones(16, 8).requires_grad_(), ROWS)

    def run(function: Any, *args: Any) -> Any:
        return spmd.per_device(function, m, ROWS)(*(args or (x,)))

    raises(RuntimeError, "only supports 'sum'", run, lambda x: funcol.all_reduce(x, "max", tp))
    in_place = torch.ops._c10d_functional.all_reduce_
    raises(NotImplementedError, "all_reduce_ has no", run, lambda x: in_place(x * 2, "sum", tp))
    raises(ValueError, "group", run, lambda x: funcol.permute_tensor(x, [1, 2, 3, 0], tp))
    raises(ValueError, "each gets one", run, lambda x: spmd.permute(x, [1, 1, 2, 3], tp))
    raises(RuntimeError, "writes its arguments", run, lambda x: x.detach().mul_(2))
    captured = torch.ones(8, device="tpu").requires_grad_()
    raises(RuntimeError, "is no argument. Give it", run, lambda x: x * captured)
    found = run(lambda x: x * x)
    raises(RuntimeError, "gradients of gradients", lambda: found.sum().backward(create_graph=True))
    found = run(lambda x: x.exp())
    with torch.no_grad():
        found.zero_()
    raises(RuntimeError, "modified by an inplace operation", found.sum().backward)
