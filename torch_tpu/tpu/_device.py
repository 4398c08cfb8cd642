"""Counting, choosing and waiting for devices."""

from __future__ import annotations

from types import TracebackType

import torch

from torch_tpu import _C
from torch_tpu.tpu._utils import DeviceLike, _get_device_index


def is_available() -> bool:
    """Whether a PJRT plugin is found. Starts nothing, so a plugin that then fails to start counts.

    >>> import torch
    >>> device = "tpu" if torch.tpu.is_available() else "cpu"
    """
    return _C._is_available()


def device_count() -> int:
    """Number of devices; 0 when there is no plugin.

    XLA:CPU is counted without starting it; other plugins have to start.

    >>> import torch
    >>> torch.tpu.device_count()
    1
    """
    return _C._device_count()


def current_device() -> int:
    """The calling thread's device. A new thread is on device 0.

    >>> import torch
    >>> torch.tpu.current_device()
    0
    """
    return _C._current_device()


def set_device(device: DeviceLike) -> None:
    """Sets the calling thread's device; a negative number changes nothing.

    >>> import torch
    >>> torch.tpu.set_device(0)
    """
    index = _get_device_index(device)
    if index >= 0:
        _C._set_device(index)


def _exchange_device(device: int) -> int:
    return _C._exchange_device(device) if device >= 0 else -1


_maybe_exchange_device = _exchange_device


class device:  # noqa: N801, torch.cuda's name
    """Runs a block on a device and goes back to the previous one.

    A negative number or None changes nothing.

    >>> import torch
    >>> with torch.tpu.device(0):
    ...     x = torch.zeros(2, device="tpu")
    """

    def __init__(self, device: DeviceLike) -> None:
        self.idx = _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.idx = _maybe_exchange_device(self.prev_idx)


class device_of(device):  # noqa: N801, torch.cuda's name
    """Runs a block on the device of a tensor or storage; one that is not on "tpu" changes nothing.

    >>> import torch
    >>> with torch.tpu.device_of(torch.ones(1, device="tpu")):
    ...     y = torch.zeros(2, device="tpu")
    """

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage) -> None:
        super().__init__(obj.get_device() if obj.device.type == "tpu" else -1)


def synchronize(device: DeviceLike = None) -> None:
    """Waits for all work issued on a device, and raises the first error it failed with.

    Does nothing when the device was never used.

    >>> import torch
    >>> torch.tpu.synchronize()
    """
    index = _get_device_index(device, optional=True)
    if _C._is_initialized() or _C._is_in_bad_fork():
        _C._synchronize(index)


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Whether one device can read another's memory: never, copies go through the client.

    >>> import torch
    >>> torch.tpu.can_device_access_peer(0, 0)
    False
    """
    for each in (device, peer_device):
        index = _get_device_index(each, optional=True)
        if not 0 <= index < device_count():
            raise AssertionError(f"Invalid device id: {index}")
    return False


def ipc_collect() -> None:
    """Does nothing: device memory is never shared between processes.

    >>> import torch
    >>> torch.tpu.ipc_collect()
    """


def current_device_index() -> int:
    """torch.accelerator's name of :func:`current_device`.

    >>> import torch
    >>> torch.tpu.current_device_index()
    0
    """
    return current_device()


def set_device_index(device: DeviceLike) -> None:
    """torch.accelerator's name of :func:`set_device`.

    >>> import torch
    >>> torch.tpu.set_device_index(0)
    """
    set_device(device)


class device_index(device):  # noqa: N801, torch.accelerator's name
    """torch.accelerator's name of :class:`device`.

    >>> import torch
    >>> with torch.tpu.device_index(0):
    ...     x = torch.zeros(2, device="tpu")
    """


def current_accelerator(check_available: bool = False) -> torch.device | None:
    """torch.accelerator's: the device type, without a number; None if it must be there and is not.

    >>> import torch
    >>> torch.tpu.current_accelerator()
    device(type='tpu')
    """
    return torch.device("tpu") if not check_available or is_available() else None
