"""DTensor, pipelines, context parallel, distributed checkpoints and torch.compile over ranks, each
against the same on one process."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from distributed.ranks import Ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.nn.parallel import DistributedDataParallel

# Under other names before torch 2.13.
all_gather_single = getattr(funcol, "all_gather_single", None) or funcol.all_gather_tensor
reduce_scatter_single = (
    getattr(funcol, "reduce_scatter_single", None) or funcol.reduce_scatter_tensor
)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(got: Any, want: torch.Tensor, tolerance: float = 1e-5) -> None:
    if isinstance(got, DTensor):
        got = got.full_tensor()
    torch.testing.assert_close(got.detach().cpu(), want, rtol=tolerance, atol=tolerance)


def check_dtensor() -> None:
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    a, b = numbers(8, 6), numbers(6, 4, seed=1)
    for left in (Shard(0), Shard(1), Replicate()):
        for right in (Shard(0), Shard(1), Replicate()):
            x = distribute_tensor(a.to("tpu"), mesh, [left])
            y = distribute_tensor(b.to("tpu"), mesh, [right])
            same(x, a)
            same(x @ y, a @ b)
    x = distribute_tensor(a.to("tpu"), mesh, [Shard(0)])
    same(x.redistribute(placements=[Shard(1)]), a)
    same(x.sum(0), a.sum(0))
    same(x.softmax(-1), a.softmax(-1))
    local = DTensor.from_local(a.to("tpu"), mesh, [Partial()])
    same(local, a * mesh.size())
    odd = numbers(5, 3)
    same(distribute_tensor(odd.to("tpu"), mesh, [Shard(0)]) * 2, odd * 2)
    leaf = distribute_tensor(a.to("tpu"), mesh, [Shard(0)]).requires_grad_()
    (leaf.relu() * leaf).sum().backward()
    assert leaf.grad is not None
    same(leaf.grad, 2 * a.relu())


def check_attention() -> None:
    """DTensors by batch, by heads, and with a mask."""
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    parts = [numbers(2, 4, 8, 8, seed=s) for s in range(3)]
    attend = nn.functional.scaled_dot_product_attention
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    for placement in (Shard(0), Shard(1), Shard(2), Replicate()):
        for options in ({}, {"attn_mask": mask}):
            host = [t.clone().requires_grad_() for t in parts]
            want = attend(*host, **options)
            want.square().sum().backward()
            mine = [
                distribute_tensor(t.to("tpu"), mesh, [placement]).requires_grad_() for t in parts
            ]
            given = {
                name: distribute_tensor(t.to("tpu"), mesh, [Replicate()])
                for name, t in options.items()
            }
            out = attend(*mine, **given)
            same(out, want.detach(), 1e-4)
            out.square().sum().backward()
            for got, t in zip(mine, host, strict=True):
                assert got.grad is not None
                assert t.grad is not None
                same(got.grad, t.grad, 1e-4)


def check_dtensor_2d() -> None:
    mesh = init_device_mesh("tpu", (2, 2), mesh_dim_names=("a", "b"))
    x = numbers(8, 8)
    for placements in ([Shard(0), Shard(1)], [Shard(1), Replicate()], [Shard(0), Shard(0)]):
        t = distribute_tensor(x.to("tpu"), mesh, placements)
        same(t, x)
        same(t @ t, x @ x, 1e-4)
        same(t.redistribute(placements=[Replicate(), Shard(0)]), x)
    torch.manual_seed(5)
    drawn = torch.distributed.tensor.rand(8, 8, device_mesh=mesh, placements=[Shard(0), Shard(1)])
    assert 0 < drawn.full_tensor().mean().item() < 1


class Stage(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x))


def check_pipeline(name: str) -> None:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    rank, size = dist.get_rank(), dist.get_world_size()
    schedule_class = get_schedule_class(name)
    per_rank = 2 if "Interleaved" in name or "Looped" in name else 1
    count = size * per_rank
    torch.manual_seed(4)
    layers = [Stage(6) for _ in range(count)]
    x, y = numbers(8, 6), numbers(8, 6, seed=9)

    def loss_of(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (out - target).square().mean()

    want = copy.deepcopy(nn.Sequential(*layers))
    want_loss = loss_of(want(x), y)
    want_loss.backward()

    stages = [
        PipelineStage(layers[i].to("tpu"), i, count, torch.device("tpu"))
        for i in range(rank, count, size)
    ]
    schedule = schedule_class(
        stages if per_rank > 1 else stages[0], n_microbatches=4, loss_fn=loss_of
    )
    losses: list[torch.Tensor] = []
    if rank == 0:
        schedule.step(x.to("tpu"))
    elif rank == size - 1:
        schedule.step(target=y.to("tpu"), losses=losses)
        assert abs(torch.stack(losses).mean().item() - want_loss.item()) < 1e-5
    else:
        schedule.step()
    for i in range(rank, count, size):
        grad = layers[i].layer.weight.grad
        assert grad is not None
        reference = want[i].layer.weight.grad
        # Each microbatch's loss is a mean: schedules scale the gradients to the whole batch.
        same(grad, reference, 1e-4)


def check_context_parallel() -> None:
    from torch.distributed.tensor.experimental import context_parallel

    size = dist.get_world_size()
    mesh = init_device_mesh("tpu", (size,), mesh_dim_names=("cp",))
    q, k, v = (numbers(1, 2, 16, 8, seed=s) for s in range(3))
    for causal in (False, True):
        host = [t.clone().requires_grad_() for t in (q, k, v)]
        want = nn.functional.scaled_dot_product_attention(*host, is_causal=causal)
        want.sum().backward()
        mine = [t.to("tpu") for t in (q, k, v)]
        with context_parallel(
            mesh, buffers=mine, buffer_seq_dims=[2, 2, 2], no_restore_buffers=set(mine)
        ):
            for t in mine:
                t.requires_grad_()
            out = nn.functional.scaled_dot_product_attention(*mine, is_causal=causal)
            out.sum().backward()
            grads = [t.grad for t in mine]
        from torch.distributed.tensor.experimental._attention import context_parallel_unshard

        whole = context_parallel_unshard(mesh, [out.detach(), *grads], [2] * 4)
        same(whole[0], want.detach(), 1e-4)
        for got, t in zip(whole[1:], host, strict=True):
            assert t.grad is not None
            same(got, t.grad, 1e-4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 12)
        self.b = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.b(torch.relu(self.a(x)))
        return out


def make() -> Net:
    torch.manual_seed(2)
    return Net()


def check_checkpoint(folder: str) -> None:
    """Saved with FSDP over all ranks, loaded with another sharding and without any."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        get_optimizer_state_dict,
        set_model_state_dict,
        set_optimizer_state_dict,
    )

    size = dist.get_world_size()
    model = make().to("tpu")
    fully_shard(model.a)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(numbers(4, 8).to("tpu")).square().mean().backward()
    optimizer.step()
    state = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }
    dcp.save(state, checkpoint_id=folder)
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))

    other = Net().to("tpu")  # sharded over the columns, another way than it was saved
    mesh = init_device_mesh("tpu", (size,))
    fully_shard(other, mesh=mesh, shard_placement_fn=lambda p: Shard(p.dim() - 1))
    other_optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2)
    loaded = {
        "model": get_model_state_dict(other),
        "optimizer": get_optimizer_state_dict(other, other_optimizer),
    }
    dcp.load(loaded, checkpoint_id=folder)
    set_model_state_dict(other, loaded["model"])
    set_optimizer_state_dict(other, other_optimizer, loaded["optimizer"])
    plain = Net().to("tpu")
    whole = {"model": plain.state_dict()}
    dcp.load(whole, checkpoint_id=folder)
    for name, want in full.items():
        same(loaded["model"][name], want.cpu())
        same(plain.state_dict()[name], want.cpu())
    x = numbers(3, 8, seed=3).to("tpu")
    same(other(x), model(x).detach().cpu())


