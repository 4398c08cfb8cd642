"""Running a user's script within a command, as `python SCRIPT arguments` would."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from torch_tpu.cli._common import CommandError


@contextlib.contextmanager
def silent_fallbacks() -> Iterator[None]:
    """Ops that run on the CPU do not warn meanwhile, unless the user said what they shall do."""
    if "TORCH_TPU_FALLBACK" in os.environ:
        yield
        return
    from torch_tpu import _C

    before = _C._get_fallback()
    _C._set_fallback("silent")
    try:
        yield
    finally:
        _C._set_fallback(before)


def run_script(script: str, arguments: list[str]) -> int:
    """Its exit code; 1 if it raised, which is then printed."""
    if not Path(script).is_file():
        raise CommandError(f"there is no script {script}", code=2)
    argv, path = sys.argv, sys.path[:]
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return _exit_code(end)
    except Exception as error:
        print_error(error, script)
        return 1
    finally:
        sys.argv, sys.path[:] = argv, path
    return 0


def print_error(error: Exception, script: str) -> None:
    """With the traceback that `python SCRIPT` would show: no frames of ours."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def _exit_code(end: SystemExit) -> int:
    """As the interpreter takes `sys.exit(value)`."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1
