"""torch.save and torch.load on this device. torch writes and reads some storages through their
address, which no one may do here; and it loads storages as bytes, though arrays have a dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import serialization

from torch_tpu._replace import replace

_write_file = torch.UntypedStorage._write_file
_set_from_file = torch.UntypedStorage._set_from_file
_getitem = torch.UntypedStorage.__getitem__
_rebuild_tensor = torch._utils._rebuild_tensor
_PRIORITY = 15  # before torch's own for renamed devices (23), and no one else's


def install() -> None:
    """Wraps the methods of UntypedStorage and joins torch.load; called once."""
    replace(torch.UntypedStorage, "_write_file", lambda _: write_file)
    replace(torch.UntypedStorage, "_set_from_file", lambda _: set_from_file)
    replace(torch.UntypedStorage, "__getitem__", lambda _: getitem)
    replace(torch._utils, "_rebuild_tensor", lambda _: rebuild_tensor)
    serialization.register_package(_PRIORITY, lambda storage: None, deserialize)


def deserialize(storage: Any, location: str) -> Any:
    """Puts a loaded storage on the device and marks it as bytes without a dtype."""
    if location != "tpu" and not location.startswith("tpu:"):
        return None
    loaded = serialization._deserialize("tpu", storage, location)
    loaded._tpu_geometry = None
    return loaded


def rebuild_tensor(storage: Any, storage_offset: int, size: Any, stride: Any) -> torch.Tensor:
    tensor = _rebuild_tensor(storage, storage_offset, size, stride)
    untyped = storage._untyped_storage
    if untyped.device.type == "tpu" and getattr(untyped, "_tpu_geometry", ()) is None:
        # The first tensor that covers the storage says what is in it: programs that read it would
        # otherwise convert it from bytes each time.
        covers = storage_offset == 0 and tensor.nbytes == untyped.nbytes()
        if covers and tensor.dtype != torch.uint8 and _is_dense(tensor):
            untyped._tpu_geometry = (tensor.dtype, tensor.shape, tensor.stride())
            tensor.copy_(tensor.cpu())
    return tensor


def write_file(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
    return _write_file(self.cpu() if self.device.type == "tpu" else self, *args, **kwargs)


def set_from_file(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
    if self.device.type != "tpu":
        return _set_from_file(self, *args, **kwargs)
    host = torch.UntypedStorage(self.nbytes())
    _set_from_file(host, *args, **kwargs)
    geometry = getattr(self, "_tpu_geometry", None)
    if geometry is None:
        self.copy_(host)
    else:
        _over(self, geometry).copy_(_over(host, geometry))
    return self


def getitem(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
    if self.device.type == "tpu" and args and isinstance(args[0], slice):
        raise RuntimeError(
            "A slice of a tpu storage cannot share its memory. Slice a tensor over it, or "
            "storage.cpu()."
        )
    return _getitem(self, *args, **kwargs)


def _over(storage: torch.UntypedStorage, geometry: tuple[Any, Any, Any]) -> torch.Tensor:
    dtype, size, stride = geometry
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, 0, size, stride)


def _is_dense(tensor: torch.Tensor) -> bool:
    return torch.ops.aten.is_non_overlapping_and_dense(tensor)
