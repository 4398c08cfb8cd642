"""How busy a device is, and when the host waits for it."""

from __future__ import annotations

from typing import Any

from torch_tpu import _C
from torch_tpu.tpu._utils import DeviceLike, _get_device_index

_LEVELS = {"default": 0, "warn": 1, "error": 2}


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """What happens when the host waits for the device to read from it (`item()`, `.cpu()`, a result
    whose size depends on data): "default" (0) nothing, "warn" (1), "error" (2). Asked for
    explicitly (`synchronize()`) it may wait.

    >>> import torch
    >>> torch.tpu.set_sync_debug_mode("warn")
    >>> torch.tpu.get_sync_debug_mode()
    1
    >>> torch.tpu.set_sync_debug_mode("default")
    """
    level = _LEVELS.get(debug_mode) if isinstance(debug_mode, str) else int(debug_mode)
    if level not in (0, 1, 2):
        raise RuntimeError(
            f"invalid value of debug_mode, expected one of `default`, `warn`, `error`, or 0, 1, 2, "
            f"got {debug_mode!r}"
        )
    _C._set_sync_debug(level)


def get_sync_debug_mode() -> int:
    """The mode that was set: 0, 1 or 2; see :func:`set_sync_debug_mode`.

    >>> import torch
    >>> torch.tpu.get_sync_debug_mode()
    0
    """
    return _C._get_sync_debug()


def device_memory_used(device: DeviceLike = None) -> int:
    """Bytes of the device's memory in use, by all processes where the plugin tells, else by this
    one. Starts the client.

    >>> import torch
    >>> torch.tpu.device_memory_used() >= 0
    True
    """
    free, total = _C._mem_get_info(_get_device_index(device, optional=True))
    return total - free


def utilization(device: DeviceLike = None) -> int:
    """The percentage of the last sample period in which a TPU's cores were busy, as libtpu's
    monitor tells. Other plugins tell none: RuntimeError.

    >>> import torch
    >>> torch.tpu.utilization()  # doctest: +SKIP
    37
    """
    index = _get_device_index(device, optional=True)
    kind = _C._device_properties(index)["platform_kind"]
    if kind != "tpu":
        instead = "nvidia-smi tells it" if kind == "cuda" else "the system's load tells more"
        raise RuntimeError(
            f"[utilization] the '{kind}' plugin does not tell how busy the device is; {instead}."
        )
    values = _monitored("duty_cycle_pct")
    if index >= len(values):
        raise RuntimeError(
            f"[utilization] libtpu's monitor tells of {len(values)} chips, not of number {index}."
        )
    return round(float(values[index]))


def _monitored(metric: str) -> list[Any]:
    try:
        from libtpu.sdk import tpumonitoring
    except ImportError as error:
        raise RuntimeError(
            "[utilization] this libtpu has no monitor (libtpu.sdk.tpumonitoring). Install a newer "
            "one: pip install -U libtpu"
        ) from error
    return list(tpumonitoring.get_metric(metric).data())
