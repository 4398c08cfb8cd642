"""Makes "tpu" known to torch: loads the native module, checks that it fits, names the device and
attaches `torch.tpu`. Runs within `import torch`: so nothing slow, and no client."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from torch_tpu import _aliases, _native_file
from torch_tpu._native_file import REBUILD as _REBUILD, minor as _minor

_done = False


def register() -> None:
    """Registers the device; a second call does nothing. Raises ImportError with what to do."""
    global _done
    if _done:
        return
    native = _load_native()
    native._set_search_dirs(_search_dirs())
    _name_device()
    from torch_tpu import _distributed, _exit, _explain, _frameworks, _interop
    from torch_tpu._compile import hook

    _interop.install()
    _explain.install()
    _exit.install()
    hook.install()
    _distributed.install()
    _frameworks.install()
    _done = True


def _load_native() -> ModuleType:
    try:
        native = importlib.import_module("torch_tpu._C")
    except ImportError as error:
        raise ImportError(_explain(error)) from error
    built_for = native._torch_version
    if _minor(built_for) != _minor(torch.__version__):
        raise ImportError(_mismatch(built_for))
    return native


def _name_device() -> None:
    if getattr(torch, "tpu", None) is not None:
        return
    rename_privateuse1_backend("tpu")
    from torch_tpu import _backends, tpu

    torch._register_device_module("tpu", tpu)
    # `import torch.tpu.memory` must give the same module as `torch_tpu.tpu.memory`.
    for name in ("amp", "memory", "random", "streams"):
        sys.modules[f"torch.tpu.{name}"] = getattr(tpu, name)
    _aliases.install()
    _backends.install()
    generate_methods_for_privateuse1_backend(for_storage=True)


def _search_dirs() -> list[str]:
    """Where PJRT plugins may be installed: the site-packages folders, and torch's own."""
    found = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    found.append(str(Path(torch.__file__).parent.parent))
    return list(dict.fromkeys(found))


def _mismatch(built_for: str) -> str:
    return (
        f"torch_tpu was built for torch {built_for}, but torch {torch.__version__} is installed. "
        f"{_REBUILD}, or install torch {'.'.join(_minor(built_for))}."
    )


def _explain(error: ImportError) -> str:
    """Why the native module did not load."""
    library = _native_file.library()
    if library is None:
        return f"torch_tpu's native module is not built. {_REBUILD}."
    built_for = _native_file.built_for(library)
    if built_for and _minor(built_for) != _minor(torch.__version__):
        return _mismatch(built_for)
    return f"torch_tpu's native module could not be loaded: {error}"
