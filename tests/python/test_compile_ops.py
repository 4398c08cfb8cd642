"""torch.compile on the device against the CPU: ops of each kind with PyTorch's own samples, and
arguments and results that are more than a dense tensor. `make conformance` runs every OpInfo."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

pytest.importorskip("expecttest")

from tests.conformance.compile_checks import check_compiled
from tests.conformance.op_checks import DTYPES, OPS, dtypes_of

ONE_PROGRAM = (
    *("add", "mul", "div.floor_rounding", "where", "clamp", "masked_fill", "sigmoid", "to"),
    *("sum", "var_mean", "logsumexp", "argmax", "cumsum", "sort", "topk", "histc"),
    *("cat", "stack", "split", "index_select", "gather", "scatter_add", "index_put", "diagonal"),
    *("as_strided", "expand", "view_as_complex", "conj", "real", "T", "unfold", "clone"),
    *("matmul", "baddbmm", "einsum", "linalg.cholesky", "linalg.svd", "fft.fft"),
    *("nn.functional.conv2d", "nn.functional.layer_norm", "nn.functional.batch_norm"),
    *("nn.functional.cross_entropy", "nn.functional.scaled_dot_product_attention"),
    *("nn.functional.embedding", "nn.functional.max_pool2d", "nn.functional.gelu", "randn_like"),
)
# Dynamo leaves them to eager, or they need what only values say.
IN_PARTS = ("nonzero", "item", "unique", "nn.functional.dropout", "linalg.eig")


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ONE_PROGRAM + IN_PARTS)
def test_op(name: str) -> None:
    found = dtypes_of(OPS[name])
    found_in = check_compiled(name, DTYPES[found[0]], most=1)
    assert found_in["samples"] == 1
    if name in ONE_PROGRAM:
        assert found_in["graphs"] > 0
        assert found_in["op_by_op"] == []


def numbers(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = torch.Size(sizes).numel()
    return torch.arange(1, count + 1, dtype=dtype).reshape(sizes)


def compare(
    function: Callable[..., Any],
    arguments: Callable[[str], tuple[Any, ...]],
    *,
    dynamic: bool = False,
    one_program: bool = True,
) -> None:
    """Results and arguments after each of three calls; no graph runs op by op."""
    compiled = torch.compile(function, backend="tpu", dynamic=dynamic)
    theirs, ours = arguments("cpu"), arguments("tpu")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            expected, actual = function(*theirs), compiled(*ours)
            pairs = zip(tree_leaves((actual, ours)), tree_leaves((expected, theirs)), strict=True)
            for x, y in pairs:
                if isinstance(y, torch.Tensor):
                    assert torch.equal(x.cpu().resolve_conj(), y.resolve_conj())
                    assert x.dtype == y.dtype
                else:
                    assert x == y
    if one_program:
        assert [w for w in caught if "op by op" in str(w.message)] == []


def views_of_one(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    base = numbers(4, 3).to(device)
    return base[:2], base[2:]


def test_two_views_of_one_storage_are_both_written() -> None:
    compare(lambda x, y: (x.add_(1), y.mul_(2)), views_of_one)


def test_a_program_for_separate_storages_does_not_take_shared_ones() -> None:
    compiled = torch.compile(lambda x, y: (x.add_(1), y.mul_(2)), backend="tpu")
    compiled(numbers(2, 3).to("tpu"), numbers(2, 3).to("tpu"))
    x, y = views_of_one("tpu")
    compiled(x, y)
    expected = torch.cat([numbers(4, 3)[:2] + 1, numbers(4, 3)[2:] * 2])
    assert torch.equal(torch.cat([x, y]).cpu(), expected)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x.view(torch.int32),
        lambda x: x[:, 1:3],
        lambda x: torch.as_strided(x, (2, 3), (1, 4), 1),
    ],
    ids=["transposed", "another dtype", "columns", "strided"],
)
def test_written_views(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    compare(lambda x: x.add_(1), lambda device: (view(numbers(3, 4).to(device)),))
    compare(lambda x: view(x).add_(1), lambda device: (numbers(3, 4).to(device),))


def test_memory_that_nobody_wrote() -> None:
    compare(lambda x, out: out.copy_(x), lambda d: (numbers(4).to(d), torch.empty(4, device=d)))
    compare(lambda x, y: torch.cat([x, y]), lambda d: (numbers(2).to(d), torch.empty(0, device=d)))


def test_expanded_results_stay_small() -> None:
    compiled = torch.compile(lambda x: (x * 2).expand(1000, 3), backend="tpu")
    result = compiled(numbers(3).to("tpu"))
    assert torch.equal(result.cpu(), (numbers(3) * 2).expand(1000, 3))
    assert result.stride() == (0, 1)
    assert result.untyped_storage().nbytes() == 12
    compare(lambda x: x.sum(1, keepdim=True).expand(2, 3, 4), lambda d: (numbers(3, 4).to(d),))


def test_results_that_share_memory_still_do() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y.view(-1), y.t(), y[1:], x + 1

    for compiled in (function, torch.compile(function, backend="tpu")):
        device = "cpu" if compiled is function else "tpu"
        first, flat, turned, rest, other = compiled(numbers(3, 4).to(device))
        flat.add_(100)
        rest[0].zero_()
        expected = numbers(3, 4) * 2 + 100
        expected[1] = 0
        assert torch.equal(first.cpu(), expected)
        assert torch.equal(turned.cpu(), expected.t())
        assert torch.equal(other.cpu(), numbers(3, 4) + 1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_in_the_memory_of_an_argument(dynamic: bool) -> None:
    def function(x: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
        return x[1:], x.narrow(1, 2, n), x.t()[0], x * 2

    compiled = torch.compile(function, backend="tpu", dynamic=dynamic)
    x = numbers(5, 6)
    on_device = x.to("tpu")
    results, expected = compiled(on_device, 3), function(x, 3)
    for ours, theirs in zip(results, expected, strict=True):
        assert torch.equal(ours.cpu(), theirs)
        assert ours.storage_offset() == theirs.storage_offset()
    results[1].zero_()
    expected[1].zero_()
    assert torch.equal(on_device.cpu(), x)


def test_what_backward_needs_may_not_be_written() -> None:
    weight = numbers(4, 4).to("tpu").requires_grad_()
    compiled = torch.compile(lambda x, w: (x @ w.t()).sin(), backend="tpu")
    result = compiled(numbers(2, 4).to("tpu").requires_grad_(), weight)
    with torch.no_grad():
        weight.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_errors_of_values_are_raised() -> None:
    compiled = torch.compile(torch.linalg.cholesky, backend="tpu")
    assert torch.equal(compiled(torch.eye(2, device="tpu")).cpu(), torch.eye(2))
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        compiled(-torch.eye(2, device="tpu")).cpu()


def test_lazy_bits() -> None:
    def arguments(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.complex(numbers(3), -numbers(3)).to(device)
        return x.conj(), x.conj().imag

    compare(lambda x, y: (x * 2, y + 1, (x * 2).conj(), x.imag), arguments)


def test_cpu_tensors_and_numbers() -> None:
    compare(
        lambda x, s, n: (x * s, s + 1, x.shape[0] * n, None, torch.full((n,), 2.0).to(x.device)),
        lambda device: (numbers(3).to(device), torch.tensor(2.5), 3),
    )
    compare(lambda x: (x.cpu() + 1, x.sum(dtype=torch.float64)), lambda d: (numbers(3).to(d),))


def test_sizes_as_symbols() -> None:
    compare(
        lambda x, n: (x.reshape(-1) * n, torch.arange(x.shape[0], device=x.device), x.numel()),
        lambda device: (numbers(3, 4).to(device), 5),
        dynamic=True,
    )


def test_random_state_is_read_and_set() -> None:
    def draw_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.tpu.get_rng_state()
        first = torch.rand_like(x) * x
        torch.tpu.set_rng_state(state)
        return first, torch.rand_like(x) * x

    compiled = torch.compile(draw_twice, backend="tpu")
    one = compiled(numbers(8).to("tpu"))
    two = compiled(numbers(8).to("tpu"))
    assert torch.equal(*one)
    assert torch.equal(*two)
    assert not torch.equal(one[0], two[0])
