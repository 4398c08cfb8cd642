"""Which sizes change between the samples, and what a user can do about each."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_tpu._lint.findings import Finding

_COMPILE_SECONDS = 5.0
_MULTIPLE = 128  # of the lanes of a TPU
_SHOWN = 6

Sizes = tuple[int, ...]  # of one dimension, a sample each


def changing_shapes(samples: list[tuple[Any, ...]], kwargs: dict[str, Any]) -> list[Finding]:
    """Between the samples, and numbers among the arguments."""
    flat = [pytree.tree_leaves(s) for s in samples]
    shapes: dict[int, list[tuple[int, ...]]] = {}
    for number, values in enumerate(zip(*flat, strict=False)):
        if all(isinstance(v, torch.Tensor) for v in values):
            shapes[number] = [tuple(v.shape) for v in values]
    out = [_other_ranks(number, given) for number, given in shapes.items() if _ranks(given) > 1]
    together: dict[Sizes, list[tuple[int, int]]] = {}
    for number, given in shapes.items():
        if _ranks(given) > 1:
            continue
        for dim, sizes in enumerate(zip(*given, strict=True)):
            if len(set(sizes)) > 1:
                together.setdefault(sizes, []).append((number, dim))
    for sizes, places in together.items():
        out.append(_size(sizes, places, shapes, independent=len(together)))
    numbers = [v for v in pytree.tree_leaves((samples[0], kwargs)) if type(v) in (int, float)]
    if numbers:
        out.append(
            _nowhere(
                f"{len(numbers)} of the arguments are Python numbers",
                "pass those that change from call to call as tensors",
                "compiled as one program, a compilation for each new value",
            )
        )
    return out


def _nowhere(message: str, fix: str, cost: str) -> Finding:
    return Finding("shape", "", 0, "", "", message=message, fix=fix, cost_seconds=0.0, cost=cost)


def _ranks(shapes: list[tuple[int, ...]]) -> int:
    return len({len(shape) for shape in shapes})


def _other_ranks(number: int, shapes: list[tuple[int, ...]]) -> Finding:
    listed = ", ".join(str(list(s)) for s in sorted(set(shapes))[:4])
    return _nowhere(
        f"argument {number} comes in {len(set(shapes))} shapes: {listed}",
        "give it the same number of dimensions in every call",
        f"a compilation per shape, about {_COMPILE_SECONDS:.0f} s each for a model, once",
    )


def _size(
    sizes: Sizes,
    places: list[tuple[int, int]],
    shapes: dict[int, list[tuple[int, ...]]],
    independent: int,
) -> Finding:
    number, dim = places[0]
    kinds = sorted(set(shapes[number]))
    listed = ", ".join(str(list(s)) for s in kinds[:4])
    values = ", ".join(map(str, sizes[:_SHOWN])) + (", ..." if len(sizes) > _SHOWN else "")
    message = (
        f"argument {number} comes in {len(kinds)} shapes: {listed}; dim {dim} changes: {values}"
    )
    if len(places) > 1:
        also = ", ".join(f"dim {d} of argument {n}" for n, d in places[1:])
        message += f" (with it {also})"
    fixes = _fixes(sizes, dim)
    if independent > 1:
        fixes.append(
            f"{independent} sizes change on their own, and one program serves one that does: keep "
            "the others to a few values"
        )
    distinct = len(set(sizes))
    return _nowhere(
        message,
        "; ".join(fixes),
        f"a compilation per shape, about {_COMPILE_SECONDS:.0f} s each for a model, once: "
        f"{distinct} shapes, or {len(_buckets(sizes))} where sizes are padded to multiples of "
        f"{_MULTIPLE}",
    )


def _buckets(sizes: Sizes) -> set[int]:
    return {-(-size // _MULTIPLE) for size in sizes}


def _fixes(sizes: Sizes, dim: int) -> list[str]:
    """The likeliest first."""
    fixes = []
    largest = max(sizes)
    if dim == 0 and len(sizes) > 1 and set(sizes[:-1]) == {largest} and sizes[-1] < largest:
        fixes.append(
            f"drop_last=True in the DataLoader, or pad the last batch from {sizes[-1]} to {largest}"
        )
    if len(sizes) > 2 and all(b - a == 1 for a, b in pairwise(sizes)):
        fixes.append(
            "it grows by one: a static cache (StaticCache in transformers, or a buffer of the "
            "largest size written at a position) keeps it as it is"
        )
    fixes.append(
        f"torch_tpu.mark_dynamic(x, {dim}, max={largest}) for one program with a bound, under "
        "torch.compile"
    )
    fixes.append(f"pad to a few sizes, multiples of {_MULTIPLE}")
    return fixes
