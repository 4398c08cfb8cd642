"""Where public clients of Google's torch-tpu reach for its internals: the few names they use, each
a name of this package. Nothing of ours lives here; docs/from_google_torch_tpu.md lists them."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = ("execution_mode", "hardware", "pallas", "profiler", "sync", "utils")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(
        f"module '{__name__}' has no attribute '{name}': it is an internal of another package "
        f"(torch-tpu). docs/from_google_torch_tpu.md says what is here."
    )
