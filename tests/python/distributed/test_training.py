"""DDP, FSDP2 and tensor parallel train as one process does; the losses over 20 steps are equal."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed.ranks import Ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS = 20
PLAN = {
    "first": ColwiseParallel(),
    "second": RowwiseParallel(),
    "last": ColwiseParallel(output_layouts=Replicate()),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.second = nn.Linear(32, 32)
        self.last = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        out: torch.Tensor = self.last(torch.tanh(self.second(x)))
        return out


def make() -> Net:
    torch.manual_seed(3)
    return Net()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 8, generator=generator)
    return x, x[:, :4].cos()


def train(
    model: nn.Module, part: int, parts: int, average: bool, steps: int = STEPS
) -> list[float]:
    """The loss over the whole batch, step by step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: list[float] = []
    for step in range(steps):
        x, y = (t.chunk(parts)[part].to("tpu") for t in batch(step))
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        shown = loss.detach().clone()
        if average:
            dist.all_reduce(shown, op=dist.ReduceOp.AVG)
        losses.append(shown.item())
    return losses


def alone() -> list[float]:
    return train(make().to("tpu"), 0, 1, False)


def close(got: list[float], want: list[float], tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=tolerance, atol=1e-6)


def check_ddp(options: dict[str, Any]) -> None:
    model = DistributedDataParallel(make().to("tpu"), **options)
    close(train(model, dist.get_rank(), dist.get_world_size(), True), alone())


def check_fsdp(reshard: bool, offload: bool) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("tpu", (size,))
    model = make() if offload else make().to("tpu")
    options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": reshard}
    if offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    for layer in (model.first, model.second, model.last):
        fully_shard(layer, **options)
    fully_shard(model, **options)
    close(train(model, rank, size, True), alone())


def check_fsdp_mixed() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = make().to("tpu")
    for layer in (model.first, model.second, model.last, model):
        fully_shard(layer, mesh=init_device_mesh("tpu", (size,)), mp_policy=policy)
    losses = train(model, rank, size, True)
    close(losses, alone(), tolerance=0.05)
    assert losses[-1] < losses[0]


def check_tp() -> None:
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    model = parallelize_module(make().to("tpu"), mesh, PLAN)
    close(train(model, 0, 1, False), alone())


def check_2d() -> None:
    """FSDP2 over one dim of the mesh, tensor parallel over the other."""
    mesh = init_device_mesh("tpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize_module(make().to("tpu"), mesh["tp"], PLAN)
    for layer in (model.first, model.second, model.last):
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    part = mesh["dp"].get_local_rank()
    for step in range(STEPS):
        x, y = (t.chunk(2)[part].to("tpu") for t in batch(step))
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        shown = loss.detach().clone()
        dist.all_reduce(shown, op=dist.ReduceOp.AVG, group=mesh["dp"].get_group())
        losses.append(shown.item())
    close(losses, alone())


DDP = {
    "plain": {},
    "small buckets": {"bucket_cap_mb": 0.001},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
}


@pytest.mark.parametrize("name", DDP)
def test_ddp(two: Ranks, name: str) -> None:
    two.run(check_ddp, DDP[name])


def test_ddp_four(four: Ranks) -> None:
    four.run(check_ddp, {"bucket_cap_mb": 0.001})


@pytest.mark.parametrize("reshard", [True, False])
def test_fsdp(two: Ranks, reshard: bool) -> None:
    two.run(check_fsdp, reshard, False)


def test_fsdp_offload(two: Ranks) -> None:
    two.run(check_fsdp, True, True)


def test_fsdp_mixed(two: Ranks) -> None:
    two.run(check_fsdp_mixed)


def test_tensor_parallel(two: Ranks) -> None:
    two.run(check_tp)


def test_two_dimensions(four: Ranks) -> None:
    four.run(check_2d)


class Branches(nn.Module):
    """Uses one of two layers, by the step."""

    def __init__(self) -> None:
        super().__init__()
        self.even, self.odd = nn.Linear(8, 4), nn.Linear(8, 4)
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        out: torch.Tensor = (self.even if self.step % 2 else self.odd)(x)
        return out


def check_unused() -> None:
    torch.manual_seed(1)
    model = Branches()
    twin = copy.deepcopy(model).to("tpu")
    parallel = DistributedDataParallel(model.to("tpu"), find_unused_parameters=True)
    close(
        train(parallel, dist.get_rank(), dist.get_world_size(), True, 6),
        train(twin, 0, 1, False, 6),
    )


def check_no_sync() -> None:
    model = DistributedDataParallel(make().to("tpu"))
    rank = dist.get_rank()
    with model.no_sync():
        model(torch.full((2, 8), float(rank), device="tpu")).sum().backward()
    local = model.module.last.bias.grad.clone()
    model(torch.full((2, 8), float(rank), device="tpu")).sum().backward()
    both = model.module.last.bias.grad
    found = [torch.empty_like(both) for _ in range(dist.get_world_size())]
    dist.all_gather(found, both)
    assert all(torch.equal(found[0].cpu(), other.cpu()) for other in found)
    assert not torch.equal(local.cpu(), both.cpu())


def check_rank_as_device() -> None:
    """As tutorials write it: each rank names "its" device by its number."""
    rank = dist.get_rank()
    model = DistributedDataParallel(make().to("tpu"), device_ids=[rank], output_device=rank)
    close(train(model, rank, dist.get_world_size(), True), alone())
    by_place = DistributedDataParallel(make().to("tpu"), [rank], rank)
    close(train(by_place, rank, dist.get_world_size(), True), alone())


def check_comm_hooks() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    want = alone()
    for hook, tolerance in (
        (default_hooks.allreduce_hook, 1e-5),
        (default_hooks.fp16_compress_hook, 0.05),
    ):
        model = DistributedDataParallel(make().to("tpu"))
        model.register_comm_hook(None, hook)
        close(train(model, dist.get_rank(), dist.get_world_size(), True), want, tolerance)
    model = DistributedDataParallel(make().to("tpu"))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    losses = train(model, dist.get_rank(), dist.get_world_size(), True)
    assert losses[-1] < losses[0]


def check_zero() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(make().to("tpu"))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    losses = []
    for step in range(STEPS):
        x, y = (t.chunk(size)[rank].to("tpu") for t in batch(step))
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        shown = loss.detach().clone()
        dist.all_reduce(shown, op=dist.ReduceOp.AVG)
        losses.append(shown.item())
    close(losses, alone())


@pytest.mark.parametrize(
    "check",
    [check_unused, check_no_sync, check_rank_as_device, check_comm_hooks, check_zero],
    ids=lambda check: check.__name__,
)
def test_ddp_features(two: Ranks, check: Any) -> None:
    two.run(check)
