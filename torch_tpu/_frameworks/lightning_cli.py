"""`fabric run` on this device: how many processes it starts. It turns "tpu" away."""

from __future__ import annotations

from typing import Any

from torch_tpu._frameworks import lightning
from torch_tpu._replace import replace


def adapt(cli: Any) -> None:
    """`cli` is the module of this name, in `lightning.fabric` or `lightning_fabric`."""

    def make(original: Any) -> Any:
        def get_num_processes(accelerator: str, devices: str) -> int:
            auto = accelerator == "auto" or accelerator is None
            if lightning.is_the_accelerator() and (auto or accelerator == "tpu"):
                return 1 if devices == "auto" else len(lightning.parse_devices(devices))
            return int(original(accelerator, devices))

        return get_num_processes

    name = cli.__name__.partition(".")[0]
    lightning.with_known_names(name, lambda: replace(cli, "_get_num_processes", make))
