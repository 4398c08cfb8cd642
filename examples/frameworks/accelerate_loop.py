"""accelerate's loop on the device. Nothing in it names one.

    python examples/frameworks/accelerate_loop.py
    torchrun --nproc-per-node 2 examples/frameworks/accelerate_loop.py
    accelerate launch --num_processes 2 examples/frameworks/accelerate_loop.py

Accelerator(cpu=True) stays on the CPU; Accelerator(mixed_precision="bf16") is what a TPU likes.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    set_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    x = torch.randn(256, 16)
    y = x[:, :4].sum(1, keepdim=True).tanh()
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    # The same number of samples a step, however many processes there are.
    size = 32 // accelerator.num_processes
    batches = DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)

    for epoch in range(4):
        for inputs, targets in batches:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        mean = accelerator.gather_for_metrics(loss.detach().reshape(1)).mean()
        accelerator.print(f"epoch {epoch}, loss {mean.item():.4f} on {accelerator.device.type}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
