"""Calls that reach us as C++ functions, without boxed arguments: results, errors, lifetimes."""

import gc
import sys
import weakref
from collections.abc import Callable

import pytest
import torch

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])

FORMS: dict[str, Callable[..., torch.Tensor]] = {
    "T": lambda x, y: torch.relu(x),
    "TT": lambda x, y: x * y,
    "TN": lambda x, y: torch.eq(x, 3.0),
    "TTT": lambda x, y: torch.where(x > 0, x, y),
    "TTN": lambda x, y: torch.add(x, y, alpha=2),
    "TTTN": lambda x, y: torch.addcmul(x, y, y, value=3),
    "TTTNN": lambda x, y: torch.addmm(x, x, y, beta=2, alpha=3),
    "in place T": lambda x, y: x.exp_(),
    "in place TT": lambda x, y: x.mul_(y),
    "in place TN": lambda x, y: x.clamp_min_(0.5),
    "in place TTN": lambda x, y: x.sub_(y, alpha=2),
    "in place TTT": lambda x, y: x.lerp_(y, y),
    "in place TTTN": lambda x, y: x.addcdiv_(y, y, value=3),
}


@pytest.mark.parametrize("form", FORMS)
def test_results_and_references(form: str) -> None:
    x, y = X.clone().to("tpu"), (X + 1).to("tpu")
    counts = sys.getrefcount(x), sys.getrefcount(y)
    for _ in range(3):
        result = FORMS[form](x, y)
        if form.startswith("in place"):
            assert result is x
        del result
    assert (sys.getrefcount(x), sys.getrefcount(y)) == counts
    expected, other = X.clone(), X + 1
    for _ in range(3):
        FORMS[form](expected, other)
    torch.testing.assert_close(FORMS[form](x, y).cpu(), FORMS[form](expected, other))
    gone = weakref.ref(y)
    del y
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("form", [form for form in FORMS if form != "TN"])
def test_errors_give_the_arguments_back(form: str) -> None:
    x, y = X.clone().to("tpu"), torch.ones(3, 5, device="tpu")
    if form == "T":
        x = x > 0
    if form.startswith("in place"):
        x = x.to(torch.complex64) if form == "in place TN" else x.long()
    counts = sys.getrefcount(x), sys.getrefcount(y)
    with pytest.raises((RuntimeError, TypeError, ValueError, NotImplementedError)):
        FORMS[form](x, y)
    gc.collect()
    assert (sys.getrefcount(x), sys.getrefcount(y)) == counts


def test_an_undefined_gradient() -> None:
    x = X.clone().to("tpu").requires_grad_()
    a, _ = (x * 2).unbind()
    a.sum().backward()  # the gradient of the other is undefined
    assert x.grad is not None
    assert x.grad.tolist() == [[2.0, 2.0], [0.0, 0.0]]


def test_recorded_by_compile() -> None:
    x, y = X.clone().to("tpu"), (X + 1).to("tpu")
    compiled = torch.compile(lambda x, y: torch.addmm(x, x, y, beta=2).relu_() * y, backend="tpu")
    torch.testing.assert_close(
        compiled(x, y).cpu(), torch.addmm(X, X, X + 1, beta=2).relu() * (X + 1)
    )
