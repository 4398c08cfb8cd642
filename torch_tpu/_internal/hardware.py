"""Which chip there is, and how many of them."""

from __future__ import annotations

import math
from typing import Any

from torch_tpu import _C

__all__ = ["get_tpu_device_name", "get_tpu_topology"]


def get_tpu_device_name() -> str | None:
    """The kind of chip, "TPU v5 lite"; None where the device is no TPU. Where kernels are made for
    one that is not there (`torch_tpu.aot`), that one."""
    from torch_tpu.pallas import _jax

    if _jax._chip is not None:
        return _jax._chip
    facts = _C._device_properties(0)
    return str(facts["kind"]) if facts["platform_kind"] == "tpu" else None


def get_tpu_topology(world_size: int | None = None) -> str | None:
    """The extents of the box that the chips of this process make, "2,2,1"; None where devices have
    no coordinates, or are not as many."""
    attributes = _C._device_attributes()
    places = [_place(each) for each in attributes]
    known = [place for place in places if place is not None]
    if len(known) != len(places) or not known:
        return None
    extents = [1 + max(axis) - min(axis) for axis in zip(*known, strict=True)]
    if world_size is not None and world_size not in (math.prod(extents), len(places)):
        return None
    return ",".join(map(str, extents))


def _place(attributes: dict[str, Any]) -> tuple[int, ...] | None:
    coords = attributes.get("coords")
    return tuple(int(c) for c in coords) if coords else None
