"""Programs of a folder that `torch_tpu.export` wrote, for compiling them ahead of time."""

from __future__ import annotations

from pathlib import Path

from torch_tpu._export.manifest import ExportFileError, read_manifest, read_module
from torch_tpu.aot.topologies import AotError
from torch_tpu.aot.trace import Argument, Traced

_KINDS = {"weight": "parameter", "state": "buffer", "input": "input", "random": "constant"}


def from_export(path: str | Path) -> list[Traced]:
    """One per module of the folder; the text is the one that `torch_tpu.load` compiles."""
    folder = Path(path)
    try:
        manifest = read_manifest(folder)
        texts = [read_module(folder, program) for program in manifest.programs]
    except (ExportFileError, OSError) as error:
        raise AotError(str(error).removeprefix("[load] ")) from error
    if manifest.target not in ("any", "tpu"):
        raise AotError(
            f"{folder} was exported for {manifest.target}. Export it with target='tpu' or 'any'."
        )
    out = []
    for program, text in zip(manifest.programs, texts, strict=True):
        arguments = [
            Argument(_KINDS[v.kind], v.name, v.dtype, v.shape, donated=v.kind == "state")
            for v in program.arguments
        ]
        out.append(Traced(manifest.name, text, arguments, 1, text.count(" = ")))
    return out