def check_functional() -> None:
    size = dist.get_world_size()
    group = dist.group.WORLD
    x = torch.arange(size * 2, device="tpu").float()
    same(funcol.all_reduce(x, "sum", group) + 0, x.cpu() * size)
    same(funcol.all_gather_tensor(x, 0, group) + 0, x.cpu().repeat(size))
    part = funcol.reduce_scatter_tensor(x, "sum", 0, group)
    same(part + 0, x.cpu().chunk(size)[dist.get_rank()] * size)
    same(funcol.all_to_all_single(x, None, None, group) + 0, _transposed(x.cpu(), size))


def _transposed(x: torch.Tensor, size: int) -> torch.Tensor:
    return x.chunk(size)[dist.get_rank()].repeat(size)


def check_compile() -> None:
    size = dist.get_world_size()
    group = dist.group.WORLD

    def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = funcol.all_reduce(x * 2 + 1, "sum", group)
        other = (y @ y).relu()
        return total / size + other.sum(), funcol.all_gather_tensor(other, 0, group) * 3

    x, y = numbers(4).to("tpu"), numbers(3, 3).to("tpu")
    want = step(x, y)
    torch._dynamo.reset()
    got = torch.compile(step, fullgraph=True)(x, y)
    for a, b in zip(got, want, strict=True):
        same(a, b.cpu())


