"""Puts a program that was compiled ahead of time into a pack: a process with such a device that
comes to the same module, by `torch_tpu.load` of an export, then compiles nothing."""

from __future__ import annotations

from pathlib import Path

from torch_tpu import _C
from torch_tpu.aot.report import Report
from torch_tpu.aot.topologies import AotError


def write_pack(reports: Report | list[Report], path: str | Path) -> int:
    """Writes the programs of reports made with `serialize=True` into one pack; returns how many.

    They must be for the same kind of device. The pack is used as any other: TORCH_TPU_PACK, or
    `torch_tpu.load_pack`. It fits this version of torch, torch_tpu and libtpu only.
    """
    made = [reports] if isinstance(reports, Report) else list(reports)
    for report in made:
        if report.executable is None:
            raise AotError(
                f"the report on {report.name} has no executable: compile it with serialize=True"
                + (" on a device that it fits." if not report.fits else ".")
            )
        if report.fingerprint != made[0].fingerprint:
            raise AotError("a pack is for one kind of device and one compiler.")
    if not made:
        raise AotError("there is nothing to pack.")
    programs = [(r.module, r.executable, r.compile_seconds) for r in made]
    try:
        _C._write_pack(str(Path(path).absolute()), made[0].fingerprint, programs)
    except RuntimeError as error:
        raise AotError(str(error)) from error
    return len(programs)
