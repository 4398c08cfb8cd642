"""Tensor parallel: the first layer is split by columns, the second by rows, so that one all_reduce
per block suffices. Every rank sees the same batch.

    torchrun --nproc-per-node 2 examples/distributed/tensor_parallel.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def main() -> None:
    """Trains for 10 steps; rank 0 prints the loss and how a weight is laid out."""
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("tpu", (size,), mesh_dim_names=("tensor",))
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)).to("tpu")
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step)).to("tpu")
        loss = (model(x) - x.flip(1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step}  loss {loss.item():.4f}")
    weight = model.get_parameter("0.weight")
    if rank == 0:
        print(f"weight {tuple(weight.shape)}, here {tuple(weight.to_local().shape)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
