"""What Dynamo asks a device: streams, events, properties. torch 2.13 has an interface of its own
under the name "tpu", made for another package; ours replaces it."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo import device_interface

from torch_tpu import tpu


class TpuInterface(device_interface.DeviceInterface):
    """Forwards to torch.tpu."""

    device = tpu.device
    Event = tpu.Event
    Stream = tpu.Stream

    class Worker:
        """In Inductor's worker processes, which this device has no use for."""

        @staticmethod
        def set_device(device: int) -> None:
            tpu.set_device(device)

        @staticmethod
        def current_device() -> int:
            return tpu.current_device()

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            return tpu.get_device_properties(device)

    current_device = staticmethod(tpu.current_device)
    set_device = staticmethod(tpu.set_device)
    device_count = staticmethod(tpu.device_count)
    stream = staticmethod(tpu.stream)
    current_stream = staticmethod(tpu.current_stream)
    synchronize = staticmethod(tpu.synchronize)
    get_device_properties = staticmethod(tpu.get_device_properties)

    @staticmethod
    def is_available() -> bool:
        return tpu.is_available()

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return True

    @classmethod
    def is_dtype_supported(cls, dtype: torch.dtype, including_emulation: bool = False) -> bool:
        return True

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        return ""


def register() -> None:
    """After torch's own, which would replace ours when they are first asked for."""
    list(device_interface.get_registered_device_interfaces())
    device_interface.register_interface_for_device("tpu", TpuInterface)
    for index in range(tpu.device_count()):
        device_interface.register_interface_for_device(f"tpu:{index}", TpuInterface)
