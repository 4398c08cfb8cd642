"""Calls the function of a script that builds a model: `script.py:build`."""

from __future__ import annotations

import argparse
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from torch_tpu.cli._common import CommandError

BUILD_HELP = "who makes the model: a file and a function of it, model.py:build"


class UsageError(CommandError):
    """Bad input: exit code 2."""

    def __init__(self, text: str) -> None:
        super().__init__(text, code=2)


def add_traceback(parser: argparse.ArgumentParser) -> None:
    """Adds `--traceback`."""
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")


def call_build(name: str) -> Any:
    """What the function returns."""
    path, _, function = name.rpartition(":")
    if not path or not function.isidentifier():
        raise UsageError(f"expected SCRIPT:FUNCTION, got {name!r}, e.g. model.py:build")
    script = Path(path)
    if not script.is_file():
        raise UsageError(f"there is no script {script}")
    sys.path.insert(0, str(script.resolve().parent))
    try:
        made = runpy.run_path(str(script), run_name="torch_tpu_build").get(function)
    except SystemExit as end:
        raise UsageError(f"{script} ended itself (sys.exit) before {function} was called") from end
    except Exception as error:
        raise UsageError(f"{script} cannot be run: {_what(error, script)}") from error
    if not callable(made):
        raise UsageError(f"{script} has no function {function}")
    try:
        return made()
    except SystemExit as end:
        raise UsageError(f"{function} of {script} ended itself (sys.exit)") from end
    except Exception as error:
        raise UsageError(f"{function} of {script} raised {_what(error, script)}") from error


def _what(error: Exception, script: Path) -> str:
    """The error, and the innermost line of the script it came by."""
    text = f"{type(error).__name__}: {error}"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(script)
    ]
    if isinstance(error, SyntaxError) or not lines:
        return text
    return f"{text} (at {script}:{lines[-1]}; --traceback shows more)"


def unpack(made: Any, name: str, samples: bool = False) -> tuple[Any, Any, dict[str, Any]]:
    """(model or step, args, kwargs) of what it returns. With `samples` the arguments may be a list:
    those of several calls."""
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not callable(made[0]):
        raise UsageError(
            f"{name} must return (model, args) or (model, args, kwargs); the model may be a "
            f"torch_tpu.aot.TrainStep. It returned {type(made).__name__}"
        )
    model, args, *rest = made
    several = samples and isinstance(args, list) and all(isinstance(a, tuple) for a in args)
    if not isinstance(args, tuple) and not several:
        raise UsageError(f"the arguments that {name} returns must be a tuple: (x,) for one")
    kwargs = rest[0] if rest else {}
    if not isinstance(kwargs, dict):
        raise UsageError(f"the third of what {name} returns must be a dict of keywords")
    return model, args, kwargs
