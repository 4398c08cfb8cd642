"""Options of a profile under the name that Google's torch-tpu gives them. The profiler itself is
PyTorch's: `torch.profiler.profile`, in which the device's programs and transfers are rows."""

from __future__ import annotations

import warnings
from typing import Any

import torch

__all__ = ["TpuProfilerConfig"]

# What their trace shows at these levels is in ours as well.
_LEVELS = {"host_tracer_level": 2, "device_tracer_level": 1, "python_tracer_level": 0}


class TpuProfilerConfig(torch.profiler._ExperimentalConfig):  # type: ignore[name-defined]
    """For `torch.profiler.profile(experimental_config=...)`. Our timeline has one level of detail:
    other levels than the usual ones are kept, and a warning says that they change nothing.

    >>> from torch.tpu.profiler import TpuProfilerConfig
    >>> TpuProfilerConfig().host_tracer_level
    2
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = {**_LEVELS, **options}
        for name, value in self.options.items():
            if _LEVELS.get(name) != value:
                instead = " with_stack=True adds Python's stacks." if "python" in name else ""
                warnings.warn(
                    f"TpuProfilerConfig({name}={value!r}) changes nothing here: compiles, programs "
                    f"and transfers are always on the timeline, no more detail is.{instead}",
                    stacklevel=2,
                )

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["options"][name]
        except KeyError:
            raise AttributeError(f"TpuProfilerConfig has no option '{name}'") from None
