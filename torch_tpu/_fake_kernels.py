"""What FakeTensors on the device need where PyTorch's Meta kernel is CUDA's: it has the checks of
CUDA's kernel, and so refuses what runs here. Tracers (torch.compile, torch.export) run these."""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu._on_import import on_import


def install() -> None:
    """Once there are FakeTensors."""
    on_import("torch._subclasses.fake_impls", _complete)


def _complete(module: Any) -> None:
    module.register_op_impl(torch.ops.aten._grouped_mm.default)(_grouped_mm)


def _grouped_mm(mode: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    """CUDA's takes bfloat16 alone, in rows of multiples of 16 bytes. Other devices keep theirs."""
    (a, b, *rest) = args
    if a.device.type != "tpu":
        return NotImplemented
    names = ("offs", "bias", "out_dtype")
    given = {**dict(zip(names, rest, strict=False)), **kwargs}
    offs = given.get("offs")
    flat, flat_b = a.dim() == 2, b.dim() == 2
    torch._check(a.dtype == b.dtype, lambda: f"Expected one dtype but got {a.dtype} and {b.dtype}.")
    if not (flat and flat_b):
        torch._check(
            a.shape[-1] == b.shape[-2],
            lambda: "contraction dimension of mat_a and mat_b must match",
        )
    groups = [x.shape[0] for x in (a, b) if x.dim() == 3]
    groups += [] if offs is None else [offs.shape[0]]
    for size in groups[1:]:
        torch._check(size == groups[0], lambda: "matrix batch sizes have to match")
    rows, columns = a.shape[-2], b.shape[-1]
    shape = [rows, columns] if flat != flat_b else [groups[0], rows, columns]
    with mode:
        return torch.empty(shape, dtype=given.get("out_dtype") or a.dtype, device=a.device)
