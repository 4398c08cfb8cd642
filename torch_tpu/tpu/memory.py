"""Device memory, counted by what is alive. Nothing is cached; what is reserved beyond that is what
programs need while they run."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu.tpu._snapshot import (
    dump_snapshot as _dump_snapshot,
    record_memory_history as _record_memory_history,
    snapshot as _snapshot,
)
from torch_tpu.tpu._utils import DeviceLike, _get_device_index

__all__ = [
    "_dump_snapshot",
    "_record_memory_history",
    "_snapshot",
    "empty_cache",
    "empty_host_cache",
    "get_allocator_backend",
    "get_memory_info",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


def empty_cache() -> None:
    """Gives freed memory that the process kept for later use back to the system.

    Tensors give theirs back to the plugin when the last one is gone. On XLA:CPU the process keeps
    it then, as much as 1 GiB, since the next step would pay for every page again.

    >>> import torch
    >>> torch.tpu.empty_cache()
    """
    torch.accelerator.empty_cache()


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """The counts of :func:`memory_stats` as nested dictionaries; empty before the first use.

    >>> import torch
    >>> stats = torch.tpu.memory_stats_as_nested_dict()
    """
    if not _C._is_initialized():
        return {}
    return torch._C._accelerator_getDeviceStats(_get_device_index(device, optional=True))


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """Counts of a device's memory under torch.cuda's names, such as
    ``"allocated_bytes.all.current"``; empty before the first use.

    >>> import torch
    >>> x = torch.ones(1024, device="tpu")
    >>> torch.tpu.memory_stats()["allocated_bytes.all.peak"] > 0
    True
    """
    return _flat(memory_stats_as_nested_dict(device))


def _flat(nested: dict[str, Any]) -> dict[str, Any]:
    """Names joined by dots, in order."""
    flat: list[tuple[str, Any]] = []

    def flatten(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat.append((prefix, value))

    flatten("", nested)
    return collections.OrderedDict(sorted(flat))


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """The counts of :func:`host_memory_stats` as nested dictionaries.

    >>> import torch
    >>> stats = torch.tpu.host_memory_stats_as_nested_dict()
    """
    return _C._host_memory_stats()


def host_memory_stats() -> dict[str, Any]:
    """Counts of pinned host memory under torch.cuda's names.

    >>> import torch
    >>> x = torch.empty(1024, pin_memory=True)
    >>> torch.tpu.host_memory_stats()["allocated_bytes.current"] >= 4096
    True
    """
    return _flat(host_memory_stats_as_nested_dict())


def reset_peak_host_memory_stats() -> None:
    """Sets the peaks of :func:`host_memory_stats` to what is held now.

    >>> import torch
    >>> torch.tpu.reset_peak_host_memory_stats()
    """
    _C._reset_host_memory_stats(True)


def reset_accumulated_host_memory_stats() -> None:
    """Sets the totals of :func:`host_memory_stats` to 0.

    >>> import torch
    >>> torch.tpu.reset_accumulated_host_memory_stats()
    """
    _C._reset_host_memory_stats(False)


def empty_host_cache() -> None:
    """Does nothing: freed pinned memory goes back to the system at once.

    >>> import torch
    >>> torch.tpu.empty_host_cache()
    """


def get_allocator_backend() -> str:
    """Who has the device's memory: the PJRT plugin.

    >>> import torch
    >>> torch.tpu.get_allocator_backend()
    'pjrt'
    """
    return "pjrt"


def _count(device: DeviceLike, name: str) -> int:
    index = _get_device_index(device, optional=True)
    return _C._memory_counts(index)[name] if _C._is_initialized() else 0


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes of device memory that tensors hold now.

    >>> import torch
    >>> before = torch.tpu.memory_allocated()
    """
    return _count(device, "current_bytes")


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Most bytes of device memory held at once, since the start or the last
    :func:`reset_peak_memory_stats`.

    >>> import torch
    >>> torch.tpu.max_memory_allocated() >= torch.tpu.memory_allocated()
    True
    """
    return _count(device, "peak_bytes")


def memory_reserved(device: DeviceLike = None) -> int:
    """The same as :func:`memory_allocated`: nothing is cached.

    >>> import torch
    >>> reserved = torch.tpu.memory_reserved()
    """
    return memory_allocated(device)


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The peak with what programs needed beside their results, as far as the plugin tells.

    >>> import torch
    >>> reserved = torch.tpu.max_memory_reserved()
    """
    return _count(device, "peak_reserved_bytes")


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Sets the peaks to what is held now.

    >>> import torch
    >>> torch.tpu.reset_peak_memory_stats()
    """
    index = _get_device_index(device, optional=True)
    if _C._is_initialized():
        _C._reset_peak_memory(index)


def reset_max_memory_allocated(device: DeviceLike = None) -> None:
    """The same as :func:`reset_peak_memory_stats`.

    >>> import torch
    >>> torch.tpu.reset_max_memory_allocated()
    """
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Sets the totals ("allocated", "freed") and the number of out-of-memory errors to 0.

    >>> import torch
    >>> torch.tpu.reset_accumulated_memory_stats()
    """
    index = _get_device_index(device, optional=True)
    if _C._is_initialized():
        _C._reset_accumulated_memory(index)


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """(free, total) bytes of a device, 0 where unknown. Starts the client.

    >>> import torch
    >>> free, total = torch.tpu.mem_get_info()
    """
    free, total = _C._mem_get_info(_get_device_index(device, optional=True))
    return free, total


