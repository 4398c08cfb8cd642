"""Optimizers whose step is one program, and a trainer whose whole step is: loss, gradients and
update together. They are torch.optim's, in numbers and in interface (schedulers, state_dict), less
some options that raise (amsgrad, maximize, dampening, ...), traced by torch.compile.

    >>> import torch
    >>> layer = torch.nn.Linear(4, 1).to("tpu")
    >>> optimizer = torch.tpu.optimizers.AdamW(layer.parameters(), lr=1e-2)
    >>> layer(torch.ones(2, 4, device="tpu")).sum().backward()
    >>> optimizer.step()
"""

from torch_tpu.optimizers._base import Optimizer
from torch_tpu.optimizers._rules import AdamW, Muon, Sgd
from torch_tpu.optimizers._trainer import SingleTraceTrainer

__all__ = ["AdamW", "Muon", "Optimizer", "Sgd", "SingleTraceTrainer"]
