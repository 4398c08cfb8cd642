"""Every op that draws: on the device's own generator, by its seed, independent, and checked.

Whether each has the right distribution is in test_random.py; here are also the classes of
torch.distributions, which are built on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributions as D
import torch.nn.functional as F

import torch_tpu

N = 4000


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="tpu")


def full(value: float, *shape: int) -> torch.Tensor:
    return torch.full(shape or (64,), value, device="tpu")


DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "rand": lambda: torch.rand(64, device="tpu"),
    "rand_like": lambda: torch.rand_like(full(0.0)),
    "randn": lambda: torch.randn(64, device="tpu"),
    "randn_like": lambda: torch.randn_like(full(0.0)),
    "randn_complex": lambda: torch.randn(64, dtype=torch.complex64, device="tpu"),
    "randint": lambda: torch.randint(0, 10**6, (64,), device="tpu"),
    "randint_like": lambda: torch.randint_like(full(0.0), 10**6),
    "randperm": lambda: torch.randperm(64, device="tpu"),
    "uniform_": lambda: empty(64).uniform_(-2, 3),
    "normal_": lambda: empty(64).normal_(1, 2),
    "normal_tensors": lambda: torch.normal(full(1.0), full(2.0)),
    "normal_tensor_float": lambda: torch.normal(full(1.0), 2.0),
    "normal_float_tensor": lambda: torch.normal(1.0, full(2.0)),
    "bernoulli": lambda: full(0.5, 256).bernoulli(),
    "bernoulli_p": lambda: torch.bernoulli(full(0.0, 256), 0.5),
    "bernoulli_": lambda: empty(256).bernoulli_(0.5),
    "bernoulli_tensor_": lambda: empty(256).bernoulli_(full(0.5, 256)),
    "exponential_": lambda: empty(64).exponential_(2.0),
    "cauchy_": lambda: empty(64).cauchy_(),
    "log_normal_": lambda: empty(64).log_normal_(),
    "geometric_": lambda: empty(256).geometric_(0.1),
    "random_": lambda: empty(64, dtype=torch.int64).random_(),
    "random_to": lambda: empty(64, dtype=torch.int32).random_(10**6),
    "random_from": lambda: empty(64, dtype=torch.int64).random_(-(10**6), 10**6),
    "multinomial": lambda: full(1.0, 64).multinomial(32),
    "multinomial_again": lambda: full(1.0, 64).multinomial(32, replacement=True),
    "poisson": lambda: torch.poisson(full(50.0)),
    "binomial": lambda: torch.binomial(full(100.0), full(0.5)),
    "gamma": lambda: torch._standard_gamma(full(2.0)),
    "dirichlet": lambda: torch._sample_dirichlet(full(2.0, 16, 4)),
    "dropout": lambda: F.dropout(full(1.0, 256), 0.5),
    "native_dropout": lambda: torch.native_dropout(full(1.0, 256), 0.5, True)[0],
    "alpha_dropout": lambda: F.alpha_dropout(full(1.0, 256), 0.5, training=True),
    "feature_dropout": lambda: F.dropout2d(full(1.0, 16, 16, 2, 2), 0.5),
    "feature_alpha_dropout": lambda: F.feature_alpha_dropout(
        full(1.0, 16, 16, 2, 2), 0.5, training=True
    ),
    "rrelu": lambda: F.rrelu(full(-1.0), training=True),
    "gumbel_softmax": lambda: F.gumbel_softmax(full(0.0, 4, 16)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_from_the_device(name: str) -> None:
    """Never the CPU's generator, never the CPU's kernel; the seed decides; every call is new."""
    draw = DRAWS[name]
    host_state = torch.default_generator.get_state().clone()
    fell_back = set(torch_tpu.coverage())
    torch.tpu.manual_seed(3)
    offset = torch.tpu.default_generators[0].get_offset()
    first = draw().cpu()
    assert torch.tpu.default_generators[0].get_offset() > offset
    second = draw().cpu()
    torch.tpu.manual_seed(4)
    other = draw().cpu()
    torch.tpu.manual_seed(3)
    assert torch.equal(draw().cpu(), first)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)
    assert set(torch_tpu.coverage()) == fell_back
    assert torch.equal(torch.default_generator.get_state(), host_state)


# --- independence ---------------------------------------------------------------------------------


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.corrcoef(torch.stack([a.flatten().double(), b.flatten().double()]))[0, 1].item()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(200, 200, device="tpu"),
        lambda: torch.randn(200, 200, device="tpu"),
        lambda: empty(200, 200).exponential_(),
        lambda: torch.randint(0, 1000, (200, 200), device="tpu"),
        lambda: full(0.5, 200, 200).bernoulli(),
    ],
    ids=["uniform", "normal", "exponential", "integers", "bernoulli"],
)
def test_elements_and_calls_are_uncorrelated(draw: Callable[[], torch.Tensor]) -> None:
    limit = 5 / 200  # five standard deviations of 40,000 pairs
    torch.tpu.manual_seed(0)
    x, y = draw().cpu(), draw().cpu()
    torch.tpu.manual_seed(1)
    z = draw().cpu()  # of the next seed
    assert abs(correlation(x, y)) < limit
    assert abs(correlation(x, z)) < limit
    flat = x.flatten()
    for lag in (1, 2, 3, 4, 7, 64, 128, 200):
        assert abs(correlation(flat[:-lag], flat[lag:])) < limit
    assert abs(correlation(x[:, :100], x[:, 100:].flip(1))) < 1.5 * limit
    # Squares too: they show a dependence that cancels in the mean.
    centered = (x.double() - x.double().mean()) ** 2
    if centered.std() > 1e-9 and x.unique().numel() > 2:
        assert abs(correlation(centered[1:], centered[:-1])) < 1.5 * limit


def test_normal_pairs_are_independent() -> None:
    """Angles and radii of consecutive pairs: what a flawed transform would tie together."""
    x = torch.randn(20000, 2, device="tpu").cpu().double()
    angle = torch.atan2(x[:, 1], x[:, 0])
    counts = torch.histc(angle, 16, -torch.pi, torch.pi)
    assert ((counts - 1250).abs() < 5 * 1250**0.5).all()
    assert abs(correlation(angle, (x**2).sum(1))) < 5 / 20000**0.5


def test_randperm_is_even() -> None:
    """Each of the 24 orders of 4 elements, equally often."""
    draws = torch.tensor([torch.randperm(4, device="tpu").tolist() for _ in range(1200)])
    codes = (draws * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = torch.unique(codes, return_counts=True)[1]
    assert counts.numel() == 24
    assert ((counts - 50).abs() < 5 * 50**0.5).all()


# --- arguments ------------------------------------------------------------------------------------

NAN = float("nan")


@pytest.mark.parametrize(
    "draw",
    [
        lambda d: torch.tensor([0.5, 2.0], device=d).bernoulli(),
        lambda d: torch.tensor([-1.0], device=d).bernoulli(),
        lambda d: torch.tensor([NAN], device=d).bernoulli(),
        lambda d: torch.empty(1, device=d).bernoulli_(torch.tensor([1.5], device=d)),
        lambda d: torch.empty(1, device=d).bernoulli_(-0.1),
        lambda d: torch.empty(1, device=d).exponential_(0.0),
        lambda d: torch.empty(1, device=d).cauchy_(0, 0),
        lambda d: torch.empty(1, device=d).log_normal_(0, 0),
        lambda d: torch.empty(1, device=d).geometric_(1.0),
        lambda d: torch.empty(1, device=d).normal_(0, -1),
        lambda d: torch.normal(torch.zeros(2, device=d), torch.tensor([1.0, -1.0], device=d)),
        lambda d: torch.normal(torch.zeros(2, device=d), torch.tensor([1j, 1], device=d)),
        lambda d: torch.empty(1, device=d).uniform_(2, 1),
        lambda d: torch.empty(1, device=d).uniform_(0, float("inf")),
        lambda d: torch.empty(1, device=d).uniform_(NAN, 1),
        lambda d: torch.empty(1, device=d).uniform_(-3e38, 3e38),
        lambda d: torch.empty(1, device=d, dtype=torch.float16).uniform_(0, 1e5),
        lambda d: torch.randint(5, 5, (3,), device=d),
        lambda d: torch.randint(0, 300, (3,), dtype=torch.uint8, device=d),
        lambda d: torch.randint(0, 100000, (3,), dtype=torch.float16, device=d),
        lambda d: torch.randperm(300, dtype=torch.uint8, device=d),
        lambda d: torch.randperm(3000, dtype=torch.float16, device=d),
        lambda d: torch.ones(2, device=d).multinomial(3),
        lambda d: torch.ones(2, device=d).multinomial(0),
        lambda d: torch.ones(2, device=d, dtype=torch.int64).multinomial(1),
        lambda d: torch.tensor([float("inf"), 1.0], device=d).multinomial(1),
        lambda d: torch.tensor([[1.0, 1.0], [0.0, 0.0]], device=d).multinomial(1),
        lambda d: torch.poisson(torch.tensor([-1.0], device=d)),
        lambda d: torch.binomial(torch.tensor([5], device=d), torch.tensor([0.5], device=d)),
    ],
)
def test_bad_arguments_as_on_the_cpu(draw: Callable[[str], torch.Tensor]) -> None:
    with pytest.raises((RuntimeError, ValueError)) as expected:
        draw("cpu")
    with pytest.raises(expected.type) as got:
        draw("tpu").cpu()
    # Numbers known only to the device are not in the text.
    first, words = str(got.value).splitlines()[0], str(expected.value)
    assert first[:30].lower() == words[:30].lower()


@pytest.mark.parametrize(
    "draw",
    [
        torch._standard_gamma,
        lambda x: torch.binomial(x, torch.full_like(x, 0.5)),
        lambda x: torch.binomial(torch.full_like(x, 5.0), x.clamp(0, 1)),
    ],
    ids=["gamma", "count", "probability"],
)
def test_no_parameter_hangs_the_device(draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = draw(torch.tensor([NAN, float("inf"), -1.0, 1e30, 3.0], device="tpu")).cpu()
    assert x[0].isnan()
    assert x[-1] >= 0


# --- torch.distributions --------------------------------------------------------------------------


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Kolmogorov-Smirnov between two samples."""
    a, b = a.flatten().double().sort().values, b.flatten().double().sort().values
    both = torch.cat([a, b])
    ranks = [torch.searchsorted(x, both, right=True) / x.numel() for x in (a, b)]
    return (ranks[0] - ranks[1]).abs().max().item()


