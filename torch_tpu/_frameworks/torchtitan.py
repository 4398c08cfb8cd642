"""TorchTitan's MFU on this device. Release 0.2 knows no TPU and computes with an A100's peak; 0.3
knows them as "v5e", while PJRT says "TPU v5 lite". All else of it asks torch for the
accelerator."""

from __future__ import annotations

from typing import Any

from torch_tpu._replace import replace


def adapt(utils: Any) -> None:
    """`utils` is torchtitan.tools.utils."""

    def make(original: Any) -> Any:
        def get_peak_flops(device_name: str) -> float:
            from torch_tpu.aot.topologies import generation_of

            generation = generation_of(device_name)
            return generation.flops if generation else float(original(device_name))

        return get_peak_flops

    replace(utils, "get_peak_flops", make)
