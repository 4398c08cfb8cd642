"""See torch_tpu/_internal."""

from torch_tpu._internal.utils import hardware

__all__ = ["hardware"]
