"""The state of the device's random numbers in checkpoints of others, whose own files have room for
the devices they know. It is in a file beside theirs, so that theirs remains as they expect it."""

from __future__ import annotations

import os
import warnings

import torch


def _beside(path: str) -> str:
    root, suffix = os.path.splitext(path)
    return f"{root}.tpu{suffix}"


def save_beside(path: str) -> None:
    """To be called after `path` was written: `rng_state.pth` gets a `rng_state.tpu.pth`."""
    tpu = torch.get_device_module("tpu")
    torch.save(tpu.get_rng_state_all(), _beside(path))


def load_beside(path: str) -> None:
    """Warns where there is none: the checkpoint was made on another device."""
    found = _beside(path)
    if not os.path.isfile(found):
        warnings.warn(
            f"{os.path.dirname(path)} holds no random state of the device 'tpu' "
            f"({os.path.basename(found)}): dropout will not draw what it would have drawn.",
            stacklevel=3,
        )
        return
    tpu = torch.get_device_module("tpu")
    states = torch.load(found, weights_only=True)
    for device, state in enumerate(states[: tpu.device_count()]):
        tpu.set_rng_state(state, device)
