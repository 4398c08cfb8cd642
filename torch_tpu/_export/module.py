"""What a manifest says of a module against what the module itself says. A manifest that is wrong
about a result would have memory read that is not the result's."""

from __future__ import annotations

from pathlib import Path

import torch

from torch_tpu import _C
from torch_tpu._export.manifest import MANIFEST, ExportFileError, Program, Value, shape_text

Type = tuple[torch.dtype, list[int]]


def check_module(folder: Path, program: Program, text: str) -> None:
    """Raises ExportFileError, which names what differs and both types."""
    try:
        arguments, results = _C._module_signature(text)
    except ValueError as error:
        raise ExportFileError(f"[load] {folder / program.module}: {error}.") from None
    for what, told, found in (
        ("arguments", program.arguments, arguments),
        ("results", program.results, results),
    ):
        if len(told) != len(found):
            raise _wrong(
                folder, f"names {len(told)} {what} of {program.module}, which has {len(found)}"
            )
        for value, type_ in zip(told, found, strict=True):
            _check_value(folder, program, value, type_)


def _check_value(folder: Path, program: Program, value: Value, found: Type) -> None:
    needed: Type | None = {"random": (torch.uint64, [2]), "check": (torch.int64, [])}.get(
        value.kind
    )
    if (value.dtype, value.shape) != found:
        raise _wrong(
            folder,
            f"has the {value.kind} '{value.name}' of {program.module} as "
            f"{shape_text(value.dtype, value.shape)}; in the module it is {shape_text(*found)}",
        )
    if needed is not None and found != needed:
        raise _wrong(
            folder,
            f"has the {value.kind} '{value.name}' of {program.module} as {shape_text(*found)}, "
            f"which can only be {shape_text(*needed)}",
        )


def _wrong(folder: Path, what: str) -> ExportFileError:
    return ExportFileError(
        f"[load] {folder / MANIFEST} {what}. It is not the manifest of this module: copy the whole "
        "folder again, or export again."
    )
