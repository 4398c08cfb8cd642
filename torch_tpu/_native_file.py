"""Facts about the native module's file, without loading it and without torch."""

from __future__ import annotations

import mmap
from pathlib import Path

_MARKER = b"torch_tpu was built for torch "
REBUILD = (
    "Reinstall torchtpu against this torch (`pip install --no-build-isolation --no-deps "
    "--force-reinstall torchtpu`, or `make build` in a checkout)"
)


def minor(version: str) -> tuple[str, ...]:
    """("2", "13") of "2.13.0+cpu": what the native module must have been built for."""
    return tuple(version.split("+")[0].split(".")[:2])


def library() -> Path | None:
    """The native module's file, if it is there."""
    return next(Path(__file__).parent.glob("_C.*.so"), None)


def built_for(file: Path) -> str:
    """The torch version that the file says it was built for, or "".

    Symbols of another torch are missing before anything of ours can run, so it is read from the
    bytes."""
    try:
        with (
            file.open("rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            start = data.find(_MARKER)
            if start < 0:
                return ""
            start += len(_MARKER)
            return data[start : data.find(b"\0", start)].decode("ascii", "replace")
    except (OSError, ValueError):
        return ""
