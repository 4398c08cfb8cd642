"""The weights of an export, read into memory and uploaded one by one. Not mapped: whoever writes to
or truncates the file later must not change the model or end the process (SIGBUS)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from torch_tpu import _C
from torch_tpu._export.manifest import ExportFileError, Value, shape_text
from torch_tpu._safetensors_header import Entry, SafetensorsError, open_file, read_entry
from torch_tpu.safetensors import to_device


def load_weights(
    path: Path, values: Iterable[Value], device: torch.device
) -> dict[str, torch.Tensor]:
    """The tensors of these names on the device, if they are of the types the module needs."""
    weights: dict[str, torch.Tensor] = {}
    try:
        with open_file(str(path)) as (file, entries, _):
            for value in values:
                entry = entries.get(value.name)
                _check(path, value, entry)
                if entry is not None and value.name not in weights:
                    host = read_entry(file, entry, str(path))
                    weights[value.name] = _C._plain(to_device(host, device))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"[load] {path} is missing. Copy the whole folder, or export again."
        ) from None
    except SafetensorsError as error:
        raise ExportFileError(f"[load] {error} Copy it again, or export again.") from None
    return weights


def _check(path: Path, value: Value, entry: Entry | None) -> None:
    if entry is None:
        raise ExportFileError(
            f"[load] {path} lacks the tensor '{value.name}'. It is not the file of this export: "
            "copy it again, or export again."
        )
    if entry.dtype != value.dtype or list(entry.shape) != value.shape:
        raise ExportFileError(
            f"[load] {path} has '{value.name}' as {shape_text(entry.dtype, entry.shape)}; the "
            f"module needs {shape_text(value.dtype, value.shape)}. Use the file of this export."
        )
