"""Fully sharded training: parameters, gradients and optimizer state are split over the ranks; a
layer's parameters are gathered just before it runs.

    torchrun --nproc-per-node 2 examples/distributed/fsdp2.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Block(nn.Module):
    """A residual layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x plus what the layer adds."""
        out: torch.Tensor = x + self.down(nn.functional.gelu(self.up(x)))
        return out


def main() -> None:
    """Trains for 10 steps in bfloat16, then gathers the weights on rank 0."""
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("tpu", (size,), mesh_dim_names=("data",))
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(16) for _ in range(3)), nn.Linear(16, 1)).to("tpu")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    generator = torch.Generator().manual_seed(rank)
    for step in range(10):
        x = torch.randn(8, 16, generator=generator).to("tpu")
        loss = (model(x).float() - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        shown = loss.detach()
        dist.all_reduce(shown, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"step {step}  loss {shown.item():.4f}")

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=options)
    if rank == 0:
        print(f"{len(weights)} tensors, {sum(w.numel() for w in weights.values())} parameters")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
