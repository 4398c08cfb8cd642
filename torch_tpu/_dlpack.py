"""DLPack: what others take is a copy in host memory, and says so. Values never change and several
tensors may share one, so nobody outside may have its memory to write. PyTorch itself takes a tensor
of the device as it is: it stays there, and the two share their memory."""

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
_from_dlpack = torch.utils.dlpack.from_dlpack
_IS_COPIED = 2
_FLAGS_OFFSET = 24  # in DLManagedTensorVersioned: after the version and two pointers


def install() -> None:
    """Wraps the methods of torch.Tensor and `to_dlpack`; called once."""
    replace(torch.Tensor, "__dlpack__", lambda _: tensor_dlpack)
    replace(torch.Tensor, "__dlpack_device__", lambda _: tensor_dlpack_device)
    replace(torch.utils.dlpack, "to_dlpack", lambda _: to_dlpack, torch)
    replace(torch.utils.dlpack, "from_dlpack", lambda _: from_dlpack, torch)


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
    _check_exportable(self)
    if stream is not None and type(stream) is not int:
        raise TypeError("stream must be ``int`` or ``none``")
    if dl_device is not None and dl_device[0] != torch.utils.dlpack.DLDeviceType.kDLCPU:
        raise BufferError(
            f"Unsupported device_type: {int(dl_device[0])}. A tpu tensor is exported to the host "
            f"({int(torch.utils.dlpack.DLDeviceType.kDLCPU)}) alone."
        )
    if copy is False:
        raise BufferError(
            f"Can't export a tensor on {self.device} without a copy: other tensors may share its "
            "memory. Leave copy=False out."
        )
    if dl_device is None and not copy and not in_host_memory():
        raise BufferError(
            f"Can't export a tensor on {self.device} where it is: its memory can't be read from "
            "the host. Use tensor.cpu()."
        )
    host = self.cpu().resolve_neg()
    return _say_copied(_to_dlpack(host, stream=None, max_version=max_version))


def to_dlpack(*args: Any, **kwargs: Any) -> Any:
    if len(args) == 1 and isinstance(args[0], torch.Tensor) and args[0].device.type == "tpu":
        return args[0].__dlpack__()
    return _to_capsule(*args, **kwargs)


@functools.wraps(_from_dlpack)
def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> torch.Tensor:
    ours = isinstance(ext_tensor, torch.Tensor) and ext_tensor.device.type == "tpu"
    to_ours = device is None or torch.device(device).type == "tpu"
    if not ours or not to_ours or has_torch_function_unary(ext_tensor):
        return _from_dlpack(ext_tensor, device=device, copy=copy)
    _check_exportable(ext_tensor)
    there = ext_tensor.detach().to(ext_tensor.device if device is None else device)
    moved = there.device != ext_tensor.device
    if moved and copy is False:
        raise ValueError(
            f"cannot move DLPack tensor from device {ext_tensor.device} to {there.device} "
            "without copying. Set copy=None or copy=True."
        )
    return there.clone() if copy and not moved else there


def _check_exportable(tensor: torch.Tensor) -> None:
    """As PyTorch does for its own devices."""
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    if tensor.layout != torch.strided:
        raise BufferError("Can't export tensors with layout other than torch.strided")


@functools.cache
def in_host_memory() -> bool:
    return _C._device_properties()["platform_kind"] == "cpu"


def _say_copied(capsule: Any) -> Any:
    """Sets the flag that says so, which only DLPack 1.0 has."""
    import ctypes

    name = b"dltensor_versioned"
    valid: Any = _function("PyCapsule_IsValid", ctypes.c_int)
    pointer: Any = _function("PyCapsule_GetPointer", ctypes.c_void_p)
    if valid(capsule, name):
        flags = ctypes.c_uint64.from_address(pointer(capsule, name) + _FLAGS_OFFSET)
        flags.value |= _IS_COPIED
    return capsule


def _function(name: str, result: Any) -> Any:
    """One of Python's own, of a capsule and its name. The objects of `ctypes.pythonapi` are shared:
    what one sets there changes for everybody."""
    import ctypes

    prototype = ctypes.PYFUNCTYPE(result, ctypes.py_object, ctypes.c_char_p)
    return prototype((name, ctypes.pythonapi))
