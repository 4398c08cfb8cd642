"""`torch.tpu`: the device module, with the names of torch.cuda wherever they mean something here.

>>> import torch
>>> torch.tpu.device_count()
1
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu._aliases import MODULES as _MODULES
from torch_tpu.tpu import _utils as _utils, amp, memory, random, streams
from torch_tpu.tpu._cache import (
    _clear_cache as _clear_cache,
    _get_cache_stats as _get_cache_stats,
)
from torch_tpu.tpu._device import (
    _exchange_device as _exchange_device,
    _maybe_exchange_device as _maybe_exchange_device,
    can_device_access_peer,
    current_accelerator,
    current_device,
    current_device_index,
    device,
    device_count,
    device_index,
    device_of,
    ipc_collect,
    is_available,
    set_device,
    set_device_index,
    synchronize,
)
from torch_tpu.tpu._eager_mode import EagerMode, eager_mode, get_eager_mode, set_eager_mode
from torch_tpu.tpu._lazy import (
    _is_in_bad_fork as _is_in_bad_fork,
    _lazy_call as _lazy_call,
    _lazy_init as _lazy_init,
    init,
    is_initialized,
)
from torch_tpu.tpu._not_here import why_not as _why_not
from torch_tpu.tpu._precision import Precision, precision
from torch_tpu.tpu._properties import (
    DeviceProperties,
    get_arch_list,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_gencode_flags,
    is_bf16_supported,
    is_tf32_supported,
)
from torch_tpu.tpu._usage import (
    device_memory_used,
    get_sync_debug_mode,
    set_sync_debug_mode,
    utilization,
)
from torch_tpu.tpu.amp import get_amp_supported_dtype
from torch_tpu.tpu.memory import (
    empty_cache,
    empty_host_cache,
    get_allocator_backend,
    get_memory_info,
    get_per_process_memory_fraction,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_tpu.tpu.random import (
    _get_generator,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_tpu.tpu.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    is_current_stream_capturing,
    set_stream,
    stream,
)

__all__ = [
    "AcceleratorError",
    "DeviceProperties",
    "EagerMode",
    "Event",
    "OutOfMemoryError",
    "Precision",
    "Stream",
    "StreamContext",
    "allow_excess_precision",
    "amp",
    "can_device_access_peer",
    "compiler",
    "current_accelerator",
    "current_device",
    "current_device_idx",
    "current_device_index",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_index",
    "device_memory_used",
    "device_of",
    "distributed",
    "eager_mode",
    "empty_cache",
    "empty_host_cache",
    "get_allocator_backend",
    "get_amp_supported_dtype",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_eager_mode",
    "get_gencode_flags",
    "get_memory_info",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_sync_debug_mode",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_tf32_supported",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "ops",
    "optimizers",
    "pallas",
    "precision",
    "profiler",
    "random",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_device_idx",
    "set_device_index",
    "set_eager_mode",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "streams",
    "synchronize",
    "topology_aware_mesh",
    "utilization",
]


OutOfMemoryError = torch.OutOfMemoryError
AcceleratorError = torch.AcceleratorError
current_device_idx = current_device_index
set_device_idx = set_device_index

# Names whose modules are imported when somebody asks.
_LAZY = {"allow_excess_precision": "compiler", "topology_aware_mesh": "distributed"}


def __getattr__(name: str) -> Any:
    # Both depend on the client: generators on the number of devices, and checkpointing reads
    # `_initialized` to know whether there is random state to keep.
    if name == "default_generators":
        return tuple(_get_generator(index) for index in range(device_count()))
    if name == "_initialized":
        return _C._is_initialized()
    if name in _MODULES:
        return importlib.import_module(f"torch_tpu.{name}")
    if name in _LAZY:
        return getattr(importlib.import_module(f"torch_tpu.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'torch.tpu' has no attribute '{name}'{_why_not(name)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
