"""Frameworks that know devices by a fixed list, adapted once somebody imports them. Each has a file
of its own, which is imported no earlier than the framework. What is adapted is the smallest part
that makes the device theirs, and nothing where they know it by themselves."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from torch_tpu._on_import import on_import

# The module whose import calls `adapt` of the file with this name.
_ADAPTED = {
    "accelerate": "accelerate",
    "accelerate.commands.launch": "accelerate_launch",
    "lightning.fabric.cli": "lightning_cli",
    "lightning.fabric.connector": "lightning",
    "lightning.pytorch.trainer.connectors.accelerator_connector": "lightning_trainer",
    "lightning_fabric.cli": "lightning_cli",
    "lightning_fabric.connector": "lightning",
    "pytorch_lightning.trainer.connectors.accelerator_connector": "lightning_trainer",
    "torchtitan.tools.utils": "torchtitan",
    "transformers.cache_utils": "transformers_cache",
    "transformers.pipelines.base": "transformers_pipeline",
    "transformers.trainer": "transformers_trainer",
}


def install() -> None:
    """Imports none of them."""
    for framework, ours in _ADAPTED.items():
        on_import(framework, _adapter(ours))
    on_import("torchtitan.models.moe.kernels", _adapter("torchtitan_moe"), _without_triton)


def _adapter(ours: str) -> Any:
    def adapt(module: Any) -> None:
        try:
            importlib.import_module(f"{__name__}.{ours}").adapt(module)
        except Exception as error:
            name = module.__name__.partition(".")[0]
            warnings.warn(
                f"{name} could not be adapted to the device 'tpu' ({module.__name__}: {error!r}). "
                "It may use another device without a word: look which one it takes. Install the "
                f"version of {name} that torchtpu's documentation names, or a newer torchtpu.",
                RuntimeWarning,
                stacklevel=2,
            )

    return adapt


def _without_triton() -> Any:
    return importlib.import_module(f"{__name__}.torchtitan_moe").without_triton()
