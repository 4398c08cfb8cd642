"""Ranks need not do the same between collectives: here rank 0 alone prints, evaluates on a batch of
another shape, and saves, every few steps. No other rank waits for it except where it must: in the
next collective.

    torchrun --nproc-per-node 2 examples/distributed/rank0_logging.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Trains for 9 steps; rank 0 looks after the rest."""
    dist.init_process_group()
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to("tpu")
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    with tempfile.TemporaryDirectory() as folder:
        for step in range(9):
            x = torch.randn(8, 16, generator=generator).to("tpu")
            loss = (parallel(x) - x.mean(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0 and step % 3 == 2:
                with torch.no_grad():
                    many = torch.randn(50, 16, generator=generator).to("tpu")
                    error = (model(many) - many.mean(1, keepdim=True)).abs().max()
                path = Path(folder) / f"{step}.pt"
                torch.save(model.state_dict(), path)
                print(f"step {step}  loss {loss.item():.4f}  worst of 50 {error.item():.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
