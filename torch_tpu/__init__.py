"""TorchTPU: the PyTorch device "tpu".

`import torch` loads this package by itself. Importing it starts nothing: the first tensor does.

    >>> import torch
    >>> torch.ones(2, device="tpu") * 3
    tensor([3., 3.], device='tpu:0')
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_autoload_error: Exception | None = None
_left_out = False


# Stands above all imports: `import torch` calls it, and in a program that imports torch_tpu first,
# this module is then only half done.
def _autoload() -> None:
    """Entry point of the group `torch.backends`: called once, by `import torch`.

    A device that cannot load must not take `import torch` down with it: that becomes a warning,
    and an error only for a program that imports torch_tpu itself.
    """
    if _left_out:
        sys.modules.pop(__name__, None)
    if _autoload_error is not None:
        import warnings

        sys.modules.pop(__name__, None)
        warnings.warn(
            f"The device 'tpu' is not available: {_autoload_error}", RuntimeWarning, stacklevel=2
        )


def _torch_is_importing() -> bool:
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _leave_to_cuda() -> bool:
    """PyTorch drives one accelerator per process: with ours registered, CUDA's backward fails. So
    where there is a GPU, the device comes only with `import torch_tpu` or TORCH_TPU_PLUGIN."""
    import os

    import torch

    return (
        (torch.version.cuda is not None or torch.version.hip is not None)
        and not os.environ.get("TORCH_TPU_PLUGIN")
        and torch.cuda.is_available()
    )


def _command_line() -> bool:
    """Whether this process is `torch-tpu` or `python -m torch_tpu`, and no device is asked for. Its
    help, its shell completion
    and its doctor need no device, and the doctor must run where none can load: so the command line
    loads it by itself (`cli._device`). Neither does a script that `compare` runs on another device
    load it, though it may import `torch_tpu.compare`."""
    import os

    if not os.environ.get("TORCH_TPU_COMPARE_DEVICE", "tpu").startswith("tpu"):
        return True

    words = getattr(sys, "orig_argv", [])
    started = getattr(sys, "argv", [""])[0]
    as_module = started == "-m" and "torch_tpu" in words[words.index("-m") : words.index("-m") + 2]
    return as_module or os.path.basename(started) == "torch-tpu"


_autoloading = _torch_is_importing()
_waits = not globals().get("_waits", False) and _command_line()  # loaded anew, it waits no more
try:
    _left_out = _autoloading and _leave_to_cuda()
    if not _left_out and not _waits:
        from torch_tpu._registration import register

        register()
        from torch_tpu import fused
        from torch_tpu._bounds import mark_dynamic
        from torch_tpu._explain import Explanation, explain
        from torch_tpu._modes import get_mode, mode, set_mode
        from torch_tpu._packs import load_pack, record_pack
        from torch_tpu._stats import FallbackUse, clear_programs, coverage, reset_stats, stats
except Exception as error:
    if not _autoloading:
        raise
    _autoload_error = error

if TYPE_CHECKING:
    from torch_tpu import (
        aot,
        compare,
        compiler,
        debug,
        distributed,
        kernels,
        ops,
        optimizers,
        pallas,
        profiler,
        safetensors,
        spmd,
        tpu,
    )
    from torch_tpu._export import export, load
    from torch_tpu._lint import lint
    from torch_tpu.pallas import jax_op

__all__ = [
    "Explanation",
    "FallbackUse",
    "aot",
    "clear_programs",
    "compare",
    "compiler",
    "coverage",
    "debug",
    "distributed",
    "explain",
    "export",
    "fused",
    "get_mode",
    "jax_op",
    "kernels",
    "lint",
    "load",
    "load_pack",
    "mark_dynamic",
    "mode",
    "ops",
    "optimizers",
    "pallas",
    "profiler",
    "record_pack",
    "reset_stats",
    "safetensors",
    "set_mode",
    "spmd",
    "stats",
    "tpu",
]

_LAZY_MODULES = (
    "_internal",
    "aot",
    "compare",
    "compiler",
    "debug",
    "distributed",
    "kernels",
    "ops",
    "optimizers",
    "pallas",
    "profiler",
    "safetensors",
    "spmd",
)
_LAZY_FUNCTIONS = {"export": "_export", "jax_op": "pallas", "lint": "_lint", "load": "_export"}


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LAZY_FUNCTIONS:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY_FUNCTIONS[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_MODULES, *_LAZY_FUNCTIONS})
