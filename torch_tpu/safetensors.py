"""Loading and saving safetensors files on this device, without the safetensors package.

A file is mapped into memory and each tensor uploaded from there; on XLA:CPU a tensor that lies at
a multiple of 64 bytes is used in place. `save_file` lays files out so that nearly all do."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu._safetensors_header import (
    NAMES,
    Entry,
    SafetensorsError,
    encode_header,
    read_header,
)
from torch_tpu.tpu._utils import _get_device_index

__all__ = ["SafetensorsError", "load_file", "safe_open", "save_file"]

PathLike = str | os.PathLike[str]
_ALIGNMENT = 64


def load_file(
    filename: PathLike, device: str | int | torch.device = "tpu"
) -> dict[str, torch.Tensor]:
    """Loads all tensors of a file.

    The tensors may read the file's pages in place: do not change or truncate the file while they
    live. Writing to a tensor never writes to the file.

    >>> import torch, torch_tpu
    >>> torch_tpu.safetensors.save_file({"w": torch.ones(4)}, "w.safetensors")
    >>> torch_tpu.safetensors.load_file("w.safetensors")["w"]
    tensor([1., 1., 1., 1.], device='tpu:0')
    """
    with safe_open(filename, device=device) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


class safe_open:  # noqa: N801, safetensors' name
    """Opens a file and loads only the tensors asked for.

    >>> import torch, torch_tpu
    >>> torch_tpu.safetensors.save_file({"w": torch.ones(4, 2)}, "w.safetensors")
    >>> with torch_tpu.safetensors.safe_open("w.safetensors") as file:
    ...     part = file.get_slice("w")[:2]
    >>> part.shape
    torch.Size([2, 2])
    """

    def __init__(
        self,
        filename: PathLike,
        framework: str = "pt",
        device: str | int | torch.device = "tpu",
    ) -> None:
        if framework not in ("pt", "torch", "pytorch"):
            raise ValueError(f"[safe_open] expected framework 'pt', got {framework!r}.")
        self._device = torch.device("tpu", device) if isinstance(device, int) else device
        self._path = os.fspath(filename)
        self._entries, self._metadata, size = read_header(self._path)
        self._mapping: Any = torch.UntypedStorage.from_file(self._path, shared=False, nbytes=size)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._mapping = None  # tensors that read it in place keep it

    def keys(self) -> list[str]:
        """The names of the tensors, in the file's order."""
        return list(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def metadata(self) -> dict[str, str] | None:
        """What the writer stored beside the tensors."""
        return self._metadata

    def get_tensor(self, name: str) -> torch.Tensor:
        """Loads one tensor."""
        return to_device(self._host(name), self._device)

    def get_slice(self, name: str) -> Slice:
        """A tensor that loads only the part it is indexed with."""
        return Slice(self._host(name), self._entry(name), self._device)

    def _entry(self, name: str) -> Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise SafetensorsError(f"[{self._path}] has no tensor {name!r}.") from None

    def _host(self, name: str) -> torch.Tensor:
        entry = self._entry(name)
        if self._mapping is None:
            raise SafetensorsError(f"[{self._path}] is closed.")
        if entry.stop == entry.start:
            return torch.empty(entry.shape, dtype=entry.dtype)
        raw = torch.empty(0, dtype=torch.uint8).set_(
            self._mapping, entry.start, (entry.stop - entry.start,), (1,)
        )
        if entry.start % entry.dtype.itemsize:
            raw = raw.clone()
        return raw.view(entry.dtype).view(entry.shape)


class Slice:
    """A tensor in a file. Indexing loads what the index selects.

    >>> import torch, torch_tpu
    >>> torch_tpu.safetensors.save_file({"w": torch.ones(4, 2)}, "w.safetensors")
    >>> with torch_tpu.safetensors.safe_open("w.safetensors") as file:
    ...     file.get_slice("w").get_shape()
    [4, 2]
    """

    def __init__(self, host: torch.Tensor, entry: Entry, device: str | torch.device) -> None:
        self._host = host
        self._entry = entry
        self._device = device

    def get_shape(self) -> list[int]:
        """The tensor's full shape."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """The dtype as the file names it, such as "F32"."""
        return NAMES[self._entry.dtype]

    def __getitem__(self, index: Any) -> torch.Tensor:
        return to_device(self._host[index].contiguous(), self._device)


def to_device(host: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """Uploads a tensor, or uses its memory in place where that can be."""
    device = torch.device(device)
    if device.type == "tpu" and host.numel():
        return _C._from_host_zero_copy(host, _get_device_index(device, optional=True))
    return host.to(device)


def save_file(
    tensors: Mapping[str, torch.Tensor],
    filename: PathLike,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Saves tensors, which may be on any device. Those that share memory are written once each.

    The file appears under its name only when it is complete.

    >>> import torch, torch_tpu
    >>> weights = {"w": torch.ones(4, device="tpu")}
    >>> torch_tpu.safetensors.save_file(weights, "w.safetensors", metadata={"format": "pt"})
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"[save_file] expected a tensor for {name!r}, got {type(tensor)}.")
        if tensor.layout != torch.strided:
            raise ValueError(f"[save_file] {name!r} is sparse. Save tensor.to_dense().")
        if tensor.dtype not in NAMES:
            raise ValueError(f"[save_file] the format has no {tensor.dtype} ({name!r}).")
    order = sorted(tensors, key=lambda name: _rank(tensors[name]))
    header = encode_header({name: tensors[name] for name in order}, metadata, _ALIGNMENT)
    target = Path(filename)
    descriptor, partial = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(header)
            for name in order:
                host = tensors[name].detach().cpu().resolve_conj().resolve_neg().contiguous()
                file.write(host.reshape(-1).view(torch.uint8).numpy().data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(partial, 0o666 & ~umask)
        os.replace(partial, target)
    except BaseException:
        os.unlink(partial)
        raise


def _rank(tensor: torch.Tensor) -> tuple[bool, int]:
    """Tensors lie one after another: those that keep the next one aligned come first."""
    return (tensor.numel() * tensor.itemsize % _ALIGNMENT != 0, -tensor.itemsize)
