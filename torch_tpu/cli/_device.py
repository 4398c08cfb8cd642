"""Loading the device, for the commands that need it: the command line starts without it."""

from __future__ import annotations

import importlib

from torch_tpu.cli._common import CommandError


def load_device() -> None:
    """Does what `import torch_tpu` does elsewhere. Raises CommandError with what to do."""
    import torch_tpu

    if not torch_tpu._waits:
        return
    try:
        importlib.reload(torch_tpu)
    except Exception as error:
        torch_tpu._waits = True
        raise CommandError(f"{error}\nRun `torch-tpu doctor` for what is wrong here.") from error
