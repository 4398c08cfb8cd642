"""Trains a small GPT with one process that drives 8 devices, data parallel over 2 and tensor
parallel over 4. Forward, backward and optimizer are one program that XLA partitions.

    python examples/distributed/single_controller.py

Nothing is launched with torchrun and no collective is written: how the tensors are divided says
which are needed. On XLA:CPU the devices are threads of this process.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

os.environ.setdefault("TORCH_TPU_CPU_DEVICES", "8")  # before the first tensor
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from gpt import GPT, Config
from torch import Tensor

from torch_tpu import spmd
from torch_tpu.spmd import Shard

STEPS = 10

# The first linear layer of each pair is divided by what it makes, the second by what it takes:
# between the two nothing is exchanged.
PLAN = {
    "blocks.*.qkv.*": {"tp": Shard(0)},
    "blocks.*.proj.weight": {"tp": Shard(1)},
    "blocks.*.up.*": {"tp": Shard(0)},
    "blocks.*.down.weight": {"tp": Shard(1)},
    "tokens.weight": {"tp": Shard(0)},
}


def main() -> None:
    """Trains, and says what the devices exchange."""
    mesh = spmd.mesh((2, 4), ("dp", "tp"))
    torch.manual_seed(0)
    model = spmd.shard_module(GPT(Config(vocab=64, context=16, layers=2, width=64)), mesh, PLAN)
    # Its numbers live on the devices: the step is run without Python.
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, capturable=True)

    @spmd.compile
    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for index in range(STEPS):
        text = (torch.arange(17) + 5 * torch.arange(8)[:, None] + index) % 64
        tokens = spmd.shard(text[:, :-1], mesh, {"dp": Shard(0)})
        targets = spmd.shard(text[:, 1:], mesh, {"dp": Shard(0)})
        loss = step(tokens, targets)
        print(f"step {index + 1:2d}  loss {loss.item():.4f}", flush=True)

    weight = model.blocks[0].up.weight
    print(f"{weight.placements} of {tuple(weight.shape)}: {tuple(weight.parts[0].shape)} a device")
    found = Counter((c.kind, len(c.groups[0])) for c in step.collectives())
    for (kind, size), count in sorted(found.items()):
        print(f"{count} x {kind} between {size} devices")


if __name__ == "__main__":
    main()
