"""TorchTitan's order of tokens by expert, which is a Triton kernel. Here it is ops of PyTorch. The
kernel's file is imported by every model of TorchTitan 0.2, those without experts too; where Triton
is not installed (no torch for CPUs brings it), that import finds a stand-in."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from torch_tpu._replace import replace


def adapt(kernels: Any) -> None:
    """`kernels` is torchtitan.models.moe.kernels."""

    def make(original: Any) -> Any:
        def fill_indices_wrapper(
            tokens_per_expert_group: torch.Tensor, *args: Any, **kwargs: Any
        ) -> Any:
            if tokens_per_expert_group.device.type != "tpu":
                return original(tokens_per_expert_group, *args, **kwargs)
            return _fill_indices(tokens_per_expert_group, *args, **kwargs)

        return fill_indices_wrapper

    replace(kernels, "fill_indices_wrapper", make)


def _fill_indices(
    lengths: torch.Tensor,
    start_index_values: torch.Tensor,
    write_offsets: torch.Tensor,
    experts_per_rank: int,
    num_ranks: int,
    max_len: int,
    block_size: int = 128,
    max_blocks: int = 1024,
) -> torch.Tensor:
    """For each place of the result the token that goes there, -1 for padding. The tokens of an
    expert stand together, those of rank 0 first; `lengths` and `start_index_values` go by rank,
    then by expert."""
    del block_size, max_blocks  # of the kernel's launch

    def by_expert(values: torch.Tensor) -> torch.Tensor:
        return values.view(num_ranks, experts_per_rank).t()

    length, first = by_expert(lengths), by_expert(start_index_values)
    begin = write_offsets[:, None] + length.cumsum(1) - length
    place = torch.arange(max_len, device=lengths.device, dtype=begin.dtype)
    # Pieces without tokens begin where the next one does: the last that has begun is meant.
    piece = torch.searchsorted(begin.reshape(-1), place, right=True) - 1
    within = place - begin.reshape(-1)[piece]
    token = first.reshape(-1)[piece] + within
    return torch.where(within < length.reshape(-1)[piece], token, -1).to(torch.int32)


@contextlib.contextmanager
def without_triton() -> Iterator[None]:
    """Within it `import triton` works. A kernel that is made with the stand-in raises if called."""
    if "triton" in sys.modules or importlib.util.find_spec("triton") is not None:
        yield
        return
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    vars(triton).update(jit=_NoKernel, language=language)
    vars(language).update(constexpr=object)
    stand_ins = {"triton": triton, "triton.language": language}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            sys.modules.pop(name, None)


class _NoKernel:
    def __init__(self, function: Any) -> None:
        self._name = function.__name__

    def __getitem__(self, grid: Any) -> Any:
        raise RuntimeError(f"The Triton kernel {self._name} needs Triton: pip install triton")
