"""Random numbers: reproducible, independent of the CPU generator, and of the right distribution.

Distributions are compared with their exact distribution function by the Kolmogorov-Smirnov distance
of a fixed seed, so that the tests do not flicker.
"""

from __future__ import annotations

import math

import pytest
import torch
from ops.harness import FLOATS

import torch_tpu

N = 20000
# The distance of a true sample exceeds this with probability 1e-6.
LIMIT = math.sqrt(-0.5 * math.log(1e-6 / 2) / N)


@pytest.fixture(autouse=True)
def seeded():
    before = set(torch_tpu.coverage())
    torch.manual_seed(1234)
    state = torch.get_rng_state()
    yield
    assert torch.equal(state, torch.get_rng_state()), "the CPU generator was used"
    assert not set(torch_tpu.coverage()) - before


def distance(sample: torch.Tensor, cdf) -> float:
    x = sample.detach().cpu().double().flatten().sort().values
    assert torch.isfinite(x).all()
    y = cdf(x)
    steps = torch.arange(1, x.numel() + 1, dtype=torch.float64) / x.numel()
    return max((steps - y).max().item(), (y - steps + 1 / x.numel()).max().item())


def normal_cdf(mean=0.0, std=1.0):
    return torch.distributions.Normal(mean, std).cdf


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="tpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("draw", "cdf"),
    [
        (lambda x: x.uniform_(), lambda x: x),
        (lambda x: x.uniform_(-2, 3), lambda x: (x + 2) / 5),
        (lambda x: x.normal_(), normal_cdf()),
        (lambda x: x.normal_(2, 3), normal_cdf(2, 3)),
        (lambda x: x.exponential_(), lambda x: 1 - torch.exp(-x)),
        (lambda x: x.exponential_(0.5), lambda x: 1 - torch.exp(-0.5 * x)),
        (lambda x: x.log_normal_(0.5, 0.25), lambda x: normal_cdf(0.5, 0.25)(x.log())),
        (lambda x: x.cauchy_(1, 2), lambda x: torch.atan((x - 1) / 2) / math.pi + 0.5),
    ],
    ids=[
        "uniform",
        "uniform_range",
        "normal",
        "normal_2_3",
        "exponential",
        "exponential_half",
        "log_normal",
        "cauchy",
    ],
)
def test_continuous(draw, cdf, dtype):
    x = empty(N, dtype=dtype)
    assert draw(x) is x
    assert distance(x, cdf) < LIMIT


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_stays_below_the_end(dtype):
    x = empty(N, dtype=dtype).uniform_().cpu()
    assert x.min() >= 0
    assert x.max() < 1
    assert 0.48 < x.float().mean() < 0.52
    x = empty(N, dtype=dtype).uniform_(1, 1.25).cpu()
    assert x.min() >= 1
    assert x.max() < 1.25


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64])
def test_randn(dtype):
    x = torch.randn(N, dtype=dtype, device="tpu")
    assert x.dtype == dtype
    x = x.cpu().to(torch.complex128 if dtype.is_complex else torch.float64)
    assert abs(x.mean()) < 0.03
    assert abs(x.var() - 1) < 0.05
    if dtype.is_complex:
        assert abs(x.real.var() - 0.5) < 0.03


def test_normal_tails():
    x = torch.randn(2**22, device="tpu").abs().cpu()
    assert 4.6 < x.max() < 6.7
    expected = 2**22 * (2 * (1 - normal_cdf()(torch.tensor(4.0, dtype=torch.float64)))).item()
    assert abs((x > 4).sum().item() - expected) < 6 * math.sqrt(expected)


def test_normal_of_tensors():
    mean = torch.arange(N, device="tpu").float()
    assert distance(torch.normal(mean, 2.0) - mean, normal_cdf(0, 2)) < LIMIT
    std = torch.full((N,), 3.0, device="tpu")
    assert distance(torch.normal(1.0, std), normal_cdf(1, 3)) < LIMIT
    assert distance(torch.normal(mean, std) - mean, normal_cdf(0, 3)) < LIMIT
    with pytest.raises(RuntimeError, match=r"normal expects all elements of std >= 0\.0"):
        torch.normal(mean, -std).cpu()


