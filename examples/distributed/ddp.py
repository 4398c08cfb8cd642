"""Data parallel training: each rank has its own batch, DDP averages the gradients.

    torchrun --nproc-per-node 2 examples/distributed/ddp.py

Run without torchrun it trains alone, on the whole batch: the losses are the same.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole batch of a step, the same on every rank."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 16, generator=generator)
    return x, x.sin().sum(1, keepdim=True)


def main() -> None:
    """Trains for 20 steps; rank 0 prints the loss over the whole batch."""
    alone = "RANK" not in os.environ
    if not alone:
        dist.init_process_group()  # no backend named: "tpu" for tpu tensors, Gloo for CPU tensors
    rank = 0 if alone else dist.get_rank()
    size = 1 if alone else dist.get_world_size()

    torch.manual_seed(0)  # the same weights everywhere; DDP would also broadcast rank 0's
    model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to("tpu")
    if not alone:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(20):
        x, y = (part.chunk(size)[rank].to("tpu") for part in batch(step))
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()  # gradients are reduced while this runs
        optimizer.step()
        optimizer.zero_grad()
        shown = loss.detach()
        if not alone:
            dist.all_reduce(shown, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"step {step:2d}  loss {shown.item():.5f}")
    if not alone:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
