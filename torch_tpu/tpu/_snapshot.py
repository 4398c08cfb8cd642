"""The history of device memory in PyTorch's own format, so that its viewer (pytorch.org/memory_viz,
`torch/cuda/_memory_viz.py`) opens it. Each array has the line of the call that made it. What
programs need while they run, beside their results, is no array and so not part of it."""

from __future__ import annotations

import pickle
import re
import warnings
from typing import Any

from torch_tpu import _C

# How the native module puts a line: "file.py:12 in train: loss = f(x)".
_LINE = re.compile(r"(?P<file>.*?):(?P<line>\d+)(?: in (?P<name>[^:]*))?(?:: .*)?", re.S)

_kept = 0  # so many events, while there is a history


def record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = 1_000_000,
    device: Any = None,
    clear_history: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    """Notes from here on who takes device memory and who gives it back; None ends that.

    The arguments are torch.cuda's. The newest `max_entries` events are kept, of all devices;
    `enabled="state"` keeps only what is alive. Of a stack the innermost line of the user's is kept.
    Another number than that of a history which is on begins a new one, and warns of it.

    >>> import torch
    >>> torch.tpu.memory._record_memory_history()
    >>> x = torch.ones(256, device="tpu") * 2
    >>> torch.tpu.synchronize()
    >>> torch.tpu.memory._record_memory_history(enabled=None)
    """
    del context, stacks, device
    if enabled not in (None, "state", "all"):
        raise ValueError(
            f"[_record_memory_history] enabled is None, 'state' or 'all', got {enabled!r}"
        )
    if skip_actions:
        raise ValueError("[_record_memory_history] skip_actions is for torch.cuda's allocator only")
    if max_entries < 1:
        raise ValueError(
            f"[_record_memory_history] max_entries must be positive, got {max_entries}"
        )
    global _kept
    wanted = {None: 0, "state": 1, "all": max_entries}[enabled]
    on = _C._memory_history_on()
    if wanted and on and wanted == _kept and not clear_history:
        return
    if wanted and on and wanted != _kept and not clear_history:
        warnings.warn(
            f"[_record_memory_history] the history of {_kept} events ends, and one of {wanted} "
            "begins. Say so by clear_history=True, or save the first by _dump_snapshot.",
            stacklevel=2,
        )
    _C._memory_history_start(wanted)
    _kept = wanted


def snapshot(device: Any = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """What was noted, as torch.cuda's `_snapshot`: `segments` with what is alive, `device_traces`
    with the events of each device.

    >>> import torch
    >>> sorted(torch.tpu.memory._snapshot())
    ['allocator_settings', 'device_traces', 'external_annotations', 'segments']
    """
    del device, augment_with_fx_traces
    count = _C._device_count() if _C._is_initialized() else 0
    if count:
        _C._fused_flush()  # what was only issued has no memory yet
    traces: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    for takes, address, size, index, time_us, line in _C._memory_events():
        action = ("alloc",) if takes else ("free_requested", "free_completed")
        for what in action:
            traces[index].append(
                {
                    "action": what,
                    "addr": address,
                    "size": size,
                    "stream": 0,
                    "time_us": time_us,
                    "compile_context": "",
                    "user_metadata": "",
                    "frames": _frames(line),
                }
            )
    segments = [_segment(*event) for event in _C._memory_alive()]
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": {"backend": "pjrt"},
        "external_annotations": [],
    }


def _segment(_: bool, address: int, size: int, device: int, __: int, line: str) -> dict[str, Any]:
    """An array has memory of its own: a segment with one block."""
    block = {
        "address": address,
        "size": size,
        "requested_size": size,
        "state": "active_allocated",
        "frames": _frames(line),
    }
    return {
        "device": device,
        "address": address,
        "total_size": size,
        "allocated_size": size,
        "active_size": size,
        "requested_size": size,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [block],
    }


def _frames(line: str) -> list[dict[str, Any]]:
    match = _LINE.fullmatch(line)
    if match is None:
        return []
    return [
        {"filename": match["file"], "line": int(match["line"]), "name": match["name"] or "<module>"}
    ]


def dump_snapshot(
    filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False
) -> None:
    """Writes `_snapshot()` to a file for PyTorch's memory viewer.

    >>> import torch
    >>> torch.tpu.memory._dump_snapshot("snapshot.pickle")  # doctest: +SKIP
    """
    with open(filename, "wb") as file:
        pickle.dump(snapshot(augment_with_fx_traces=augment_with_fx_traces), file)