def frequencies_match(counts: torch.Tensor, probabilities: torch.Tensor) -> None:
    n = counts.sum()
    error = (counts - n * probabilities).abs() / (n * probabilities * (1 - probabilities)).sqrt()
    assert error.max() < 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
def test_bernoulli(dtype):
    ones = empty(N, dtype=dtype).bernoulli_(0.3).cpu().double().mean()
    assert abs(ones - 0.3) < 0.02
    p = torch.tensor([[0.0], [0.25], [1.0]], device="tpu")
    ones = empty(3, N, dtype=dtype).bernoulli_(p.expand(3, N)).cpu().double().mean(1)
    assert ones[0] == 0
    assert abs(ones[1] - 0.25) < 0.02
    assert ones[2] == 1
    assert abs(torch.bernoulli(p.expand(3, N)).cpu().mean() - 1.25 / 3) < 0.02
    assert abs(torch.bernoulli(p.expand(3, N), 0.5).cpu().mean() - 0.5) < 0.02


def test_geometric():
    x = empty(N).geometric_(0.25).cpu()
    counts = torch.stack([(x == k).sum() for k in range(1, 8)] + [(x > 7).sum()]).double()
    p = torch.tensor([0.25 * 0.75 ** (k - 1) for k in range(1, 8)], dtype=torch.float64)
    frequencies_match(counts, torch.cat([p, 1 - p.sum().view(1)]))
    assert empty(N, dtype=torch.int64).geometric_(0.25).min() == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32])
def test_random(dtype):
    for low, high in ((0, 10), (3, 11), (5, 6)):
        x = torch.randint(low, high, (N,), device="tpu").cpu()
        assert x.dtype == torch.int64
        counts = torch.bincount(x, minlength=high)[low:].double()
        if high - low > 1:
            frequencies_match(counts, torch.full_like(counts, 1 / (high - low)))
        else:
            assert (x == low).all()
    x = empty(N, dtype=dtype).random_(7).cpu()
    assert (x.min(), x.max()) == (0, 6)
    x = empty(N, dtype=dtype).random_().cpu()
    top = 2**24 if dtype.is_floating_point else torch.iinfo(dtype).max
    assert x.min() >= 0
    assert 0.9 * top < x.max() <= top


def test_random_over_all_integers():
    x = empty(N, dtype=torch.int64).random_(-(2**63), None).cpu()
    assert x.min() < -(2**62)
    assert x.max() > 2**62
    x = empty(N, dtype=torch.int64).random_(-(2**62), 2**63 - 1).cpu()
    assert -(2**62) <= x.min() < -(2**61)
    assert x.max() > 2**62
    x = torch.randint(-(2**40), 2**40 + 3, (N,), device="tpu").cpu()
    assert -(2**40) <= x.min() < -(2**39)
    assert 2**39 < x.max() < 2**40 + 3


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda x: x.uniform_(2, 1), "uniform_ expects to return a"),
        (lambda x: x.bernoulli_(2.0), "bernoulli_ expects p to be in"),
        (lambda x: x.normal_(0, -1), "normal expects std >= 0"),
        (lambda x: x.exponential_(-1), "exponential_ expects lambda > 0"),
        (lambda x: x.geometric_(2), "geometric_ expects p to be in"),
        (lambda x: x.random_(3, 2), "random_ expects 'from' to be less than 'to'"),
        (lambda x: x.byte().random_(300), "to - 1 is out of bounds for"),
    ],
)
def test_bad_parameters(draw, message):
    with pytest.raises((RuntimeError, IndexError), match=message):
        draw(empty(3)).cpu()


