"""# Training, from a CUDA script

A small classifier, as one writes it for a GPU. Only the name of the device is new.
"""

import torch
from torch import nn

# ## The device
# `torch.accelerator` finds it: `tpu` here, `cuda` on a machine with a GPU and without TorchTPU.

device = torch.accelerator.current_accelerator()
torch.manual_seed(0)

# ## Model, data, optimizer
# `.to(device)` moves a model; tensors are best made where they are used.

model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 3)).to(device)
inputs = torch.randn(256, 20, device=device)
labels = (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

# ## Steps
# The loss stays on the device; a read in each step would wait each time. The first steps compile,
# the others run what is there.

losses = []
for _step in range(40):
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())

history = torch.stack(losses).float().cpu()
print(f"loss {history[0]:.3f} -> {history[-1]:.3f} on {device.type}")
assert history[-1] < history[0] / 2

# ## Saving
# A checkpoint is an ordinary one, and loads on any device.

state = {name: value.cpu() for name, value in model.state_dict().items()}
assert state["0.weight"].shape == (64, 20)
