"""Run by test_lightning.py on two ranks: strategies of the Trainer, and Fabric, each against the
same training on the CPU by one process."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from frameworks.lightning_models import Small, data, trainer
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

EPOCHS = 2
Weights = dict[str, torch.Tensor]


class Sharded(Small):
    """By FSDP2, layer for layer."""

    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]
        for layer in self.net:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.net, mesh=mesh)


def alone() -> Weights:
    """A rank takes every second sample: together they take what one process takes at once."""
    model = Small()
    rank_variables = {name: os.environ.pop(name) for name in ("RANK", "TORCHELASTIC_RUN_ID")}
    trainer(max_epochs=EPOCHS, accelerator="cpu", devices=1).fit(model, data(8))
    os.environ.update(rank_variables)
    return {name: value.clone() for name, value in model.state_dict().items()}


def part() -> DataLoader[Any]:
    """This rank's samples, every second one."""
    samples = data().dataset
    rank = int(os.environ["RANK"])
    sampler: Any = DistributedSampler(samples, num_replicas=2, rank=rank, shuffle=False)
    return DataLoader(samples, 4, sampler=sampler)


def compare(found: Weights, expected: Weights, device: torch.device) -> dict[str, Any]:
    if dist.get_rank() != 0:
        return {}
    differences = [
        (found[name].cpu().float() - expected[name]).abs().max().item() for name in expected
    ]
    assert expected.keys() == found.keys()
    return {"device": str(device), "difference": max(differences)}


def by_trainer(
    strategy: str | Strategy, model: L.LightningModule, epochs: int = EPOCHS, path: Any = None
) -> L.Trainer:
    # The accelerator and the devices are "auto".
    made = trainer(max_epochs=epochs, strategy=strategy, use_distributed_sampler=False)
    made.fit(model, part(), part(), ckpt_path=path)
    return made


def resumed(make: Any, folder: str) -> L.Trainer:
    """Saved after one epoch, trained for another by a new trainer."""
    path = os.path.join(folder, "one.ckpt")
    by_trainer(make(), Small(), epochs=1).save_checkpoint(path)
    return by_trainer(make(), Small(rate=7.0), path=path)


def by_fabric() -> tuple[Weights, torch.device]:
    fabric = L.Fabric(strategy="ddp")
    fabric.launch()
    small = Small()
    model, optimizer = fabric.setup(small.net, torch.optim.Adam(small.parameters(), small.rate))
    loader = fabric.setup_dataloaders(part(), use_distributed_sampler=False)
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            fabric.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
    return {f"net.{name}": value for name, value in model.state_dict().items()}, fabric.device


def main() -> None:
    expected = alone()
    results: dict[str, Any] = {}

    def note(name: str, made: L.Trainer) -> None:
        weights: Any = made.strategy.lightning_module_state_dict()
        results[name] = compare(weights, expected, made.strategy.root_device)

    note("ddp", by_trainer("auto", Small()))
    fsdp2 = ModelParallelStrategy(2, 1, save_distributed_checkpoint=False)
    note("fsdp2", by_trainer(fsdp2, Sharded()))
    note("fsdp", by_trainer("fsdp", Small()))
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    note("ddp resumed", resumed(lambda: "ddp", folder[0]))
    note("fsdp resumed", resumed(lambda: FSDPStrategy(state_dict_type="full"), folder[0]))
    weights, device = by_fabric()
    results["fabric"] = compare(weights, expected, device)
    if dist.get_rank() == 0:
        print("RESULT" + json.dumps(results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
