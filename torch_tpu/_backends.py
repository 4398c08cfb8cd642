"""`torch.backends.tpu`: whether the device is built and there, and settings of its compiler. Like
torch's own it exists as soon as the device is registered, with or without a chip."""

from __future__ import annotations

import sys
import types

import torch

from torch_tpu import _C, _replace


class _Backend(types.ModuleType):
    """A module whose settings are attributes."""

    def is_available(self) -> bool:
        """Whether a PJRT plugin is found; see `torch.tpu.is_available`."""
        return _C._is_available()

    def is_built(self) -> bool:
        """Whether the native module is loaded: always, or this module would not be there."""
        return True

    @property
    def allow_excess_precision(self) -> bool:
        """See `torch.tpu.allow_excess_precision`."""
        from torch_tpu import compiler

        return compiler._allows_excess_precision()

    @allow_excess_precision.setter
    def allow_excess_precision(self, allow: bool) -> None:
        from torch_tpu import compiler

        compiler.allow_excess_precision(allow)


def install() -> None:
    """Makes `torch.backends.tpu`; called once."""
    if "torch.backends.tpu" in sys.modules:
        return
    module = _Backend("torch.backends.tpu", __doc__)
    sys.modules["torch.backends.tpu"] = module
    _replace.add(torch.backends, "tpu", module)
