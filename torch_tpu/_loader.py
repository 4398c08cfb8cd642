"""The name by which Ray Train asks for the device (`ScalingConfig(use_tpu=True)`)."""

from __future__ import annotations

from torch_tpu._registration import register


def load() -> None:
    """Registers the device and its backend of torch.distributed, if that was not done already."""
    register()
