"""Lightning's Trainer on this device, beyond what it shares with Fabric (lightning.py)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from torch_tpu._frameworks import lightning as fabric
from torch_tpu._replace import replace, temporarily

_CONNECTOR = ".trainer.connectors.accelerator_connector"


def adapt(connector: Any) -> None:
    """`connector` is the module of this name, in `lightning.pytorch` or `pytorch_lightning`."""
    root = connector.__name__.removesuffix(_CONNECTOR)
    fabric.with_known_names(root, lambda: _adapt(connector, root))


def _adapt(connector: Any, root: str) -> None:
    registry = connector.AcceleratorRegistry
    if not fabric.register(registry, connector.Accelerator, connector.XLAAccelerator):
        return
    ddp = import_module(f"{root}.strategies.ddp")
    names = ("_precision_plugin_flag", "_precision_flag")
    fabric.adapt_connector(connector, connector._AcceleratorConnector, names)
    replace(ddp.DDPStrategy, "determine_ddp_device_ids", fabric.make_no_device_ids)
    _communication_hooks(ddp)
    fabric.adapt_fsdp(connector.FSDPStrategy, "kwargs")
    _say_which_device(import_module(f"{root}.trainer.setup"), registry)
    _know_full_memory(import_module(f"{root}.utilities.memory"))
    _wait_before_the_clock(import_module(f"{root}.callbacks.throughput_monitor"))


def _communication_hooks(module: Any) -> None:
    """`DDPStrategy(ddp_comm_hook=...)`, which Lightning drops unless the device is CUDA."""

    def make(original: Any) -> Any:
        def register_ddp_hooks(self: Any) -> None:
            original(self)
            if self.root_device.type == "tpu":
                module._register_ddp_comm_hook(
                    model=self.model,
                    ddp_comm_state=self._ddp_comm_state,
                    ddp_comm_hook=self._ddp_comm_hook,
                    ddp_comm_wrapper=self._ddp_comm_wrapper,
                )

        return register_ddp_hooks

    replace(module.DDPStrategy, "_register_ddp_hooks", make)


def _say_which_device(module: Any, registry: Any) -> None:
    """The lines "TPU available: ..., using: ..." are about torch_xla."""

    def make(original: Any) -> Any:
        def log_device_info(trainer: Any) -> None:
            with temporarily(module, "XLAAccelerator", registry["tpu"]["accelerator"]):
                original(trainer)

        return log_device_info

    replace(module, "_log_device_info", make)


def _know_full_memory(module: Any) -> None:
    """What the search for a batch size takes for "too large"."""

    def make(original: Any) -> Any:
        def is_oom_error(exception: BaseException) -> bool:
            return isinstance(exception, torch.OutOfMemoryError) or bool(original(exception))

        return is_oom_error

    fabric.replace_everywhere(module, "is_oom_error", make)


def _wait_before_the_clock(module: Any) -> None:
    """ThroughputMonitor reads the clock; work may be pending. It waits on CUDA only."""

    def make(original: Any) -> Any:
        def update(self: Any, trainer: Any, *args: Any, **kwargs: Any) -> None:
            if trainer.strategy.root_device.type == "tpu":
                torch.get_device_module("tpu").synchronize()
            original(self, trainer, *args, **kwargs)

        return update

    replace(module.ThroughputMonitor, "_update", make)
