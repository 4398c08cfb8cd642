"""Matrix products: every op against CPU, scalars as runtime values, dtype errors."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops.harness import COMPLEX, FLOAT, FLOATS, Case, cases

import torch_tpu
from torch_tpu import _C

NUMBERS = (*FLOATS, torch.int64, *COMPLEX)


@cases(
    Case("mm", torch.mm, lambda make: (make(3, 4), make(4, 5)), dtypes=NUMBERS),
    Case("mm-transposed", torch.mm, lambda make: (make(4, 3).t(), make(5, 4).t())),
    Case("mm-empty-sum", torch.mm, lambda make: (make(3, 0), make(0, 5))),
    Case("mm-empty", torch.mm, lambda make: (make(0, 4), make(4, 5))),
    Case("bmm", torch.bmm, lambda make: (make(2, 3, 4), make(2, 4, 5)), dtypes=NUMBERS),
    Case("addmm", torch.addmm, lambda make: (make(5), make(3, 4), make(4, 5)), dtypes=NUMBERS),
    Case(
        "addmm-scaled",
        torch.addmm,
        lambda make: (make(3, 5), make(3, 4), make(4, 5), {"beta": 2, "alpha": 3}),
        dtypes=NUMBERS,
    ),
    Case(
        "addmm-beta0",
        torch.addmm,
        lambda make: (make(3, 5) * torch.nan, make(3, 4), make(4, 5), {"beta": 0}),
        grad=False,
    ),
    Case(
        "baddbmm",
        torch.baddbmm,
        lambda make: (make(2, 3, 5), make(2, 3, 4), make(2, 4, 5), {"beta": 0.5, "alpha": 2}),
        dtypes=FLOATS,
    ),
    Case("addbmm", torch.addbmm, lambda make: (make(3, 5), make(2, 3, 4), make(2, 4, 5))),
    Case("mv", torch.mv, lambda make: (make(3, 4), make(4)), dtypes=NUMBERS),
    Case("addmv", torch.addmv, lambda make: (make(3), make(3, 4), make(4), {"alpha": 0.5})),
    Case("addr", torch.addr, lambda make: (make(3, 4), make(3), make(4)), dtypes=NUMBERS),
    Case("addr-bool", torch.addr, lambda make: (make(3, 4), make(3), make(4)), (torch.bool,)),
    Case("dot", torch.dot, lambda make: (make(5), make(5)), dtypes=NUMBERS),
    Case("vdot", torch.vdot, lambda make: (make(5), make(5)), dtypes=(*FLOAT, *COMPLEX)),
    Case("outer", torch.outer, lambda make: (make(3), make(4))),
    Case("matmul-batched", torch.matmul, lambda make: (make(2, 1, 3, 4), make(3, 4, 5))),
    Case("matmul-vector", torch.matmul, lambda make: (make(2, 3, 4), make(4))),
    Case(
        "einsum",
        lambda a, b: torch.einsum("bij,bkj->bik", a, b),
        lambda make: (make(2, 3, 4), make(2, 5, 4)),
    ),
    Case("linear", F.linear, lambda make: (make(2, 3, 4), make(5, 4), make(5)), dtypes=FLOATS),
    Case("linear-no-bias", F.linear, lambda make: (make(3, 4), make(5, 4)), (*FLOAT, *COMPLEX)),
    Case("linear-vector", F.linear, lambda make: (make(4), make(5, 4), make(5))),
    Case("linear-weight-vector", F.linear, lambda make: (make(3, 4), make(4))),
    Case("linear-empty", F.linear, lambda make: (make(0, 4), make(5, 4), make(5))),
    Case("bilinear", F.bilinear, lambda make: (make(6, 3), make(6, 4), make(5, 3, 4), make(5))),
    Case("cdist", torch.cdist, lambda make: (make(5, 3), make(4, 3))),
    Case("pdist", F.pdist, lambda make: (make(6, 3),)),
    Case("pdist-1", F.pdist, lambda make: (make(6, 3), 1.0)),
    Case("pdist-inf", F.pdist, lambda make: (make(6, 3), torch.inf)),
    Case("pdist-1.5", F.pdist, lambda make: (make(6, 3), 1.5)),
)
def test_matmul(case, dtype):
    case.check(dtype)


@pytest.mark.parametrize("use_gelu", [False, True])
def test_addmm_activation(use_gelu):
    args = torch.randn(5), torch.randn(3, 4), torch.randn(4, 5)
    want = torch._addmm_activation(*args, use_gelu=use_gelu)
    got = torch._addmm_activation(*(x.to("tpu") for x in args), use_gelu=use_gelu)
    torch.testing.assert_close(got.cpu(), want)


def test_half_accumulates_in_float32():
    a = torch.full((1, 4096), 1.0, dtype=torch.bfloat16, device="tpu")
    assert torch.mm(a, a.t()).item() == 4096


def test_linear_second_derivative():
    def second(device):
        torch.manual_seed(0)
        x, w, b = torch.randn(3, 4), torch.randn(2, 4), torch.randn(2)
        x, w, b = (v.to(device).requires_grad_() for v in (x, w, b))
        (gx,) = torch.autograd.grad((F.linear(x, w, b) ** 2).sum(), x, create_graph=True)
        return torch.autograd.grad((gx**2).sum(), (x, w))

    for got, want in zip(second("tpu"), second("cpu"), strict=True):
        torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize("shape", [(3, 4, 5), (40, 16, 50), (40, 19, 50), (40, 0, 50)])
def test_int64_products_wrap_as_on_the_cpu(shape):
    m, k, n = shape
    a, b = (torch.randint(-(2**62), 2**62, size) for size in ((2, m, k), (2, k, n)))
    for x, y in ((a, b), (a[0], b[0]), (a[0], b[0, :, 0]), (a[0], b)):
        assert torch.equal((x.to("tpu") @ y.to("tpu")).cpu(), x @ y)


def test_baddbmm_with_a_dtype():
    a, b, c = (torch.randn(shape).bfloat16() for shape in ((2, 3, 5), (2, 3, 4), (2, 4, 5)))
    got = torch.ops.aten.baddbmm.dtype(*(x.to("tpu") for x in (a, b, c)), torch.float32, beta=2)
    assert got.dtype == torch.float32
    want = torch.baddbmm(a.float(), b.float(), c.float(), beta=2)
    torch.testing.assert_close(got.cpu(), want)


def test_mixed_dtypes_are_refused():
    a = torch.ones(2, 3, device="tpu")
    b = torch.ones(3, 2, device="tpu", dtype=torch.float64)
    with pytest.raises(RuntimeError, match="expected m1 and m2 to have the same dtype"):
        torch.mm(a, b)


def test_precision_is_part_of_the_key():
    a = torch.randn(4, 4)
    want = a @ a
    before = torch_tpu._C._program_stats()["misses"]
    try:
        for precision in ("medium", "high", "medium"):
            torch.set_float32_matmul_precision(precision)
            torch.testing.assert_close((a.to("tpu") @ a.to("tpu")).cpu(), want)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch_tpu._C._program_stats()["misses"] == before + 2


LARGE, ODD, WIDE = 2048, 1031, 1024


@pytest.mark.parametrize(
    ("product", "shapes"),
    [
        (lambda a, b: [a @ b], [(LARGE, ODD), (ODD, WIDE)]),
        (lambda a, b: [a.t() @ b], [(LARGE, ODD), (LARGE, WIDE)]),
        (
            lambda g, x, w: torch.ops.aten.linear_backward(x, g, w, [True, True, False])[:2],
            [(LARGE, ODD), (LARGE, WIDE), (ODD, WIDE)],
        ),
    ],
    ids=["summed", "transposed", "linear_backward"],
)
def test_odd_rows_of_half_types_are_padded_for_cuda(
    product: Callable[..., Sequence[torch.Tensor]], shapes: list[tuple[int, int]]
) -> None:
    """Recorded for XLA:CUDA; the program itself is plain and runs here."""
    torch.manual_seed(0)
    args = [torch.randn(shape, dtype=torch.bfloat16) for shape in shapes]
    on_device = [t.to("tpu") for t in args]

    def record(end: Callable[[Any, list[torch.Tensor]], Any]) -> Any:
        with _C._Recording(0, platform="cuda") as recording, torch.no_grad():
            return end(recording, list(product(*map(recording.argument, on_device))))

    module = record(lambda recording, results: recording.module("padded", results))
    assert "stablehlo.pad" in module["text"]
    graph, others = record(lambda recording, results: recording.compile("padded", results, False))
    function = _C._CompiledFunction()
    function.add(graph, [], others)
    results = function(list(on_device))
    for result, right in zip(results, product(*(t.to("tpu").float() for t in args)), strict=True):
        assert result.shape == right.shape
        torch.testing.assert_close(result.float(), right, rtol=1e-2, atol=0.5)
