"""`accelerate launch` starts several processes only where it finds several GPUs, else one, without
a word; and `--tpu` is torch_xla's launcher. Here `--num_processes N` starts N, with any flag."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from torch_tpu._replace import replace


def adapt(launch: Any) -> None:
    """Replaces what completes the arguments."""

    def make(original: Any) -> Any:
        def validate(args: Any) -> Any:
            result = original(args)
            args = result[0]
            ours = torch._C._get_accelerator().type == "tpu" and not args.cpu
            if not ours or importlib.util.find_spec("torch_xla") is not None:
                return result
            if args.tpu and args.tpu_use_cluster:
                raise ValueError(
                    "[accelerate launch] --tpu_use_cluster starts the hosts of a pod by torch_xla. "
                    "Start `accelerate launch --num_machines N --machine_rank R` on each host."
                )
            args.tpu = False
            if not (args.use_deepspeed or args.use_fsdp or args.use_megatron_lm):
                args.multi_gpu = args.multi_gpu or (args.num_processes or 1) > 1
            return result

        return validate

    replace(launch, "_validate_launch_command", make)
