"""Training that survives the death of a rank, with nothing but torchrun: it starts all ranks anew,
and they go on from their last checkpoint with the losses of a run that nobody disturbed.

    torchrun --nproc-per-node 2 --max-restarts 3 examples/frameworks/restart.py FOLDER
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

STEPS = 12
EVERY = 4  # steps between checkpoints


def newest(folder: Path) -> int:
    """The step of the last checkpoint that was finished, 0 if there is none."""
    done = [int(path.parent.name) for path in folder.glob("*/.metadata")]
    return max(done, default=0)


def main() -> None:
    """Trains for 12 steps. Each has a seed of its own, so a repeated one is the same."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill", type=int, metavar="STEP", help="rank 1 dies there, once")
    args = parser.parse_args()
    dist.init_process_group()
    rank, restarts = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1)).to("tpu")
    for layer in (model[0], model[3]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    start = newest(args.folder)
    if start:
        weights, moments = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=args.folder / str(start))
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    for step in range(start + 1, STEPS + 1):
        torch.manual_seed(1000 * step + rank)
        x = torch.randn(16, 8).to("tpu")
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        if step == args.kill and rank == 1 and restarts == 0:
            os.kill(os.getpid(), signal.SIGKILL)  # the others are in the middle of the step
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"start {restarts} step {step} loss {mean.item():.9g}", flush=True)
        else:
            mean.item()
        if step % EVERY == 0:
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments}
            dcp.save(state, checkpoint_id=args.folder / str(step))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
