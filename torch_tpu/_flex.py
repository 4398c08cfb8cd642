"""flex_attention (torch.nn.attention): PyTorch knows by name which devices have it. Its ops are
ordinary ones, and under torch.compile they and the caller's functions become part of the program.

Dynamo traces what is here, as it does the original."""

from __future__ import annotations

from typing import Any

from torch_tpu._on_import import on_import
from torch_tpu._replace import replace


def install() -> None:
    """Lets flex_attention take tensors of this device."""
    on_import("torch.nn.attention.flex_attention", _complete)


def _complete(flex: Any) -> None:
    def make(original: Any) -> Any:
        def _validate_device(query: Any, key: Any, value: Any) -> None:
            if query.device.type != "tpu":
                original(query, key, value)

        return _validate_device

    replace(flex, "_validate_device", make)
