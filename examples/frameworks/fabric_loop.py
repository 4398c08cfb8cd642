"""A training loop with Lightning Fabric, which sees to device, precision and processes.

    python examples/frameworks/fabric_loop.py [--devices 2] [--precision bf16-mixed]

Under the command `fabric run --devices 2 SCRIPT` the processes are there already: leave out
`launch()`.
"""

from __future__ import annotations

import argparse

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Trains for 5 epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--precision", default="32-true")
    args = parser.parse_args()
    fabric = Fabric(devices=args.devices, precision=args.precision)
    fabric.launch()
    fabric.seed_everything(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    x = torch.randn(256, 8)
    loader = fabric.setup_dataloaders(
        DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
    )
    for epoch in range(5):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            fabric.backward(loss)
            optimizer.step()
        mean = fabric.all_reduce(loss.detach(), reduce_op="mean")
        fabric.print(f"epoch {epoch}  loss {mean.item():.4f}")
    fabric.print(f"{fabric.world_size} processes, the first on {fabric.device}")


if __name__ == "__main__":
    main()
