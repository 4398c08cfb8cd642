"""Convolutions with all their gradients: dimensions, strides, padding, dilation, groups."""

import pytest
import torch
import torch.nn.functional as F
from ops.harness import Case, cases

WIDE = (torch.float32, torch.float64)
HALF = (torch.bfloat16, torch.float16)


def given(*shapes, **kwargs):
    """Inputs of these shapes, with keyword arguments."""
    return lambda make: (*(make(*shape) for shape in shapes), kwargs)


X1, X2, X3 = (2, 4, 9), (2, 4, 7, 6), (2, 4, 5, 4, 6)


@cases(
    Case("conv1d", F.conv1d, given(X1, (6, 4, 3), (6,)), dtypes=WIDE),
    Case("conv1d-stride", F.conv1d, given(X1, (6, 4, 3), stride=2, padding=1)),
    Case("conv1d-unbatched", F.conv1d, given((4, 9), (6, 4, 3), (6,))),
    Case("conv1d-same", F.conv1d, given(X1, (6, 4, 3), padding="same")),
    Case("conv2d", F.conv2d, given(X2, (6, 4, 3, 2), (6,), padding=1), dtypes=WIDE),
    Case("conv2d-stride", F.conv2d, given(X2, (6, 4, 3, 3), (6,), stride=2, padding=1)),
    Case("conv2d-dilation", F.conv2d, given(X2, (6, 4, 2, 3), dilation=(3, 2))),
    Case(
        "conv2d-stride-dilation",
        F.conv2d,
        given(X2, (6, 4, 2, 2), stride=(2, 3), padding=(0, 2), dilation=2),
    ),
    Case("conv2d-1x1-stride", F.conv2d, given(X2, (6, 4, 1, 1), stride=2)),
    Case("conv2d-groups", F.conv2d, given(X2, (6, 2, 3, 3), (6,), groups=2, padding=1)),
    Case("conv2d-depthwise", F.conv2d, given(X2, (4, 1, 3, 3), (4,), groups=4, stride=2)),
    Case(
        "conv2d-depthwise-multiplier",
        F.conv2d,
        given(X2, (8, 1, 3, 2), groups=4, padding=2, dilation=2),
        dtypes=WIDE,
    ),
    Case("conv2d-no-batch", F.conv2d, given((0, 4, 7, 6), (6, 4, 3, 3), (6,))),
    Case("conv3d", F.conv3d, given(X3, (3, 4, 2, 3, 2), (3,), stride=(1, 2, 2))),
    Case("conv3d-groups", F.conv3d, given(X3, (4, 2, 2, 2, 2), groups=2, padding=1)),
    Case("transpose1d", F.conv_transpose1d, given(X1, (4, 3, 3), (3,)), dtypes=WIDE),
    Case(
        "transpose1d-output-padding",
        F.conv_transpose1d,
        given(X1, (4, 3, 3), stride=3, padding=1, output_padding=2),
    ),
    Case(
        "transpose2d",
        F.conv_transpose2d,
        given(X2, (4, 3, 3, 2), (3,), stride=2, padding=1, output_padding=1),
    ),
    Case(
        "transpose2d-output-padding-by-dilation",
        F.conv_transpose2d,
        given(X2, (4, 3, 3, 2), dilation=3, output_padding=2),
    ),
    Case("transpose2d-groups", F.conv_transpose2d, given(X2, (4, 3, 3, 3), (6,), groups=2)),
    Case(
        "transpose2d-depthwise",
        F.conv_transpose2d,
        given(X2, (4, 1, 3, 3), stride=2, groups=4, output_padding=1),
    ),
    Case("transpose2d-much-padding", F.conv_transpose2d, given(X2, (4, 3, 2, 2), padding=2)),
    Case(
        "conv2d-half",
        F.conv2d,
        given(X2, (6, 4, 3, 3), (6,), padding=1),
        dtypes=HALF,
        rtol=2e-2,
        atol=3e-2,
    ),
    Case(
        "depthwise-half",
        F.conv2d,
        given(X2, (4, 1, 3, 3), (4,), groups=4),
        dtypes=HALF,
        rtol=2e-2,
        atol=3e-2,
    ),
    Case(
        "transpose2d-half",
        F.conv_transpose2d,
        given(X2, (4, 3, 3, 3), (3,), stride=2),
        dtypes=HALF,
        rtol=2e-2,
        atol=3e-2,
    ),
    Case("transpose3d", F.conv_transpose3d, given(X3, (4, 2, 2, 2, 3), stride=2)),
)
def test_conv(case, dtype):
    case.check(dtype)


def test_integers():
    x, w = torch.randint(-5, 5, (1, 2, 5, 5)), torch.randint(-5, 5, (3, 2, 3, 3))
    assert torch.equal(F.conv2d(x.to("tpu"), w.to("tpu")).cpu(), F.conv2d(x, w))


def test_channels_last_input():
    x, w = (
        torch.randn(2, 4, 7, 6).contiguous(memory_format=torch.channels_last),
        torch.randn(3, 4, 3, 3),
    )
    torch.testing.assert_close(F.conv2d(x.to("tpu"), w.to("tpu")).cpu(), F.conv2d(x, w))


def test_wrong_channels():
    with pytest.raises(RuntimeError, match=r"expected input.* to have 3 channels"):
        F.conv2d(torch.randn(1, 4, 5, 5, device="tpu"), torch.randn(2, 3, 3, 3, device="tpu"))


def test_second_derivative():
    def second(device):
        torch.manual_seed(0)
        x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
        x, w = (v.to(device).requires_grad_() for v in (x, w))
        (gx,) = torch.autograd.grad((F.conv2d(x, w, padding=1) ** 2).sum(), x, create_graph=True)
        return torch.autograd.grad((gx**2).sum(), (x, w))

    for got, want in zip(second("tpu"), second("cpu"), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-3)


INT64 = (torch.int64,)


@cases(
    Case("conv1d", F.conv1d, given(X1, (6, 4, 3), (6,), stride=2, padding=1), dtypes=INT64),
    Case("conv2d", F.conv2d, given(X2, (6, 4, 2, 3), dilation=(3, 2)), dtypes=INT64),
    Case("conv2d-groups", F.conv2d, given(X2, (6, 2, 3, 3), groups=2, padding=1), dtypes=INT64),
    Case("conv3d", F.conv3d, given(X3, (3, 4, 2, 3, 2), stride=(1, 2, 2)), dtypes=INT64),
    Case(
        "transpose2d",
        F.conv_transpose2d,
        given(X2, (4, 3, 3, 2), stride=2, padding=1, output_padding=1, groups=2),
        dtypes=INT64,
    ),
)
def test_int64(case, dtype):
    case.check(dtype)
