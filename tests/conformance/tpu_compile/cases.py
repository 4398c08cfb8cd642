"""Calls for table entries that neither PyTorch's samples nor our op tests reach by themselves.

Each is made in float32 and bfloat16: `t(2, 3)` is a random tensor of that dtype on the device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

aten = torch.ops.aten
DTYPES = (torch.float32, torch.bfloat16)


class Make:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape).to(self.dtype).to("tpu")


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="tpu")


def wide(*shape: int) -> torch.Tensor:
    """What statistics are kept in, whatever the input's dtype."""
    return torch.rand(shape).to("tpu")


def _bag(t: Make) -> tuple[torch.Tensor, ...]:
    return aten._embedding_bag_forward_only(t(7, 4), ints(1, 2, 3, 4, 6), ints(0, 2))


def _bag_backward(t: Make) -> object:
    indices = ints(1, 2, 3, 4, 6)
    out, bag, size, largest = _bag(t)
    return aten._embedding_bag_dense_backward(
        torch.ones_like(out), indices, bag, size, largest, 7, False, 0, None
    )


def _attention(t: Make) -> object:
    x, weights = t(2, 5, 8), (t(24, 8), t(24), t(8, 8), t(8))
    return aten._native_multi_head_attention(x, x, x, 8, 2, *weights)


def _gather_stats(t: Make, *counts: object) -> object:
    op = aten.batch_norm_gather_stats_with_counts if counts else aten.batch_norm_gather_stats
    mean = (wide(2, 4), wide(2, 4), wide(4), wide(4))
    return op(t(3, 4, 5), *mean, 0.1, 1e-5, *(counts or (6,)))


def _complex(t: Make) -> torch.Tensor:
    return torch.complex(t(3).float(), t(3).float())


CASES: dict[str, Callable[[Make], object]] = {
    "__ilshift__.Scalar": lambda t: ints(1, 2, 3).__ilshift__(2),
    "__ilshift__.Tensor": lambda t: ints(1, 2, 3).__ilshift__(ints(1, 2, 3)),
    "__irshift__.Scalar": lambda t: ints(1, 2, 3).__irshift__(2),
    "__irshift__.Tensor": lambda t: ints(1, 2, 3).__irshift__(ints(1, 2, 3)),
    "_aminmax": lambda t: aten._aminmax(t(3, 4)),
    "_aminmax.dim": lambda t: aten._aminmax(t(3, 4), 1),
    "_batch_norm_with_update_functional": lambda t: aten._batch_norm_with_update_functional(
        t(3, 4, 5), t(4), t(4), wide(4), wide(4), 0.1, 1e-5
    ),
    "_embedding_bag_dense_backward": _bag_backward,
    "_embedding_bag_forward_only": _bag,
    "_foreach_add.Tensor": lambda t: aten._foreach_add.Tensor([t(3), t(2, 4)], t()),
    "_foreach_mul.Tensor": lambda t: torch._foreach_mul([t(3), t(2, 4)], t()),
    "_foreach_powsum.Scalar": lambda t: aten._foreach_powsum([t(3), t(2, 4)], 3),
    "_logcumsumexp": lambda t: aten._logcumsumexp(t(3, 4), 1),
    "_masked_softmax": lambda t: aten._masked_softmax(t(3, 4), t(3, 4) > 0.5, 1, 2),
    "_masked_softmax_backward": lambda t: aten._masked_softmax_backward(
        t(3, 4), t(3, 4), t(3, 4) > 0.5, 1
    ),
    "_native_batch_norm_legit.no_stats": lambda t: aten._native_batch_norm_legit(
        t(3, 4, 5), t(4), t(4), True, 0.1, 1e-5
    ),
    "_native_batch_norm_legit_functional": lambda t: aten._native_batch_norm_legit_functional(
        t(3, 4, 5), t(4), t(4), wide(4), wide(4), True, 0.1, 1e-5
    ),
    "_native_batch_norm_legit_no_training": lambda t: aten._native_batch_norm_legit_no_training(
        t(3, 4, 5), t(4), t(4), wide(4), wide(4), 0.1, 1e-5
    ),
    "_native_multi_head_attention": _attention,
    "_stack": lambda t: aten._stack([t(3), t(3)], 1),
    "_unique": lambda t: aten._unique(t(8), True, True),
    "_upsample_lanczos2d_aa": lambda t: aten._upsample_lanczos2d_aa(t(1, 2, 6, 8), [3, 4], False),
    "_upsample_lanczos2d_aa_backward": lambda t: aten._upsample_lanczos2d_aa_backward(
        t(1, 2, 3, 4), [3, 4], [1, 2, 6, 8], False
    ),
    "addmm.dtype": lambda t: aten.addmm(t(5), t(3, 4), t(4, 5), torch.float32),
    "all.dims": lambda t: torch.all(t(2, 3, 4) > 0.1, dim=(0, 2)),
    "any.dims": lambda t: torch.any(t(2, 3, 4) > 0.1, dim=(0, 2)),
    "baddbmm.dtype": lambda t: aten.baddbmm.dtype(
        t(2, 3, 5), t(2, 3, 4), t(2, 4, 5), torch.float32
    ),
    "batch_norm_gather_stats": _gather_stats,
    "batch_norm_gather_stats_with_counts": lambda t: _gather_stats(t, wide(2)),
    "batch_norm_update_stats": lambda t: aten.batch_norm_update_stats(
        t(3, 4, 5), wide(4), wide(4), 0.1
    ),
    "bmm.dtype": lambda t: aten.bmm(t(2, 3, 4), t(2, 4, 5), torch.float32),
    "bucketize.Scalar": lambda t: torch.bucketize(0.4, t(6)),
    "clamp_max": lambda t: torch.clamp_max(t(3, 4), 0.5),
    "conj_physical.out": lambda t: torch.conj_physical(_complex(t), out=_complex(t)),
    "conj_physical_": lambda t: _complex(t).conj_physical_(),
    "floor_divide_.Tensor": lambda t: t(3, 4).floor_divide_(t(3, 4)),
    "glu_backward_jvp": lambda t: aten.glu_backward_jvp(
        t(3, 4), t(3, 2), t(3, 4), t(3, 2), t(3, 4), 1
    ),
    "ldexp_": lambda t: t(3).ldexp_(ints(1, 2, 3)),
    "mm.dtype": lambda t: aten.mm(t(3, 4), t(4, 5), torch.float32),
    "norm.ScalarOpt_dim_dtype": lambda t: aten.norm(t(3, 4), 3, [1], False, dtype=torch.float32),
    "normal_functional": lambda t: aten.normal_functional(t(3, 4), 0.5, 2.0),
    "pow_.Tensor": lambda t: t(3, 4).pow_(t(3, 4)),
    "randperm.generator": lambda t: torch.randperm(
        9, device="tpu", generator=torch.Generator("tpu")
    ),
    "sort.stable": lambda t: torch.sort(t(3, 4), dim=1, stable=True),
    "unique_dim_consecutive": lambda t: aten.unique_dim_consecutive(t(4, 3), 0, True, True),
}
