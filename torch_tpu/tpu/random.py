"""Random state of the devices: a seed and an offset each. Nothing here starts the client where
the devices can be counted without it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torch_tpu import _C
from torch_tpu.tpu._device import device_count
from torch_tpu.tpu._utils import DeviceLike, _get_device_index

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _get_generator(device: DeviceLike = None) -> torch.Generator:
    """The generator a device's random ops draw from."""
    return _C._default_generator(_get_device_index(device, optional=True))


def get_rng_state(device: DeviceLike = "tpu") -> torch.Tensor:
    """A device's random state, as 16 bytes on the CPU.

    >>> import torch
    >>> state = torch.tpu.get_rng_state()
    >>> x = torch.rand(2, device="tpu")
    >>> torch.tpu.set_rng_state(state)
    >>> bool((torch.rand(2, device="tpu") == x).all())
    True
    """
    return _get_generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The random states of all devices.

    >>> import torch
    >>> states = torch.tpu.get_rng_state_all()
    """
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "tpu") -> None:
    """Sets a device's random state to one that :func:`get_rng_state` gave.

    >>> import torch
    >>> torch.tpu.set_rng_state(torch.tpu.get_rng_state())
    """
    if new_state.device.type != "cpu":  # else no op: a fake mode would have it
        new_state = new_state.cpu()
    _get_generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the random states of all devices.

    >>> import torch
    >>> torch.tpu.set_rng_state_all(torch.tpu.get_rng_state_all())
    """
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device. :func:`torch.manual_seed` seeds all of them, and the CPU.

    >>> import torch
    >>> torch.tpu.manual_seed(0)
    """
    _get_generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds all devices; starts nothing.

    >>> import torch
    >>> torch.tpu.manual_seed_all(0)
    """
    seed = int(seed)
    _C._manual_seed_all(seed if seed >= 0 else seed + (1 << 64))


def seed() -> None:
    """Seeds the current device with a random number.

    >>> import torch
    >>> torch.tpu.seed()
    """
    _get_generator().seed()


def seed_all() -> None:
    """Seeds all devices with one random number.

    >>> import torch
    >>> torch.tpu.seed_all()
    """
    manual_seed_all(_get_generator(0).seed())


def initial_seed() -> int:
    """The current device's seed.

    >>> import torch
    >>> torch.tpu.manual_seed(7)
    >>> torch.tpu.initial_seed()
    7
    """
    return _get_generator().initial_seed()
