"""The safetensors package on this device. Its reader is compiled and knows the devices by name, so
for this one it reads to the CPU, and each tensor is moved from there. All else is the package's:
errors, formats, backends. torch_tpu.safetensors has no need of the package."""

from __future__ import annotations

import contextlib
import inspect
import re
from typing import Any

import torch

from torch_tpu._on_import import on_import
from torch_tpu._replace import holders, replace

_DEVICE = re.compile(r"tpu(:\d+)?")
_FRAMEWORKS = ("pt", "torch", "pytorch")


def install() -> None:
    """Replaces the package's `safe_open` now, or once somebody imports it."""
    on_import("safetensors", _complete)


def _complete(package: Any) -> None:
    original = getattr(package, "safe_open", None)
    if original is None:  # it is just being imported, or became something else
        return
    others = holders("safe_open", original)  # who has the name already
    replace(package, "safe_open", _opener, *others)


def _opener(original: Any) -> Any:
    """As the class, which is compiled: it can neither be changed nor inherited from."""

    class Meta(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            device: Any = args[2] if len(args) > 2 else kwargs.get("device")
            framework = args[1] if len(args) > 1 else kwargs.get("framework")
            if not _is_ours(device) or framework not in _FRAMEWORKS:
                return original(*args, **kwargs)
            if len(args) > 2:
                args = (*args[:2], "cpu", *args[3:])
            else:
                kwargs["device"] = "cpu"
            return _File(original(*args, **kwargs), torch.device(device))

        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, (original, _File))

    facts = {"__doc__": original.__doc__, "__module__": original.__module__}
    # Compiled code may have no signature.
    with contextlib.suppress(ValueError):
        facts["__signature__"] = inspect.signature(original)
    return Meta(original.__name__, (), facts)


def _is_ours(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "tpu"
    if isinstance(device, int):  # of the accelerator, as in torch.device(0)
        return torch._C._get_accelerator().type == "tpu"
    return isinstance(device, str) and _DEVICE.fullmatch(device) is not None


class _File:
    """An open file whose tensors go to the device."""

    def __init__(self, file: Any, device: torch.device) -> None:
        self._file = file
        self._device = device

    def __getattr__(self, name: str) -> Any:  # keys, metadata and what the package may add
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._file.__exit__(*error)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._file.get_tensor(name).to(self._device)

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in self._file.keys()}  # noqa: SIM118

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._file.get_slice(name), self._device)


class _Slice:
    """A tensor in the file; what is selected goes to the device."""

    def __init__(self, part: Any, device: torch.device) -> None:
        self._part = part
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._part[index].to(self._device)
