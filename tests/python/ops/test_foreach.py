"""The _foreach_ ops against CPU, functional and in place, and that each is one program."""

import pytest
import torch

import torch_tpu

DTYPES = [torch.float32, torch.bfloat16, torch.int64]
SHAPES = [(3, 4), (5,), (), (0, 2)]


def tensors(dtype, low=1.0, high=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scale = lambda s: torch.rand(s, generator=generator) * (high - low) + low  # noqa: E731
    return [scale(s).to(dtype) for s in SHAPES]


def on_device(tree):
    if isinstance(tree, list):
        return [on_device(x) for x in tree]
    return tree.to("tpu") if isinstance(tree, torch.Tensor) else tree


def check(name, *args, **kwargs):
    """Compares the functional and the in-place form."""
    fn = getattr(torch, name)
    try:
        expected = fn(*args, **kwargs)
    except RuntimeError:
        pytest.skip("not on CPU either")
    actual = fn(*[on_device(a) for a in args], **kwargs)
    compare(actual, expected)
    in_place = getattr(torch, name + "_", None)
    if in_place is None or not isinstance(args[0], list):
        return
    host = [x.clone() for x in args[0]]
    try:
        in_place(host, *args[1:], **kwargs)
    except RuntimeError:
        return  # a float result does not fit an integer tensor
    device = on_device(args[0])
    in_place(device, *[on_device(a) for a in args[1:]], **kwargs)
    compare(device, host)


def compare(actual, expected):
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        half = e.dtype == torch.bfloat16
        torch.testing.assert_close(
            a.cpu(), e, rtol=1.6e-2 if half else None, atol=1e-2 if half else None, equal_nan=True
        )


UNARY = [
    "abs",
    "neg",
    "sign",
    "ceil",
    "floor",
    "trunc",
    "round",
    "frac",
    "reciprocal",
    "sqrt",
    "rsqrt",
    "exp",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "sigmoid",
    "erf",
    "erfc",
    "lgamma",
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype):
    low, high = (0.0, 0.9) if name in ("asin", "acos", "tan") else (0.3, 3.0)
    check("_foreach_" + name, tensors(dtype, low, high))


BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "clamp_min", "clamp_max", "pow"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, dtype):
    fn, self = "_foreach_" + name, tensors(dtype)
    check(fn, self, tensors(dtype, seed=1))
    check(fn, self, 2)
    check(fn, self, [1, 2, 3, 2])


@pytest.mark.parametrize("name", ["mul", "div", "add"])
def test_one_tensor_for_all(name):
    for other in (torch.tensor(2.5), torch.tensor(2)):
        check("_foreach_" + name, tensors(torch.float32), other)


def test_host_scalar_tensor():
    self = tensors(torch.float32)
    factor = torch.tensor(0.5)  # stays on the host
    compare(torch._foreach_mul(on_device(self), factor), torch._foreach_mul(self, factor))


def test_alpha():
    self, other = tensors(torch.float32), tensors(torch.float32, seed=1)
    check("_foreach_add", self, other, alpha=0.3)
    check("_foreach_sub", self, other, alpha=0.3)


def test_pow():
    self = tensors(torch.float32)
    for exponent in (0, 1, 2, 3, 0.5, -0.5, 1.7, -1):
        check("_foreach_pow", self, exponent)
    check("_foreach_pow", 2.0, self)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
def test_pointwise(name, dtype):
    self, one, two = tensors(dtype), tensors(dtype, seed=1), tensors(dtype, seed=2)
    fn = "_foreach_" + name
    check(fn, self, one, two)
    check(fn, self, one, two, value=2)
    check(fn, self, one, two, [1, 2, 3, 4])


def test_lerp():
    self, end = tensors(torch.float32), tensors(torch.float32, seed=1)
    check("_foreach_lerp", self, end, 0.3)
    check("_foreach_lerp", self, end, 0.8)
    check("_foreach_lerp", self, end, tensors(torch.float32, 0.0, 1.0, seed=2))


@pytest.mark.parametrize("ord", [0, 1, 2, 3, torch.inf])
def test_norm(ord):
    for dtype in (torch.float32, torch.bfloat16):
        check("_foreach_norm", tensors(dtype), ord)
    check("_foreach_norm", tensors(torch.float32), ord, dtype=torch.float64)


def test_max():
    check("_foreach_max", tensors(torch.float32)[:3])


def test_copy_and_zero():
    host, device = tensors(torch.float32), on_device(tensors(torch.float32))
    source = tensors(torch.bfloat16, seed=3)
    torch._foreach_copy_(host, source)
    torch._foreach_copy_(device, on_device(source))
    compare(device, host)
    torch._foreach_copy_(device, host)  # from the host
    compare(device, host)
    torch._foreach_zero_(device)
    assert all((x == 0).all() for x in device)


def test_mixed_dtypes():
    self = [torch.rand(3), torch.arange(4), torch.rand(2).bfloat16()]
    check("_foreach_add", self, 0.5)
    check("_foreach_mul", self, [2, 3.5, 0.25])


def test_one_program():
    with torch_tpu.mode("strict"):
        self = [torch.rand(i + 1, device="tpu") for i in range(20)]
        torch._foreach_add_(self, 1.0)
        before = torch_tpu.stats()
        torch._foreach_add_(self, 2.0)
        after = torch_tpu.stats()
    assert after["hits"] + after["misses"] == before["hits"] + before["misses"] + 1
    assert after["misses"] == before["misses"]


def test_clip_grad_norm():
    results = []
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.zeros(3, 4).to(device)) for _ in range(3)]
        for p in parameters:
            p.grad = torch.randn(3, 4).to(device)
        total = torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        results.append([total.cpu(), *(p.grad.cpu() for p in parameters)])
    compare(results[1], results[0])


@pytest.mark.parametrize(
    "numbers",
    [
        [0.5, 0.5, 0.5],
        [2, 2, 2],
        [0.0, -0.0, 0.0],
        [2, 0.5, 2],
        [0.5, 2, 0.5],
        [True, 1, 1.0],
        [2 + 1j, 2 + 1j, 2 + 1j],
        [float("nan")] * 3,
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_lists_that_repeat_a_number(numbers, dtype):
    """Such a number travels once; others, of one type or several, each on their own."""
    host = [torch.full((2,), v, dtype=dtype) for v in (1, -2, 3)]
    device = [x.to("tpu") for x in host]
    for op in (torch._foreach_mul, torch._foreach_add):
        for got, expected in zip(op(device, numbers), op(host, numbers), strict=True):
            torch.testing.assert_close(got.cpu(), expected, equal_nan=True)
            if expected.is_floating_point():
                assert torch.equal(got.cpu().signbit(), expected.signbit())


def test_a_repeated_number_may_change():
    xs = [torch.ones(3, device="tpu") for _ in range(4)]
    torch._foreach_mul(xs, [0.5] * 4)
    before = torch_tpu.stats()["misses"]
    for number in (0.25, 3.0):
        assert all((y == number).all() for y in torch._foreach_mul(xs, [number] * 4))
    assert torch_tpu.stats()["misses"] <= before + 2  # the comparison's own programs
    results = torch._foreach_mul(xs, [1.0, 2.0, 3.0, 4.0])
    assert [y[0].item() for y in results] == [1.0, 2.0, 3.0, 4.0]
