"""A small model for Lightning, and its data: the same numbers wherever it is trained."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 32


class Small(L.LightningModule):
    """Learns the sum of its inputs. Notes its losses and where and in what they were computed."""

    def __init__(self, rate: float = 1e-2) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.rate = rate
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.losses: list[torch.Tensor] = []
        self.seen: set[tuple[str, torch.dtype]] = set()

    def loss(self, batch: Any) -> torch.Tensor:
        x, y = batch
        out = self.net(x)
        self.seen.add((out.device.type, out.dtype))
        return nn.functional.mse_loss(out.float(), y.float())

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.losses.append(loss.detach())
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), self.rate)

    @property
    def values(self) -> list[float]:
        return [loss.item() for loss in self.losses]


def data(batch: int = 8) -> DataLoader[Any]:
    x = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch)


def trainer(**options: Any) -> L.Trainer:
    """One that writes nothing and says little, unless told to."""
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return L.Trainer(**{**quiet, **options})
