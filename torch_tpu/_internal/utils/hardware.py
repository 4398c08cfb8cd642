"""The name under which Helion and vLLM's plugin import it."""

from torch_tpu._internal.hardware import get_tpu_device_name, get_tpu_topology

__all__ = ["get_tpu_device_name", "get_tpu_topology"]