def get_memory_info(device: DeviceLike = None) -> tuple[int, int]:
    """torch.accelerator's name of :func:`mem_get_info`.

    >>> import torch
    >>> torch.tpu.get_memory_info() == torch.tpu.mem_get_info()
    True
    """
    return mem_get_info(device)


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits this process to a fraction of the device's memory; beyond it, torch.OutOfMemoryError.

    >>> import torch
    >>> torch.tpu.set_per_process_memory_fraction(1.0)
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    index = _get_device_index(device, optional=True)
    _, total = mem_get_info(index)
    if total == 0:
        raise RuntimeError("The plugin does not tell how much memory the device has.")
    # 0 means no limit to the counter, and one byte is as good as none.
    _C._set_memory_limit(max(1, int(fraction * total)), index)


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """The fraction of the device's memory this process may hold; 1.0 when there is no limit.

    >>> import torch
    >>> 0 <= torch.tpu.get_per_process_memory_fraction() <= 1
    True
    """
    index = _get_device_index(device, optional=True)
    _, total = mem_get_info(index)
    limit = _C._memory_limit(index)
    return min(1.0, limit / total) if limit and total else 1.0


def memory_snapshot() -> list[dict[str, Any]]:
    """What is alive, in torch.cuda's format: an entry per array, with the line that made it, of
    those made since `torch.tpu.memory._record_memory_history()`. Without that, one entry per device
    with the bytes and the number of arrays: which ones they are is only known while it is recorded.

    >>> import torch
    >>> snapshot = torch.tpu.memory_snapshot()
    """
    if not _C._is_initialized():
        return []
    if _C._memory_history_on():
        segments: list[dict[str, Any]] = _snapshot()["segments"]
        return segments
    result = []
    for index in range(_C._device_count()):
        counts = _C._memory_counts(index)
        result.append(
            {
                "device": index,
                "total_size": counts["current_bytes"],
                "allocated_size": counts["current_bytes"],
                "active_size": counts["current_bytes"],
                "live_arrays": counts["current_values"],
                "blocks": [],
            }
        )
    return result


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """A table of a device's memory counts for people to read.

    >>> import torch
    >>> print(torch.tpu.memory_summary(abbreviated=True))  # doctest: +SKIP
    """
    index = _get_device_index(device, optional=True)
    counts: collections.defaultdict[str, int] = collections.defaultdict(int)
    if _C._is_initialized():
        counts.update(_C._memory_counts(index))
    rows: list[tuple[str, Callable[[int], str], tuple[str, ...]]] = [
        ("Memory", _bytes, ("current_bytes", "peak_bytes", "total_allocated", "total_freed")),
        ("Arrays", str, ("current_values", "peak_values", "allocations", "frees")),
    ]
    lines = [
        f"TPU memory summary, device {index}",
        f"out-of-memory errors: {counts['out_of_memory']}",
    ]
    if not abbreviated and _C._is_initialized():
        free, total = mem_get_info(index)
        lines.append(f"device memory: {_bytes(total)}, free: {_bytes(free)}")
    table = ["| Metric   | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |"]
    for name, show, keys in rows:
        cells = " | ".join(f"{show(counts[key]):>10}" for key in keys)
        table.append(f"| {name:<8} | {cells} |")
    rule = "|" + "=" * (len(table[0]) - 2) + "|"
    width = len(table[0]) - 4
    head = [f"| {line:<{width}} |" for line in lines]
    return "\n".join([rule, *head, rule, table[0], rule, *table[1:], rule]) + "\n"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{int(size)} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
