"""Embeddings and bags, with gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from ops.harness import FLOATS, Case, cases

OFFSETS = torch.tensor([0, 3, 3, 7])  # the second bag is empty
INDICES = torch.tensor([1, 4, 2, 0, 4, 4, 3, 2, 1])


@cases(
    Case("embedding", F.embedding, lambda make: (make.index(5, 3, 2), make(5, 4)), dtypes=FLOATS),
    Case("int32", F.embedding, lambda make: (make.index(5, 7).int(), make(5, 4))),
    Case(
        "padding_idx",
        F.embedding,
        lambda make: (make.index(5, 9), make(5, 4)),
        kwargs={"padding_idx": 2},
    ),
    Case(
        "scale_grad_by_freq",
        F.embedding,
        lambda make: (make.index(5, 9), make(5, 4)),
        kwargs={"padding_idx": -1, "scale_grad_by_freq": True},
    ),
    Case("scalar_index", F.embedding, lambda make: (make.index(5), make(5, 4))),
    Case("no_index", F.embedding, lambda make: (make.index(5, 0), make(5, 4))),
    *(
        Case(
            f"max_norm_{p}",
            lambda i, w, p=p: F.embedding(i, w.detach().clone(), max_norm=1.0, norm_type=p),
            lambda make: (make.index(5, 6), make(5, 4)),
        )
        for p in (1.0, 2.0, 3.0, float("inf"))
    ),
)
def test_embedding(case, dtype):
    case.check(dtype)


@cases(
    *(
        Case(
            mode,
            F.embedding_bag,
            lambda make: (INDICES, make(5, 4), OFFSETS),
            kwargs={"mode": mode},
            dtypes=FLOATS,
        )
        for mode in ("sum", "mean", "max")
    ),
    *(
        Case(
            f"{mode}_padding_idx",
            F.embedding_bag,
            lambda make: (INDICES, make(5, 4), OFFSETS),
            kwargs={"mode": mode, "padding_idx": 4},
        )
        for mode in ("sum", "mean", "max")
    ),
    *(
        Case(
            f"{mode}_last_offset",
            F.embedding_bag,
            lambda make: (INDICES, make(5, 4), torch.tensor([0, 3, 3, 9])),
            kwargs={"mode": mode, "include_last_offset": True},
        )
        for mode in ("sum", "mean", "max")
    ),
    Case("rows", F.embedding_bag, lambda make: (INDICES.view(3, 3), make(5, 4))),
    Case("int32", F.embedding_bag, lambda make: (INDICES.int(), make(5, 4), OFFSETS.int())),
    Case(
        "per_sample_weights",
        lambda i, w, o, s: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s),
        lambda make: (INDICES, make(5, 4), OFFSETS, make(9)),
    ),
    Case(
        "per_sample_weights_padding",
        lambda i, w, o, s: F.embedding_bag(
            i, w, o, mode="sum", per_sample_weights=s, padding_idx=4
        ),
        lambda make: (INDICES, make(5, 4), OFFSETS, make(9)),
    ),
)
def test_bag(case, dtype):
    case.check(dtype)


def test_bag_scales_by_frequency():
    """CPU divides by the wrong counts here, so the reference is embedding."""
    weight = torch.rand(5, 4, requires_grad=True)
    F.embedding(INDICES, weight, scale_grad_by_freq=True).sum().backward()
    on_device = weight.detach().to("tpu").requires_grad_()
    F.embedding_bag(
        INDICES.to("tpu"), on_device, OFFSETS.to("tpu"), mode="sum", scale_grad_by_freq=True
    ).sum().backward()
    torch.testing.assert_close(on_device.grad.cpu(), weight.grad)
