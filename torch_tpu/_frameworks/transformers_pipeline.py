"""transformers' `pipeline()`: a device by number, or none at all, means the accelerator. It has a
list of those; one that is not on it would become the CPU, without a word."""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu._replace import arguments, replace, with_argument


def adapt(module: Any) -> None:
    """Does nothing to pipelines that ask whether there is a TPU."""
    if hasattr(module, "is_torch_tpu_available"):
        return

    def make(original: Any) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            call: tuple[Any, ...] = (self, *args)
            given = arguments(original, call, kwargs)
            if not given or torch._C._get_accelerator().type != "tpu":
                original(*call, **kwargs)
                return
            device = given["device"]
            placed = getattr(given["model"], "hf_device_map", None)
            if device is None and placed is None:
                device = 0
            if isinstance(device, int) and device >= 0:
                device = torch.device("tpu", device)
                call, kwargs = with_argument(original, call, kwargs, "device", device)
            original(*call, **kwargs)
            first = next(iter(placed.values())) if placed and device is None else None
            if isinstance(first, int):
                self.device = torch.device("tpu", first)

        return init

    replace(module.Pipeline, "__init__", make)
