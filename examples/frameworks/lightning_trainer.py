"""A script for Lightning's Trainer, as it is written for a GPU. It trains on the TPU, since
`accelerator` is "auto".

    python examples/frameworks/lightning_trainer.py
    python examples/frameworks/lightning_trainer.py --devices 2 --precision bf16-mixed
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(L.LightningModule):
    """Squeezes 16 numbers, which are sums of 4, into 4."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16))

    def loss(self, batch: Any) -> torch.Tensor:
        """How far the result is from the input."""
        (x,) = batch
        return nn.functional.mse_loss(self.decoder(self.encoder(x)), x)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """One batch."""
        loss = self.loss(batch)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        """The mean over all processes."""
        self.log("validation", self.loss(batch), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        """Printed by the first process only."""
        self.print(f"validation {self.trainer.callback_metrics['validation'].item():.4f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def samples(count: int) -> TensorDataset:
    """Points of a plane of 4 dimensions in a space of 16."""
    plane = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    return TensorDataset(torch.randn(count, 4) @ plane)


def main() -> None:
    """Trains for 8 epochs and keeps the last state."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--save", metavar="FILE")
    args = parser.parse_args()
    L.seed_everything(1)
    trainer = L.Trainer(
        devices=args.devices,
        precision=args.precision,
        max_epochs=8,
        logger=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(
        Autoencoder(),
        DataLoader(samples(256), batch_size=16, shuffle=True),
        DataLoader(samples(64), batch_size=16),
    )
    if args.save:
        trainer.save_checkpoint(args.save)
    if trainer.is_global_zero:
        print(f"trained on {trainer.strategy.root_device}, {trainer.world_size} processes")


if __name__ == "__main__":
    main()
