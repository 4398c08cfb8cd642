"""Losses with gradients, their reductions, and the checks on class indices."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from ops.harness import FLOATS, Case, cases

REDUCTIONS = ("none", "mean", "sum")


def losses(name, fn, inputs, dtypes=FLOATS, **kwargs):
    """The loss in all reductions; in all dtypes for the mean."""
    return [
        Case(
            f"{name}_{reduction}",
            fn,
            inputs,
            dtypes=dtypes if reduction == "mean" else (torch.float32,),
            kwargs={"reduction": reduction, **kwargs},
        )
        for reduction in REDUCTIONS
    ]


def pair(make):
    return make(3, 4), make(3, 4)


def signs(make):
    return make(3, 4), make.mask(3, 4).to(make.dtype) * 2 - 1


def probabilities(make):
    return make(3, 4, low=0.05, high=0.95), make(3, 4, low=0.0, high=1.0)


def classes(*shape):
    return lambda make: (make(5, 4, *shape), make.index(4, 5, *shape))


def classes_weighted(make):
    return make(5, 4), make.index(4, 5), make(4, low=0.1, grad=False)


@cases(
    *losses("nll", F.nll_loss, classes()),
    *losses("nll_weighted", F.nll_loss, classes_weighted, ignore_index=2),
    *losses("nll2d", F.nll_loss, classes(2, 3), ignore_index=1),
    *losses("cross_entropy", F.cross_entropy, classes(2), label_smoothing=0.1),
    Case("nll_one", F.nll_loss, lambda make: (make(4), make.index(4))),
    Case("nll_empty", F.nll_loss, lambda make: (make(0, 4), make.index(4, 0))),
    Case("cross_entropy_probabilities", F.cross_entropy, lambda make: (make(5, 4), make(5, 4))),
    *losses("multi_margin", F.multi_margin_loss, classes(), FLOATS[:2]),
    *losses("multi_margin_2", F.multi_margin_loss, classes(), FLOATS[:2], p=2, margin=0.5),
)
def test_class_losses(case, dtype):
    case.check(dtype)


def test_all_targets_ignored():
    x, target = torch.randn(3, 4, requires_grad=True), torch.full((3,), -100)
    y = x.detach().to("tpu").requires_grad_()
    F.nll_loss(x, target).backward()
    loss = F.nll_loss(y, target.to("tpu"))
    loss.backward()
    assert math.isnan(loss.item())
    torch.testing.assert_close(y.grad.cpu(), x.grad)


@pytest.mark.parametrize(("bad", "shape"), [(5, ()), (-1, ()), (9, (2, 3))])
def test_target_out_of_bounds(bad, shape):
    x = torch.randn(3, 5, *shape, device="tpu")
    target = torch.zeros(3, *shape, dtype=torch.int64)
    target[1] = bad
    with pytest.raises(IndexError, match=f"Target {bad} is out of bounds."):
        F.nll_loss(x, target.to("tpu")).item()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multilabel_margin(reduction):
    target = torch.tensor([[1, 2, -1, 0], [3, 0, 1, 2], [-1, 2, 0, 1]])
    case = Case(
        "multilabel_margin",
        F.multilabel_margin_loss,
        lambda make: (make(3, 4), target),
        kwargs={"reduction": reduction},
    )
    case.check(torch.float32)


@cases(
    *losses("mse", F.mse_loss, pair),
    *losses("l1", F.l1_loss, pair),
    *losses("smooth_l1", F.smooth_l1_loss, pair, beta=0.7),
    *losses("huber", F.huber_loss, pair, delta=1.3),
    *losses("soft_margin", F.soft_margin_loss, signs),
    *losses("binary_cross_entropy", F.binary_cross_entropy, probabilities),
    *losses(
        "binary_cross_entropy_weighted",
        F.binary_cross_entropy,
        lambda make: (*probabilities(make), make(4, low=0.1, grad=False)),
    ),
    *losses(
        "binary_cross_entropy_with_logits",
        F.binary_cross_entropy_with_logits,
        lambda make: (make(3, 4), make(3, 4, low=0.0, high=1.0)),
    ),
    Case(
        "logits_pos_weight",
        F.binary_cross_entropy_with_logits,
        lambda make: (make(3, 4), make(3, 4, low=0, high=1), {"pos_weight": make(4, grad=False)}),
    ),
    *losses("kl_div", F.kl_div, lambda make: (make(3, 4), make(3, 4, low=0.1, high=1.0))),
    *losses("hinge_embedding", F.hinge_embedding_loss, signs),
)
@pytest.mark.filterwarnings("ignore:reduction")
def test_elementwise_losses(case, dtype):
    case.check(dtype)


def test_binary_cross_entropy_at_the_ends():
    x, y = torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 1.0, 0.0])
    expected = F.binary_cross_entropy(x, y, reduction="none")
    actual = F.binary_cross_entropy(x.to("tpu"), y.to("tpu"), reduction="none")
    torch.testing.assert_close(actual.cpu(), expected)
