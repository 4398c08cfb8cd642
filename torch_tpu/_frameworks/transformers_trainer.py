"""transformers.Trainer knows the device. What it leaves out of its checkpoints is the state of the
device's random numbers."""

from __future__ import annotations

import os
from typing import Any

from torch_tpu._frameworks import rng
from torch_tpu._replace import replace


def adapt(module: Any) -> None:
    """Does nothing to a Trainer that saves no random numbers, or others than we know."""
    trainer = module.Trainer
    if not hasattr(trainer, "_save_rng_state") or not hasattr(trainer, "_load_rng_state"):
        return

    def file(self: Any, folder: str) -> str:
        several = self.args.world_size > 1
        name = f"rng_state_{self.args.process_index}.pth" if several else "rng_state.pth"
        return os.path.join(folder, name)

    def make_save(original: Any) -> Any:
        def save(self: Any, output_dir: str) -> None:
            original(self, output_dir)
            if self.args.device.type == "tpu":
                rng.save_beside(file(self, output_dir))

        return save

    def make_load(original: Any) -> Any:
        def load(self: Any, checkpoint: str | None) -> None:
            original(self, checkpoint)
            if checkpoint is not None and self.args.device.type == "tpu":
                rng.load_beside(file(self, checkpoint))

        return load

    replace(trainer, "_save_rng_state", make_save)
    replace(trainer, "_load_rng_state", make_load)
