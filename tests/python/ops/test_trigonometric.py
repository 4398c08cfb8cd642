"""Sine, cosine and tangent in f32 over all of its range, against float64. Small tensors and large
ones, alone and among other ops, may take different forms."""

import numpy as np
import pytest
import torch

NAMES = ("sin", "cos", "tan")
# Of units in the last place; the C library's own are below 1.
MOST = 0.51


def arguments():
    """Any bits, close to multiples of pi / 2, of every size, and special values."""
    rng = np.random.default_rng(0)
    any_bits = rng.integers(0, 2**32, 400_000, dtype=np.uint64).astype(np.uint32)
    multiples = (np.arange(1, 100_000) * (np.pi / 2)).astype(np.float32)
    huge = rng.integers(1 << 23, 1 << 24, 100_000) * 2.0 ** rng.integers(0, 105, 100_000)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, 2.0**-13, 3.4028235e38]
    # Where the window of 1 / pi changes, and one of the worst arguments known.
    special += [2.0**50, 2.0**76, 2.0**102, 16367173.0 * 2.0**72]
    return np.concatenate(
        [
            any_bits.view(np.float32),
            *(np.nextafter(multiples, np.float32(to)) for to in (0, np.inf)),
            multiples,
            huge.astype(np.float32),
            rng.uniform(-10, 10, 100_000).astype(np.float32),
            np.array(special, np.float32),
        ]
    )


def check(name, x, result, most):
    finite = np.isfinite(x)
    assert np.isnan(result[~finite]).all()
    x, result = x[finite], result[finite]
    expected = getattr(np, name)(x.astype(np.float64))
    exponent = np.floor(np.log2(np.maximum(np.abs(expected), 2.0**-126)))
    errors = np.abs(result.astype(np.float64) - expected) / 2.0 ** (exponent - 23)
    worst = errors.argmax()
    assert errors[worst] < most, (x[worst], result[worst], expected[worst])
    assert (np.signbit(result) == np.signbit(expected)).all()


@pytest.mark.parametrize("name", NAMES)
def test_every_argument(name):
    x = arguments()
    with np.errstate(invalid="ignore"):
        result = getattr(torch, name)(torch.from_numpy(x).to("tpu"))
        check(name, x, result.cpu().numpy(), MOST)


@pytest.mark.parametrize("name", NAMES)
def test_among_other_ops_and_alone(name):
    x = arguments()[::5000]
    function = getattr(torch, name)
    with np.errstate(invalid="ignore"):
        check(name, x, function(torch.from_numpy(x).to("tpu")).cpu().numpy(), 1.0)
        run = torch.compile(lambda x: function(x.neg()).neg(), backend="tpu")
        result = run(torch.from_numpy(x).to("tpu")).cpu().numpy()
        check(name, x, -result if name == "cos" else result, MOST)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_half_types_round_once(name, dtype):
    x = torch.from_numpy(np.arange(2**16, dtype=np.uint16).view(np.int16)).view(dtype)
    x = x[x.isfinite()]
    result = getattr(torch, name)(x.to("tpu")).cpu()
    exact = getattr(torch, name)(x.double()).float()
    assert torch.equal(result, exact.to(dtype))


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name):
    x = torch.linspace(-1.5, 1.5, 9000)
    ours = x.to("tpu").requires_grad_()
    x.requires_grad_()
    for t in (x, ours):
        getattr(torch, name)(t).sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), x.grad)
