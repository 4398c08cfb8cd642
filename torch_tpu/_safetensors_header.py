"""The header of a safetensors file: 8 bytes of length, then JSON. Files come from anywhere, so
every number is checked before it is used."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

import torch

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}
_MAX_HEADER = 100_000_000


class SafetensorsError(ValueError):
    """A file that is not safetensors, is damaged, or lacks what was asked for.

    >>> import torch_tpu
    >>> try:
    ...     torch_tpu.safetensors.load_file("setup.cfg")
    ... except (torch_tpu.safetensors.SafetensorsError, OSError):
    ...     pass
    """


class Entry(NamedTuple):
    """A tensor in a file; `start` and `stop` count from the beginning of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


def read_header(path: str) -> tuple[dict[str, Entry], dict[str, str] | None, int]:
    """The tensors, the metadata and the size of a file."""
    with open_file(path) as (file, entries, metadata):
        return entries, metadata, os.fstat(file.fileno()).st_size


@contextlib.contextmanager
def open_file(
    path: str,
) -> Iterator[tuple[io.FileIO, dict[str, Entry], dict[str, str] | None]]:
    """A file, its tensors and its metadata."""
    # Not to wait for the other end of a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise SafetensorsError(f"[{path}] is no file.")
    with open(descriptor, "rb", buffering=0) as file:
        yield file, *_parse_header(file, path, status.st_size)


def read_entry(file: io.FileIO, entry: Entry, path: str) -> torch.Tensor:
    """A tensor of the file in memory of its own."""
    host = torch.empty(entry.shape, dtype=entry.dtype)
    memory = host.reshape(-1).view(torch.uint8).numpy().data
    file.seek(entry.start)
    done = 0
    while done < len(memory):
        count = file.readinto(memory[done:])
        if not count:
            raise SafetensorsError(f"[{path}] is cut off: it ends within a tensor.")
        done += count
    return host


def _parse_header(
    file: io.FileIO, path: str, size: int
) -> tuple[dict[str, Entry], dict[str, str] | None]:
    if size < 8:
        raise SafetensorsError(f"[{path}] is no safetensors file: only {size} bytes.")
    length = int.from_bytes(file.read(8) or b"", "little")
    if length > _MAX_HEADER or 8 + length > size:
        raise SafetensorsError(
            f"[{path}] is damaged or no safetensors file: its header would have {length} "
            f"bytes, the file has {size}."
        )
    raw = file.read(length) or b""
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise SafetensorsError(f"[{path}] has a header that is no JSON: {error}.") from None
    if not isinstance(header, dict):
        raise SafetensorsError(f"[{path}] has a header that is no JSON object.")
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())
    ):
        raise SafetensorsError(f"[{path}] has metadata that maps not only text to text.")
    try:
        entries = {name: _entry(name, facts, 8 + length) for name, facts in header.items()}
        _check_layout(entries, 8 + length, size)
    except SafetensorsError as error:
        raise SafetensorsError(f"[{path}] {error}") from None
    return entries, metadata


def encode_header(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None, alignment: int
) -> bytes:
    """The header of a file with these tensors in this order; their data start aligned."""
    header: dict[str, Any] = {}
    if metadata is not None:
        if not all(isinstance(text, str) for item in metadata.items() for text in item):
            raise ValueError("[save_file] expected metadata that maps text to text.")
        header["__metadata__"] = dict(metadata)
    offset = 0
    for name, tensor in tensors.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise ValueError(f"[save_file] {name!r} cannot be the name of a tensor.")
        stop = offset + tensor.numel() * tensor.itemsize
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, stop],
        }
        offset = stop
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-(8 + len(text)) % alignment)
    return len(text).to_bytes(8, "little") + text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name occurs twice")
    return result


def _is_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _entry(name: str, facts: Any, base: int) -> Entry:
    if not isinstance(facts, dict):
        raise SafetensorsError(f"describes {name!r} by no JSON object.")
    dtype_name, shape = facts.get("dtype"), facts.get("shape")
    offsets = facts.get("data_offsets")
    dtype = DTYPES.get(dtype_name) if isinstance(dtype_name, str) else None
    if dtype is None:
        raise SafetensorsError(f"has {name!r} of dtype {dtype_name!r}, which is not supported.")
    if not _is_sizes(shape):
        raise SafetensorsError(f"has {name!r} of shape {shape!r}.")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise SafetensorsError(f"has {name!r} at offsets {offsets!r}.")
    nbytes = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != nbytes:
        raise SafetensorsError(
            f"has {name!r} of {dtype_name} and shape {shape}, which takes {nbytes} bytes, in "
            f"{offsets[1] - offsets[0]} bytes."
        )
    return Entry(dtype, tuple(shape), base + offsets[0], base + offsets[1])


def _check_layout(entries: dict[str, Entry], base: int, size: int) -> None:
    position = base
    for name, entry in sorted(entries.items(), key=lambda item: item[1][2:]):
        if entry.start != position:
            what = "overlaps the tensor before it" if entry.start < position else "leaves a hole"
            raise SafetensorsError(f"has {name!r} where it {what}.")
        position = entry.stop
    if position != size:
        kind = "is cut off" if position > size else "has bytes that belong to no tensor"
        raise SafetensorsError(f"{kind}: its tensors end at {position}, the file at {size}.")
