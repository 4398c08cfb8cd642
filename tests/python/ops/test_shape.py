"""Rearranging elements: cat, flip, roll, repeat, padding, triangles, patches, shuffles."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from ops.harness import FLOATS, Case, cases

MOVED = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


def joined(join):
    return lambda *tensors, **kwargs: join(tensors, **kwargs)


@cases(
    Case("cat", joined(torch.cat), lambda make: (make(2, 3), make(1, 3), make(4, 3)), dtypes=MOVED),
    Case(
        "cat_last",
        joined(torch.cat),
        lambda make: (make(2, 3), make(2, 1)),
        kwargs={"dim": -1},
    ),
    Case("cat_with_empty", joined(torch.cat), lambda make: (make(0), make(2, 3), make(0, 3))),
    Case("cat_all_empty", joined(torch.cat), lambda make: (make(0, 3), make(0, 3))),
    Case(
        "cat_promotes",
        joined(torch.cat),
        lambda make: (make(2), make(3, dtype=torch.int64), make(1, dtype=torch.float64)),
    ),
    Case("stack", joined(torch.stack), lambda make: (make(2, 3), make(2, 3)), kwargs={"dim": 1}),
    Case("stack_0d", joined(torch.stack), lambda make: (make(), make(), make()), dtypes=MOVED),
    Case("hstack", joined(torch.hstack), lambda make: (make(2, 3), make(2, 1))),
    Case("block_diag", torch.block_diag, lambda make: (make(2, 3), make(), make(2))),
    Case("flip", torch.flip, lambda make: (make(2, 3, 4), (0, -1)), dtypes=MOVED),
    Case("flip_none", torch.flip, lambda make: (make(2, 3), ())),
    Case("roll", torch.roll, lambda make: (make(3, 4), (1, -6), (0, 1)), dtypes=MOVED),
    Case("roll_flat", torch.roll, lambda make: (make(3, 4), 5)),
    Case("roll_empty", torch.roll, lambda make: (make(0, 4), 5)),
    Case("repeat", torch.Tensor.repeat, lambda make: (make(3, 2), (2, 1, 3)), dtypes=MOVED),
    Case("repeat_0d", torch.Tensor.repeat, lambda make: (make(), (2, 3))),
    Case("repeat_none", torch.Tensor.repeat, lambda make: (make(3, 2), (2, 0))),
    Case("repeat_interleave", torch.repeat_interleave, lambda make: (make(3, 2), 2, 1)),
    Case("tile", torch.tile, lambda make: (make(3, 2), (2, 2))),
    Case("rot90", torch.rot90, lambda make: (make(3, 2), 1, (0, 1))),
    Case("tril", torch.tril, lambda make: (make(2, 4, 5), 1), dtypes=MOVED),
    Case("triu", torch.triu, lambda make: (make(4, 3), -1), dtypes=MOVED),
    Case("trace", torch.trace, lambda make: (make(4, 3),), dtypes=(*FLOATS, torch.int32)),
)
def test_rearrange(case, dtype):
    case.check(dtype)


@cases(
    Case(
        "constant", F.pad, lambda make: (make(3, 4), (1, 2, 0, 3), "constant", 1.5), dtypes=FLOATS
    ),
    Case("constant_int", F.pad, lambda make: (make(3, 4), (1, 2)), dtypes=MOVED),
    Case("constant_cut", F.pad, lambda make: (make(3, 6), (-1, 2, 1, -2))),
    *(
        Case(
            f"{mode}_{name}",
            F.pad,
            lambda make, s=shape, p=pad: (make(*s), p),
            kwargs={"mode": mode},
            dtypes=dtypes,
        )
        for mode in ("reflect", "replicate", "circular")
        for name, shape, pad, dtypes in (
            ("1d", (2, 3, 5), (2, 1), FLOATS),
            ("1d_unbatched", (3, 5), (2, 4), (torch.float32,)),
            ("2d", (2, 3, 5, 4), (1, 2, 3, 0), FLOATS),
            ("3d", (1, 2, 4, 5, 4), (1, 2, 3, 0, 2, 1), (torch.float32,)),
        )
    ),
    Case("replicate_cut", F.pad, lambda make: (make(2, 3, 5), (-1, 2), "replicate")),
    Case("reflect_cut", F.pad, lambda make: (make(2, 3, 5), (2, -1), "reflect")),
)
def test_pad(case, dtype):
    case.check(dtype)


@cases(
    Case("unfold", lambda x: x.unfold(1, 3, 1), lambda make: (make(2, 8, 3),), dtypes=FLOATS),
    Case("unfold_overlap", lambda x: x.unfold(0, 4, 2), lambda make: (make(9),)),
    Case("unfold_apart", lambda x: x.unfold(-1, 2, 3), lambda make: (make(2, 9),)),
    Case("unfold_touching", lambda x: x.unfold(1, 2, 2), lambda make: (make(2, 7, 2),)),
    Case("im2col", F.unfold, lambda make: (make(2, 3, 6, 5), 3), dtypes=FLOATS),
    Case(
        "im2col_all",
        F.unfold,
        lambda make: (make(2, 3, 6, 7), (2, 3)),
        kwargs={"dilation": (2, 1), "padding": (1, 2), "stride": (2, 3)},
    ),
    Case("im2col_unbatched", F.unfold, lambda make: (make(3, 6, 7), 2)),
    Case("col2im", F.fold, lambda make: (make(2, 12, 12), (4, 5), 2), dtypes=FLOATS),
    Case(
        "col2im_all",
        F.fold,
        lambda make: (make(18, 9), (6, 7), (2, 3)),
        kwargs={"dilation": (2, 1), "padding": (1, 2), "stride": (2, 3)},
    ),
    Case("pixel_shuffle", torch.pixel_shuffle, lambda make: (make(2, 8, 3, 4), 2), dtypes=MOVED),
    Case("pixel_unshuffle", torch.pixel_unshuffle, lambda make: (make(2, 3, 6, 4), 2)),
    Case("channel_shuffle", torch.channel_shuffle, lambda make: (make(2, 6, 3, 4), 3)),
)
@pytest.mark.filterwarnings("ignore:Mem-?[eE]fficient")
def test_patches(case, dtype):
    case.check(dtype)