def test_known_words():
    """The published answers for Threefry2x32-20."""
    generator = torch.Generator(device="tpu").manual_seed(0)
    x = empty(1, dtype=torch.int64).random_(-(2**63), None, generator=generator).cpu()
    assert (x.item() + 2**63) & (2**64 - 1) == 0x99BA4EFE_6B200159
    generator.manual_seed(-1)
    generator.set_offset(2**64 - 1)
    x = empty(1, dtype=torch.int64).random_(-(2**63), None, generator=generator).cpu()
    assert (x.item() + 2**63) & (2**64 - 1) == 0xBB002BE7_1CB996FC


def test_randperm():
    x = torch.randperm(1000, device="tpu")
    assert x.dtype == torch.int64
    assert torch.equal(x.sort().values.cpu(), torch.arange(1000))
    assert not torch.equal(x.cpu(), torch.arange(1000))
    assert torch.randperm(0, device="tpu").numel() == 0
    assert torch.randperm(5, dtype=torch.int32, device="tpu").dtype == torch.int32
    firsts = torch.stack([torch.randperm(4, device="tpu")[0] for _ in range(200)]).cpu()
    assert (torch.bincount(firsts, minlength=4) > 20).all()


def test_multinomial_with_replacement():
    weights = torch.tensor([[0.0, 1.0, 3.0, 4.0, 0.0], [2.0, 0.0, 0.0, 0.0, 2.0]], device="tpu")
    x = weights.multinomial(N, replacement=True).cpu()
    assert x.shape == (2, N)
    for row, w in zip(x, weights.cpu(), strict=True):
        counts = torch.bincount(row, minlength=5).double()
        assert (counts[w == 0] == 0).all()
        frequencies_match(counts[w > 0], (w[w > 0] / w.sum()).double())


def test_multinomial_without_replacement():
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], device="tpu")
    x = weights.expand(N, 4).multinomial(2).cpu()
    assert (x[:, 0] != x[:, 1]).all()
    first = torch.bincount(x[:, 0], minlength=4).double()
    frequencies_match(first, torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64))
    # P(second = j) = sum over first i of p_i * p_j / (1 - p_i)
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    second = (p / (1 - p)).sum() * p - p * p / (1 - p)
    frequencies_match(torch.bincount(x[:, 1], minlength=4).double(), second)
    all_four = weights.multinomial(4).sort().values.cpu()
    assert torch.equal(all_four, torch.arange(4))
    one = weights.expand(N, 4).multinomial(1).cpu()
    frequencies_match(torch.bincount(one.flatten(), minlength=4).double(), p)


@pytest.mark.parametrize("bad", [[-1.0, 2.0], [float("nan"), 1.0], [0.0, 0.0]])
def test_multinomial_errors(bad):
    message = "sum of probabilities <= 0" if sum(bad) == 0 else "element < 0"
    with pytest.raises(RuntimeError, match=message):
        torch.tensor(bad, device="tpu").multinomial(1).cpu()


@pytest.mark.parametrize("rate", [0.0, 0.5, 4.0, 12.0, 300.0])
def test_poisson(rate):
    x = torch.poisson(torch.full((N,), rate, device="tpu")).cpu().double()
    assert abs(x.mean() - rate) <= 5 * math.sqrt(rate / N)
    assert abs(x.var() - rate) <= 0.1 * rate


@pytest.mark.parametrize(
    ("count", "prob"), [(0, 0.5), (10, 0.0), (10, 1.0), (10, 0.3), (40, 0.9), (1000, 0.4)]
)
def test_binomial(count, prob):
    counts = torch.full((N,), float(count), device="tpu")
    x = torch.binomial(counts, torch.full((N,), prob, device="tpu")).cpu().double()
    var = count * prob * (1 - prob)
    assert abs(x.mean() - count * prob) <= 5 * math.sqrt(var / N)
    assert abs(x.var() - var) <= 0.1 * var
    assert x.min() >= 0
    assert x.max() <= count


@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0, 100.0])
def test_gamma(alpha):
    x = torch._standard_gamma(torch.full((N,), alpha, device="tpu"))
    assert distance(x, lambda v: torch.special.gammainc(torch.full_like(v, alpha), v)) < LIMIT


