"""What a device is."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from torch_tpu import _C
from torch_tpu.tpu._utils import DeviceLike, _get_device_index


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """What the plugin tells about a device.

    >>> import torch
    >>> torch.tpu.get_device_properties(0).platform_kind
    'cpu'
    """

    name: str
    """The device's kind, such as "TPU v5 lite" or "cpu"."""
    platform_kind: str
    """"tpu", "cuda", "cpu" or "other"."""
    platform: str
    platform_version: str
    total_memory: int
    """In bytes; 0 when unknown."""
    id: int
    """Among the devices of all processes."""
    process_index: int
    description: str
    plugin_path: str
    api_version: str
    """Of the plugin's PJRT C API."""
    stablehlo_version: str
    """The newest the plugin reads; empty when it does not tell."""
    attributes: dict[str, Any] = dataclasses.field(hash=False)
    """The plugin's own."""

    @property
    def major(self) -> int:
        """See :func:`get_device_capability`."""
        return _capability(self)[0]

    @property
    def minor(self) -> int:
        """See :func:`get_device_capability`."""
        return _capability(self)[1]


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """What the plugin tells about a device. Starts the client.

    >>> import torch
    >>> torch.tpu.get_device_properties().total_memory > 0
    True
    """
    facts = _C._device_properties(_get_device_index(device, optional=True))
    return DeviceProperties(
        name=facts["kind"],
        platform_kind=facts["platform_kind"],
        platform=facts["platform"],
        platform_version=facts["platform_version"],
        total_memory=facts["total_memory"],
        id=facts["id"],
        process_index=facts["process_index"],
        description=facts["name"],
        plugin_path=facts["plugin_path"],
        api_version=facts["api_version"],
        stablehlo_version=facts["stablehlo_version"],
        attributes=facts["attributes"],
    )


def get_device_name(device: DeviceLike = None) -> str:
    """The device's kind, such as "TPU v5 lite". Starts the client.

    >>> import torch
    >>> torch.tpu.get_device_name(0)
    'cpu'
    """
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """(generation, 0) of a TPU, the compute capability of a GPU, (0, 0) of anything else.

    >>> import torch
    >>> torch.tpu.get_device_capability()
    (0, 0)
    """
    return _capability(get_device_properties(device))


def _capability(properties: DeviceProperties) -> tuple[int, int]:
    if properties.platform_kind == "tpu":
        number = re.search(r"(?:v|tpu)\s*(\d+)", properties.name.lower())
        return (int(number[1]), 0) if number else (0, 0)
    numbers = re.match(r"(\d+)\.(\d+)", str(properties.attributes.get("compute_capability", "")))
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 can be used: always, it is what TPUs multiply in.

    >>> import torch
    >>> torch.tpu.is_bf16_supported()
    True
    """
    return True


def get_arch_list() -> list[str]:
    """What the package was compiled for: nothing, since programs are compiled when they run.

    >>> import torch
    >>> torch.tpu.get_arch_list()
    []
    """
    return []


def get_gencode_flags() -> str:
    """What the package was compiled for: nothing; see :func:`get_arch_list`.

    >>> import torch
    >>> torch.tpu.get_gencode_flags()
    ''
    """
    return ""


def is_tf32_supported() -> bool:
    """Whether products of float32 may be computed with TF32: on GPUs since Ampere. Elsewhere
    `torch.tpu.precision` chooses among other roundings.

    >>> import torch
    >>> torch.tpu.is_tf32_supported()
    False
    """
    properties = get_device_properties()
    return properties.platform_kind == "cuda" and properties.major >= 8
