"""Activations, their in-place forms and their gradients against CPU."""

import pytest
import torch
import torch.nn.functional as F
from ops.harness import FLOAT, FLOATS, Case, cases

HALF = (torch.float32, torch.float64, torch.bfloat16)


def act(name, *args, dtypes=HALF, low=-5.0, high=5.0, **kwargs):
    label = "-".join([name, *(str(a) for a in args), *(f"{k}={v}" for k, v in kwargs.items())])
    fn = getattr(F, name)
    return Case(
        label,
        lambda x: fn(x, *args, **kwargs),
        lambda make: (make(4, 6, low=low, high=high),),
        dtypes=dtypes,
    )


@cases(
    act("relu", dtypes=FLOATS),
    Case("relu-int", torch.relu, lambda make: (make(9),), (torch.int64, torch.uint8)),
    act("relu6"),
    act("threshold", 0.5, 2.0),
    act("leaky_relu"),
    act("leaky_relu", 0.2),
    act("hardtanh"),
    act("hardtanh", -2.0, 0.5),
    act("hardsigmoid"),
    act("hardswish"),
    act("hardshrink"),
    act("hardshrink", 1.5),
    act("softshrink"),
    act("softshrink", 1.5),
    act("tanhshrink"),
    act("softsign"),
    act("gelu", dtypes=FLOATS),
    act("gelu", dtypes=FLOATS, approximate="tanh"),
    act("silu", dtypes=FLOATS),
    act("mish", dtypes=FLOATS),
    act("elu"),
    act("elu", 2.0),
    act("celu", 1.5),
    act("selu"),
    act("softplus"),
    act("softplus", 2.0, 3.0),
    act("logsigmoid"),
    act("glu"),
    act("glu", 0),
    act("rrelu"),
    Case("prelu", F.prelu, lambda make: (make(2, 3, 4), make(3)), HALF),
    Case("prelu-one", F.prelu, lambda make: (make(2, 3), make(1)), FLOAT),
    Case("sigmoid", torch.sigmoid, lambda make: (make(3, 4),), (*FLOATS, torch.complex64)),
    Case("tanh", torch.tanh, lambda make: (make(3, 4),), (*FLOATS, torch.complex64)),
    Case("logit", torch.logit, lambda make: (make(3, 4, low=0.1, high=0.9), 0.2), HALF),
    Case("empty", F.gelu, lambda make: (make(0, 4),)),
    Case("scalar", F.silu, lambda make: (make(),)),
)
def test_activation(case, dtype):
    case.check(dtype)


def test_gelu_tails():
    x = torch.tensor([-1e6, -100.0, -8.0, -5.0, 5.0, 8.0, 100.0, 1e6])
    torch.testing.assert_close(F.gelu(x.to("tpu")).cpu(), F.gelu(x.double()).float())


EDGE_TESTED = [
    "relu",
    "silu",
    "mish",
    "elu",
    "celu",
    "selu",
    "leaky_relu",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "softplus",
    "logsigmoid",
    "relu6",
    "softshrink",
    "hardshrink",
]


@pytest.mark.parametrize("name", EDGE_TESTED)
def test_edge_values(name):
    x = torch.tensor([0.0, -0.0, 3.0, -3.0, 0.5, -0.5, 100.0, -100.0, torch.inf, torch.nan])
    fn = getattr(F, name)
    host, device = x.clone().requires_grad_(), x.to("tpu").requires_grad_()
    expected, actual = fn(host), fn(device)
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)
    weight = torch.ones_like(expected)
    wanted = torch.autograd.grad(expected, host, weight)[0]
    got = torch.autograd.grad(actual, device, weight.to("tpu"))[0]
    torch.testing.assert_close(got.cpu(), wanted, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("relu_", ()),
        ("leaky_relu_", (0.2,)),
        ("elu_", ()),
        ("hardtanh_", ()),
        ("threshold_", (0.5, 2.0)),
        ("celu_", ()),
        ("selu_", ()),
        ("rrelu_", ()),
    ],
)
def test_in_place(name, args):
    x = torch.linspace(-3, 3, 12)
    device = x.to("tpu")
    fn = getattr(F, name)
    fn(device, *args)
    fn(x, *args)
    torch.testing.assert_close(device.cpu(), x)


def test_double_backward():
    for fn in (torch.tanh, torch.sigmoid, F.silu, F.gelu, F.softplus, F.elu, F.leaky_relu):
        results = []
        for device in ("cpu", "tpu"):
            x = torch.linspace(-2, 2, 7).to(device).requires_grad_()
            (first,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad((first * first).sum(), x)
            results.append(second.cpu())
        torch.testing.assert_close(results[1], results[0])


def test_glu_forward_mode():
    x, dx = torch.rand(3, 6), torch.rand(3, 6)
    _, expected = torch.func.jvp(F.glu, (x,), (dx,))
    _, actual = torch.func.jvp(F.glu, (x.to("tpu"),), (dx.to("tpu"),))
    torch.testing.assert_close(actual.cpu(), expected)


def test_rrelu_training():
    x = torch.linspace(-3, 3, 1001, device="tpu").requires_grad_()
    y = F.rrelu(x, 0.1, 0.3, training=True)
    slope = (y / x).detach().cpu()
    negative = x.detach().cpu() < 0
    assert slope[negative].min() >= 0.1 - 1e-6
    assert slope[negative].max() <= 0.3 + 1e-6
    assert slope[negative].std() > 0.03
    assert torch.equal(y.detach().cpu()[~negative], x.detach().cpu()[~negative])
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(grad.cpu()[negative], slope[negative])