def t(*values: float) -> Callable[[str], torch.Tensor]:
    return lambda device: torch.tensor(values, device=device)


DISTRIBUTIONS: dict[str, Callable[[Any], D.Distribution]] = {
    "normal": lambda d: D.Normal(t(1.0)(d), t(2.0)(d)),
    "uniform": lambda d: D.Uniform(t(-1.0)(d), t(2.0)(d)),
    "laplace": lambda d: D.Laplace(t(1.0)(d), t(2.0)(d)),
    "gumbel": lambda d: D.Gumbel(t(1.0)(d), t(2.0)(d)),
    "cauchy": lambda d: D.Cauchy(t(1.0)(d), t(2.0)(d)),
    "half_cauchy": lambda d: D.HalfCauchy(t(2.0)(d)),
    "half_normal": lambda d: D.HalfNormal(t(2.0)(d)),
    "log_normal": lambda d: D.LogNormal(t(0.0)(d), t(1.0)(d)),
    "exponential": lambda d: D.Exponential(t(2.0)(d)),
    "gamma": lambda d: D.Gamma(t(2.0)(d), t(3.0)(d)),
    "beta": lambda d: D.Beta(t(0.5)(d), t(3.0)(d)),
    "chi2": lambda d: D.Chi2(t(3.0)(d)),
    "student_t": lambda d: D.StudentT(t(4.0)(d)),
    "f": lambda d: D.FisherSnedecor(t(5.0)(d), t(7.0)(d)),
    "weibull": lambda d: D.Weibull(t(1.0)(d), t(2.0)(d)),
    "pareto": lambda d: D.Pareto(t(1.0)(d), t(3.0)(d)),
    "kumaraswamy": lambda d: D.Kumaraswamy(t(2.0)(d), t(3.0)(d)),
    "von_mises": lambda d: D.VonMises(t(0.5)(d), t(2.0)(d)),
    "inverse_gamma": lambda d: D.InverseGamma(t(3.0)(d), t(2.0)(d)),
    "bernoulli": lambda d: D.Bernoulli(t(0.3)(d)),
    "geometric": lambda d: D.Geometric(t(0.3)(d)),
    "poisson": lambda d: D.Poisson(t(4.0)(d)),
    "binomial": lambda d: D.Binomial(20, t(0.3)(d)),
    "negative_binomial": lambda d: D.NegativeBinomial(t(5.0)(d), t(0.4)(d)),
    "categorical": lambda d: D.Categorical(t(0.1, 0.2, 0.7)(d)),
    "dirichlet": lambda d: D.Dirichlet(t(1.0, 2.0)(d)),
    "multinomial": lambda d: D.Multinomial(10, t(0.2, 0.3, 0.5)(d)),
    "relaxed_bernoulli": lambda d: D.RelaxedBernoulli(t(0.5)(d), t(0.3)(d)),
    "logistic_normal": lambda d: D.LogisticNormal(t(0.0)(d), t(1.0)(d)),
    "multivariate_normal": lambda d: D.MultivariateNormal(
        t(0.0, 1.0)(d), torch.tensor([[2.0, 0.5], [0.5, 1.0]], device=d)
    ),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution(name: str) -> None:
    """The CPU's sample and ours look like two samples of one distribution."""
    torch.manual_seed(5)
    expected = DISTRIBUTIONS[name]("cpu").sample((N,))
    host_state = torch.default_generator.get_state().clone()
    got = DISTRIBUTIONS[name]("tpu").sample((N,))
    assert got.device.type == "tpu"
    assert torch.equal(torch.default_generator.get_state(), host_state)
    got = got.cpu()
    assert got.shape == expected.shape
    last = got.shape[-1] if got.dim() > 1 else 1
    for column in range(last):
        a, b = (x.reshape(N, last)[:, column] for x in (got, expected))
        # A threshold that two samples of one distribution pass once in 10^5 times.
        assert distance(a, b) < 2.5 * (2 / N) ** 0.5