def check_compile_whole() -> None:
    """All four functional collectives: one graph of Dynamo's, one compiled callable."""
    size = dist.get_world_size()
    group = dist.group.WORLD

    def step(x: torch.Tensor) -> torch.Tensor:
        total = funcol.all_reduce(x.sin(), "avg", group)
        every = all_gather_single(total + x, 0, group)
        own = reduce_scatter_single(every * 2, "sum", 0, group)
        turned = funcol.all_to_all_single(own.exp(), None, None, group)
        return turned.cumsum(0) + x

    x = numbers(2 * size, 3, seed=dist.get_rank()).to("tpu")
    want = step(x).cpu()
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    compiled = torch.compile(step, backend="tpu", fullgraph=True)
    for _ in range(3):
        same(compiled(x), want)
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1
    assert counters["torch_tpu"]["graphs_inference"] == 1, dict(counters["torch_tpu"])


def _train(model: nn.Module, steps: int, part: int, parts: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        x = numbers(8, 8, seed=step).chunk(parts)[part].to("tpu")
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        shown = loss.detach().clone()
        if parts > 1:
            dist.all_reduce(shown, op=dist.ReduceOp.AVG)
        losses.append(shown.item())
    return losses


def check_compiled_training(kind: str) -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    rank, size = dist.get_rank(), dist.get_world_size()
    torch._dynamo.reset()
    want = _train(make().to("tpu"), 4, 0, 1)
    model: Any = make().to("tpu")
    parts = (rank, size)
    if kind == "ddp":
        model = torch.compile(DistributedDataParallel(model))
    elif kind == "fsdp":
        fully_shard(model.a)
        fully_shard(model.b)
        fully_shard(model)
        model.a.compile()
        model.b.compile()
    else:
        mesh = init_device_mesh("tpu", (size,))
        plan = {"a": ColwiseParallel(), "b": RowwiseParallel()}
        model = torch.compile(parallelize_module(model, mesh, plan))
        parts = (0, 1)
    got = _train(model, 4, *parts)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "check",
    [
        check_dtensor,
        check_attention,
        check_context_parallel,
        check_functional,
        check_compile,
        check_compile_whole,
    ],
    ids=lambda check: check.__name__,
)
def test_two_ranks(two: Ranks, check: Any) -> None:
    two.run(check)


@pytest.mark.parametrize("name", ["GPipe", "1F1B", "Interleaved1F1B"])
def test_pipeline(two: Ranks, name: str) -> None:
    two.run(check_pipeline, name)


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "tp"])
def test_compiled_training(two: Ranks, kind: str) -> None:
    two.run(check_compiled_training, kind, timeout=120)


def test_checkpoint(two: Ranks, tmp_path: Path) -> None:
    two.run(check_checkpoint, str(tmp_path / "checkpoint"))


def test_four_ranks(four: Ranks) -> None:
    four.run(check_dtensor_2d)
