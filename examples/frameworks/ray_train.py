"""Ray Train on the device: two workers, one process group of the backend "tpu", a checkpoint after
each epoch. When a worker dies, Ray starts all of them anew, and they go on from the last one.

    python examples/frameworks/ray_train.py [--workers 2] [--kill-once]
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray import train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EPOCHS = 6


def train_worker(config: dict[str, Any]) -> None:
    """What each worker runs. Ray has made the process group, with the backend of `TorchConfig`."""
    rank = dist.get_rank()
    device = torch.device("tpu")  # get_device() is this where Ray has TPUs to give
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    first = 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1

    for epoch in range(first, EPOCHS):
        generator = torch.Generator().manual_seed(1000 * epoch + rank)
        x = torch.randn(16, 8, generator=generator).to(device)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch == 3 and rank == 1 and config["kill_once"] and first == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        mean = loss.detach()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        metrics = {"epoch": epoch, "loss": mean.item(), "device": str(loss.device), "from": first}
        with tempfile.TemporaryDirectory() as folder:
            saved = None
            if rank == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "epoch": epoch,
                }
                torch.save(state, Path(folder) / "state.pt")
                saved = Checkpoint.from_directory(folder)
            train.report(metrics, checkpoint=saved)


def main() -> None:
    """Trains, and prints the last loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill-once", action="store_true", help="one worker dies in epoch 3")
    args = parser.parse_args()
    ray.init(num_cpus=args.workers + 1, include_dashboard=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            train_worker,
            train_loop_config={"kill_once": args.kill_once},
            torch_config=TorchConfig(backend="tpu"),
            scaling_config=ScalingConfig(num_workers=args.workers),
            run_config=RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=1)),
        )
        result = trainer.fit()
    last = result.metrics
    print(f"{last['device']}, from epoch {last['from']}, epoch {last['epoch']}", end=", ")
    print(f"loss {last['loss']:.6f}")
    ray.shutdown()


if __name__ == "__main__":
    main()
