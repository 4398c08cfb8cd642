"""Eager modes and what they are compiled with."""

from __future__ import annotations

from torch_tpu.compiler import allow_excess_precision, custom_compiler_options
from torch_tpu.tpu._eager_mode import EagerMode, eager_mode, get_eager_mode, set_eager_mode

__all__ = [
    "EagerMode",
    "allow_excess_precision",
    "custom_compiler_options",
    "eager_mode",
    "get_eager_mode",
    "set_eager_mode",
]
