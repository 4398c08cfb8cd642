"""Starts the package `torch-tpu` from PyPI on an XLA:CPU plugin, without a TPU.

It shares its import name with this project, so it lives in an interpreter of its own, and nothing
of the repository may be on that interpreter's path. The plugin's library is named by
TPU_LIBRARY_PATH, which `contestants.py` sets together with the rest of the environment.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from typing import Any

import torch

_MODES = {
    "debug": "DEFER_NEVER_AND_LAUNCH_BLOCKING",
    "strict": "DEFER_NEVER",
    "fused": "DEFER_AND_FUSE",
}


def start(mode: str) -> str:
    """Registers its device "tpu", sets the mode and gives the package's version."""
    # It counts chips on the PCI bus and leaves the device unknown when there are none. The count
    # must be replaced before the package itself is imported, and its autoload must be off.
    hardware: Any = importlib.import_module("torch_tpu._internal.utils.hardware")
    hardware.get_tpu_device_count = lambda *args, **kwargs: 1
    importlib.import_module("torch_tpu")
    importlib.import_module("torch_tpu._loader")._init_device("tpu")
    module: Any = vars(torch)["tpu"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its modes are marked experimental
        module.eager_mode = getattr(module.EagerMode, _MODES[mode])
    return importlib.metadata.version("torch-tpu")
