"""DLPack. On XLA:CPU device memory is host memory and is exported in place, read-only, as values
never change; elsewhere only a consumer that asks for a copy on the CPU can have one."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.utils.dlpack
from torch.overrides import has_torch_function_unary

from torch_tpu import _C
from torch_tpu._replace import replace

_to_dlpack_device = torch.Tensor.__dlpack_device__
_to_dlpack = torch.Tensor.__dlpack__
_to_capsule = torch._C._to_dlpack
_READ_ONLY = 1
_FLAGS_OFFSET = 24  # in DLManagedTensorVersioned: after the version and two pointers


def install() -> None:
    """Wraps the methods of torch.Tensor and `to_dlpack`; called once."""
    replace(torch.Tensor, "__dlpack__", lambda _: tensor_dlpack)
    replace(torch.Tensor, "__dlpack_device__", lambda _: tensor_dlpack_device)
    replace(torch.utils.dlpack, "to_dlpack", lambda _: to_dlpack, torch)


def tensor_dlpack_device(self: torch.Tensor) -> tuple[Any, int]:
    if self.device.type != "tpu" or has_torch_function_unary(self):
        return _to_dlpack_device(self)
    types = torch.utils.dlpack.DLDeviceType
    if in_host_memory():
        return types.kDLCPU, 0
    return types.kDLExtDev, self.device.index


def tensor_dlpack(
    self: torch.Tensor,
    *,
    stream: Any = -1,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[Any, int] | None = None,
    copy: bool | None = None,
) -> Any:
    if self.device.type != "tpu" or has_torch_function_unary(self):
        return _to_dlpack(
            self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )
    if self.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if self.layout != torch.strided:
        raise BufferError("Can't export tensors with layout other than torch.strided")
    if dl_device is not None and dl_device[0] != torch.utils.dlpack.DLDeviceType.kDLCPU:
        raise BufferError(f"Can't export a tpu tensor to the DLPack device {tuple(dl_device)}")
    host = None if copy else _share(self)
    if host is not None:
        return _read_only(_to_dlpack(host, stream=None, max_version=max_version))
    if copy or (dl_device is not None and copy is not False):
        return _to_dlpack(self.cpu(), stream=None, max_version=max_version)
    raise BufferError(
        f"Can't export a tensor on {self.device} without a copy: its memory can't be read from the "
        "host. Use tensor.cpu()."
    )


def to_dlpack(*args: Any, **kwargs: Any) -> Any:
    if len(args) == 1 and isinstance(args[0], torch.Tensor) and args[0].device.type == "tpu":
        return args[0].__dlpack__()
    return _to_capsule(*args, **kwargs)


@functools.cache
def in_host_memory() -> bool:
    return _C._device_properties()["platform_kind"] == "cpu"


def _share(tensor: torch.Tensor) -> torch.Tensor | None:
    if not in_host_memory() or tensor.is_conj() or tensor.is_neg():
        return None
    try:
        return _C._to_host_zero_copy(tensor)
    except RuntimeError:
        return None


def _read_only(capsule: Any) -> Any:
    """Sets the flag that says so, which only DLPack 1.0 has."""
    import ctypes

    name = b"dltensor_versioned"
    valid: Any = _function("PyCapsule_IsValid", ctypes.c_int)
    pointer: Any = _function("PyCapsule_GetPointer", ctypes.c_void_p)
    if valid(capsule, name):
        flags = ctypes.c_uint64.from_address(pointer(capsule, name) + _FLAGS_OFFSET)
        flags.value |= _READ_ONLY
    return capsule


def _function(name: str, result: Any) -> Any:
    """One of Python's own, of a capsule and its name. The objects of `ctypes.pythonapi` are shared:
    what one sets there changes for everybody."""
    import ctypes

    prototype = ctypes.PYFUNCTYPE(result, ctypes.py_object, ctypes.c_char_p)
    return prototype((name, ctypes.pythonapi))
