"""Normalization layers: layer, group, RMS, batch and instance norm, renorm."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from ops.harness import FLOATS, Case, cases

HALF_WITH_F32_WEIGHTS = torch.bfloat16


@cases(
    Case(
        "layer_norm",
        F.layer_norm,
        lambda make: (make(3, 4, 5), (4, 5), make(4, 5), make(4, 5)),
        dtypes=FLOATS,
    ),
    Case("layer_norm_plain", F.layer_norm, lambda make: (make(3, 4, 5), (5,))),
    Case("layer_norm_weight", F.layer_norm, lambda make: (make(6, 5), (5,), make(5), None, 0.1)),
    Case("layer_norm_empty", F.layer_norm, lambda make: (make(0, 5), (5,), make(5), make(5))),
    Case("rms_norm", F.rms_norm, lambda make: (make(3, 4, 5), (5,), make(5), 1e-3), dtypes=FLOATS),
    Case("rms_norm_plain", F.rms_norm, lambda make: (make(3, 4, 5), (4, 5))),
    Case(
        "group_norm",
        F.group_norm,
        lambda make: (make(2, 6, 3, 2), 3, make(6), make(6)),
        dtypes=FLOATS,
    ),
    Case("group_norm_plain", F.group_norm, lambda make: (make(2, 6), 2)),
    Case("renorm", torch.renorm, lambda make: (make(3, 4, 5), 2, 1, 4.0), dtypes=FLOATS[:2]),
    Case("renorm_1", torch.renorm, lambda make: (make(3, 4), 1, 0, 2.0)),
)
def test_norm(case, dtype):
    case.check(dtype)


def batch_norm(training, momentum=0.3):
    def call(x, mean, var, weight=None, bias=None):
        mean, var = (None if s is None else s.detach().clone() for s in (mean, var))
        y = F.batch_norm(x, mean, var, weight, bias, training, momentum, 1e-3)
        return [y] if mean is None else [y, mean, var]

    return call


def statistics(make, channels):
    return (make(channels, grad=False), make(channels, low=0.5, grad=False))


@cases(
    Case(
        "train",
        batch_norm(True),
        lambda make: (make(4, 3, 5), *statistics(make, 3), make(3), make(3)),
        dtypes=FLOATS,
    ),
    Case(
        "eval",
        batch_norm(False),
        lambda make: (make(4, 3, 5, 2), *statistics(make, 3), make(3), make(3)),
        dtypes=FLOATS,
    ),
    Case("train_plain", batch_norm(True), lambda make: (make(4, 3), None, None)),
    Case("eval_plain", batch_norm(False), lambda make: (make(4, 3), *statistics(make, 3))),
    Case("instance", F.instance_norm, lambda make: (make(2, 3, 5), None, None, make(3), make(3))),
)
def test_batch_norm(case, dtype):
    case.check(dtype)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_module(momentum):
    device, host = (torch.nn.BatchNorm2d(3, momentum=momentum).to(d) for d in ("tpu", "cpu"))
    x = torch.randn(4, 3, 5, 5)
    for step in range(3):
        actual, expected = device(x.to("tpu") + step), host(x + step)
        torch.testing.assert_close(actual.cpu(), expected)
    torch.testing.assert_close(device.state_dict(), host.state_dict(), check_device=False)
    torch.testing.assert_close(device.eval()(x.to("tpu")).cpu(), host.eval()(x))


def test_half_input_with_f32_weights():
    x = torch.randn(4, 6, 5).to(HALF_WITH_F32_WEIGHTS)
    w = torch.randn(6)
    for fn in (
        lambda x, w: F.batch_norm(x, None, None, w, w, True),
        lambda x, w: F.group_norm(x, 3, w, w),
        lambda x, w: F.layer_norm(x.mT, (6,), w, w),
    ):
        actual = fn(x.to("tpu"), w.to("tpu"))
        assert actual.dtype == x.dtype
        torch.testing.assert_close(actual.cpu(), fn(x, w), rtol=2e-2, atol=2e-2)


def test_synchronized_batch_norm_pieces():
    """Two halves of a batch, put together as nn.SyncBatchNorm does, are the whole batch."""
    x = torch.randn(6, 3, 5, requires_grad=True)
    w, b = torch.randn(3), torch.randn(3)
    grad = torch.randn_like(x)
    expected = F.batch_norm(x, None, None, w, b, True, eps=1e-3)
    expected.backward(grad)
    halves = [x.detach()[:2].to("tpu"), x.detach()[2:].to("tpu")]
    grads = [grad[:2].to("tpu"), grad[2:].to("tpu")]
    w, b = w.to("tpu"), b.to("tpu")
    means, invstds = zip(*(torch.batch_norm_stats(h, 1e-3) for h in halves), strict=True)
    counts = torch.tensor([10.0, 20.0], device="tpu")
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        halves[0], torch.stack(means), torch.stack(invstds), None, None, 0.1, 1e-3, counts
    )
    actual = [torch.batch_norm_elemt(h, w, b, mean, invstd, 1e-3) for h in halves]
    torch.testing.assert_close(torch.cat(actual).cpu(), expected.detach())
    sums = [
        torch.batch_norm_backward_reduce(g, h, mean, invstd, w, True, True, True)
        for g, h in zip(grads, halves, strict=True)
    ]
    sum_dy, sum_dy_xmu = (sums[0][i] + sums[1][i] for i in (0, 1))
    back = [
        torch.batch_norm_backward_elemt(g, h, mean, invstd, w, sum_dy, sum_dy_xmu, counts.int())
        for g, h in zip(grads, halves, strict=True)
    ]
    torch.testing.assert_close(torch.cat(back).cpu(), x.grad)
