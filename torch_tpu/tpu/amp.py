"""torch.amp for this device, as torch.cuda.amp is for CUDA. bfloat16 needs no gradient scaling."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.amp import custom_bwd as _custom_bwd, custom_fwd as _custom_fwd

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "get_amp_supported_dtype"]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes autocast can compute in.

    >>> import torch
    >>> torch.tpu.get_amp_supported_dtype()
    [torch.bfloat16, torch.float16]
    """
    return [torch.bfloat16, torch.float16]


class autocast(torch.amp.autocast):  # noqa: N801, torch's name
    """``torch.autocast("tpu")``, to bfloat16 unless told otherwise.

    >>> import torch
    >>> with torch.tpu.amp.autocast():
    ...     y = torch.ones(2, 2, device="tpu") @ torch.ones(2, 2, device="tpu")
    """

    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype = torch.bfloat16,
        cache_enabled: bool = True,
    ) -> None:
        super().__init__("tpu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler("tpu")``; only float16 needs it.

    >>> import torch
    >>> scaler = torch.tpu.amp.GradScaler(enabled=False)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("tpu", *args, **kwargs)


custom_fwd = functools.partial(_custom_fwd, device_type="tpu")
custom_bwd = functools.partial(_custom_bwd, device_type="tpu")