def test_dirichlet():
    alpha = torch.tensor([1.0, 2.0, 5.0], device="tpu").expand(N, 3)
    x = torch._sample_dirichlet(alpha).cpu()
    torch.testing.assert_close(x.sum(1), torch.ones(N))
    torch.testing.assert_close(x.mean(0), torch.tensor([1 / 8, 2 / 8, 5 / 8]), atol=0.01, rtol=0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_dropout(dtype):
    x = torch.ones(100, 200, dtype=dtype, device="tpu", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.25)
    y.backward(torch.ones_like(y))
    kept = y.detach().cpu() != 0
    assert abs(kept.double().mean() - 0.75) < 0.02
    torch.testing.assert_close(y.detach().cpu(), kept.to(dtype) * torch.tensor(1 / 0.75).to(dtype))
    torch.testing.assert_close(x.grad, y.detach())
    assert (torch.nn.functional.dropout(x, 0.25, training=False) == x).all()
    assert torch.nn.functional.dropout(x, 1.0).count_nonzero() == 0
    assert torch.nn.functional.dropout(x, 0.0).count_nonzero() == x.numel()


def test_feature_and_alpha_dropout():
    x = torch.ones(50, 40, 3, 3, device="tpu")
    y = torch.nn.functional.dropout2d(x, 0.5).cpu()
    assert ((y == 0).all((2, 3)) | (y == 2).all((2, 3))).all()
    torch.nn.functional.alpha_dropout(x, 0.5)
    torch.nn.functional.feature_alpha_dropout(x, 0.5)


def test_rrelu():
    x = torch.randn(N, device="tpu", requires_grad=True)
    y = torch.nn.functional.rrelu(x, 0.2, 0.4, training=True)
    y.sum().backward()
    slope = (y / x).detach().cpu()
    negative = x.detach().cpu() < 0
    assert (slope[~negative] == 1).all()
    assert distance(slope[negative][:N], lambda v: (v - 0.2) / 0.2) < 2 * LIMIT
    torch.testing.assert_close(x.grad.cpu(), slope)
    y = torch.nn.functional.rrelu(x, 0.2, 0.4).detach().cpu()
    torch.testing.assert_close(y, torch.nn.functional.rrelu(x.detach().cpu(), 0.2, 0.4))


DRAWS = [
    lambda: torch.rand(100, device="tpu"),
    lambda: torch.randn(100, device="tpu"),
    lambda: torch.rand(7, 3, dtype=torch.float64, device="tpu"),
    lambda: torch.randint(1000, (100,), device="tpu"),
    lambda: torch.randperm(100, device="tpu"),
    lambda: torch.full((50,), 3.0, device="tpu").bernoulli_(0.5),
    lambda: torch.ones(30, device="tpu").multinomial(10),
    lambda: torch.poisson(torch.full((50,), 20.0, device="tpu")),
    lambda: torch._standard_gamma(torch.ones(50, device="tpu")),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_seed_decides(draw):
    torch.tpu.manual_seed(7)
    first, second = draw().cpu(), draw().cpu()
    torch.tpu.manual_seed(7)
    assert torch.equal(draw().cpu(), first)
    assert torch.equal(draw().cpu(), second)
    assert not torch.equal(first, second)


def test_generator():
    generator = torch.Generator(device="tpu").manual_seed(7)
    x = torch.randn(5, device="tpu", generator=generator)
    y = torch.randn(5, device="tpu", generator=generator)
    generator.manual_seed(7)
    assert (torch.randn(5, device="tpu", generator=generator) == x).all()
    assert (x != y).all()


def test_draws_do_not_overlap():
    x = torch.cat([torch.rand(n, device="tpu", dtype=torch.float64) for n in (1, 3, 10, 100, 7)])
    assert x.cpu().unique().numel() == x.numel()


def test_empty_draws():
    for x in (torch.rand(0, device="tpu"), torch.randn(2, 0, device="tpu")):
        assert x.numel() == 0
    assert torch.rand((), device="tpu").shape == ()
    assert torch.randn((), device="tpu").shape == ()
