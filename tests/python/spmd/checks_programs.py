"""Further checks for a process with 8 devices: training steps, and collectives by themselves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from spmd.checks import close, mesh, raises
from torch import nn

from torch_tpu import _C, spmd
from torch_tpu.spmd import Shard

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))
from gpt import GPT, Config

# Under other names before torch 2.13.
all_gather_single = getattr(funcol, "all_gather_single", None) or funcol.all_gather_tensor
reduce_scatter_single = (
    getattr(funcol, "reduce_scatter_single", None) or funcol.reduce_scatter_tensor
)

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


def check_threads_for_collectives() -> None:
    """Matrices large enough for XLA:CPU to share out over its threads, while collectives hold some:
    with no more threads than two processors, this stands still."""
    m = mesh()
    torch.manual_seed(0)
    config = Config(vocab=256, context=128, layers=1, width=256)
    model = spmd.shard_module(GPT(config), m, PLAN)
    tokens = spmd.shard(torch.randint(256, (8, 128)), m, {"dp": Shard(0)})

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)

    @spmd.compile
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    losses = [step(tokens) for _ in range(4)]
    assert losses[3].item() < losses[0].item()


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


def check_functional_collectives() -> None:
    """Those of torch.distributed, inside one program on 8 devices."""
    m = mesh()
    tp, both = m.group("tp"), m.group("dp", "tp")
    torch.manual_seed(0)
    a, b = torch.randn(16, 32), torch.randn(32, 8)
    x = spmd.shard(a, m, {"dp": Shard(0), "tp": Shard(1)})
    w = spmd.shard(b, m, {"tp": Shard(0)})
    layer = spmd.per_device(
        lambda x, w: torch.relu(funcol.all_reduce(x @ w, "sum", tp)), m, {"dp": Shard(0)}
    )
    for scale in (1.0, 2.0):  # the second time without tracing
        found = layer(spmd.shard(scale * a, m, x.placements), w)
        close(found.full_tensor().cpu(), torch.relu(scale * a @ b))
    groups = ((0, 1, 2, 3), (4, 5, 6, 7))
    assert [(c.kind, c.groups) for c in layer.collectives()] == [("all-reduce", groups)]
    assert layer.text().count("stablehlo.all_reduce") == 1

    def exchange(x: torch.Tensor) -> list[torch.Tensor]:
        every = all_gather_single(x, 1, tp)
        own = reduce_scatter_single(every * 2, "sum", 0, tp)
        turned = funcol.all_to_all_single(x, None, None, tp)
        largest = funcol.all_reduce(x.amax(), "max", both)
        mean = funcol.all_reduce(x, "avg", tp)
        return [every, own, turned, largest, mean, funcol.broadcast(x, 2, tp)]

    rows: Any = {"dp": Shard(0)}
    program = spmd.per_device(
        exchange, m, [rows, {"dp": Shard(0), "tp": Shard(0)}, x.placements, {}, rows, rows]
    )
    every, own, turned, largest, mean, third = (t.full_tensor().cpu() for t in program(x))
    close(every, a)
    close(own, 8 * a)
    # Device (i, j) has rows i of 2 and columns j of 4; its k-th piece goes to device (i, k).
    pieces = a.reshape(2, 4, 2, 4, 8)  # dp, piece, row, tp, column
    close(turned, pieces.permute(0, 3, 2, 1, 4).reshape(16, 32))
    assert largest.item() == a.max().item()
    close(mean, a.reshape(16, 4, 8).mean(1))
    assert torch.equal(third, a[:, 16:24])
    kinds = [c.kind for c in program.collectives()]
    assert {"all-gather", "reduce-scatter", "all-to-all", "all-reduce"} <= set(kinds)
    wrong = spmd.per_device(lambda x: funcol.all_reduce(x, "sum", "world"), m, rows)
    raises(RuntimeError, "axes of the mesh", wrong, x)
