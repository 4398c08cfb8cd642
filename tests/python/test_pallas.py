"""JAX and Pallas functions as ops: every mode, torch.compile, export, gradients, vmap, donation,
and what is traced when. Needs JAX, on the CPU only."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

jax = pytest.importorskip("jax")
jnp = jax.numpy
from jax.experimental import pallas as pl  # noqa: E402

import torch_tpu  # noqa: E402
from torch_tpu.pallas import custom_jax_kernel, jax_op  # noqa: E402


def unique(name):
    """An op's name that no other test has."""
    unique.count = getattr(unique, "count", 0) + 1
    return f"test_pallas::{name}_{unique.count}"


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def tanh_product(x, y, factor: float = 2.0):
    return jnp.tanh(x @ y) * factor


def tanh_reference(x, y, factor=2.0):
    return torch.tanh(x @ y) * factor


@pytest.fixture(params=["strict", "fused", "debug"])
def every_mode(request):
    with torch_tpu.mode(request.param):
        yield request.param


def test_values_and_gradients(every_mode):
    op = jax_op(unique("tanh"), tanh_product)
    # Small: 1 - tanh² cancels where it saturates.
    x, y = (torch.rand(*size, requires_grad=True) for size in ((4, 5), (5, 3)))
    dx, dy = (t.detach().to("tpu").requires_grad_() for t in (x, y))
    out, expected = op(dx / 2, dy, 3.0) + 1, tanh_reference(x / 2, y, 3.0) + 1
    torch.testing.assert_close(out.cpu(), expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(dx.grad.cpu(), x.grad)
    torch.testing.assert_close(dy.grad.cpu(), y.grad)


def test_the_op_is_a_torch_library_op():
    op = jax_op(unique("tanh"), tanh_product)
    assert isinstance(op.op, torch._ops.OpOverload)
    assert str(op.op._schema) == f"{op.name}(Tensor x, Tensor y, float factor=2.) -> Tensor"
    x, y = torch.randn(4, 5, device="tpu"), torch.randn(5, 3, device="tpu")
    torch.testing.assert_close(op.op(x, y, factor=2.0), op(x=x, y=y))
    with torch.library._scoped_library("unused", "FRAGMENT"):
        torch.library.opcheck(op.op, (x, y), test_utils=("test_schema", "test_faketensor"))


def test_jax_is_asked_once_per_key():
    calls = []

    def traced(x, n: int = 1):
        calls.append((x.shape, n))
        return x * n

    op = jax_op(unique("traced"), traced)
    x = torch.ones(3, device="tpu")
    for mode in ("strict", "fused", "strict"):
        with torch_tpu.mode(mode):
            for _ in range(3):
                assert op(x, 2).sum() == 6
    assert calls == [((3,), 2)]
    assert op(torch.ones(4, device="tpu"), 2).sum() == 8
    assert op(x, 3).sum() == 9
    assert len(calls) == 3


def test_a_kernel_is_a_node_of_the_fused_trace():
    op = jax_op(unique("double"), lambda x: x * 2)
    with torch_tpu.mode("fused"):
        x = torch.arange(6.0, device="tpu")
        for _ in range(4):  # compiled once it has been seen
            y = op(op(x + 1).relu()).sum()
            assert y.item() == 84
        before = torch_tpu.stats()["compiles"]
        assert op(op(x + 1).relu()).sum().item() == 84
        assert torch_tpu.stats()["compiles"] == before


def test_numbers_that_are_traced_compile_nothing():
    op = jax_op(unique("scale"), lambda x, s=1.0: x * s, traced_argnames=("s",))
    x = torch.ones(3, device="tpu")
    for mode in ("strict", "fused"):
        with torch_tpu.mode(mode):
            for _ in range(3):  # the piece gets its program at second sight, in the background
                op(x, 0.5).sum().item()
            torch_tpu.fused.wait()
            before = torch_tpu.stats()["compiles"]
            assert [op(x, i / 4).sum().item() for i in range(4, 8)] == [3.0, 3.75, 4.5, 5.25]
            assert torch_tpu.stats()["compiles"] == before


def test_views_and_layouts_go_in():
    op = jax_op(unique("tanh"), tanh_product)
    x, y = torch.randn(6, 8), torch.randn(4, 6, 2)
    dx, dy = x.to("tpu"), y.to("tpu")
    out = op(dx.t()[1:5, ::2], dy[1, ::2].contiguous()[:, :1].expand(3, 2))
    torch.testing.assert_close(
        out.cpu(), tanh_reference(x.t()[1:5, ::2], y[1, ::2][:, :1].expand(3, 2))
    )


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.uint8, torch.int32, torch.bfloat16, torch.float16]
)
def test_dtypes(dtype):
    op = jax_op(unique("same"), lambda x: jnp.flip(x, 0))
    x = torch.tensor([0, 1, 1, 0, 1]).to(dtype)
    out = op(x.to("tpu"))
    assert out.dtype == dtype
    torch.testing.assert_close(out.cpu(), x.flip(0))


def test_wide_types_are_asked_for():
    x = torch.arange(3, device="tpu")
    narrow = jax_op(unique("more"), lambda x: x + 1)
    with pytest.raises(TypeError, match=r"'x' is int64\[3\].*define the kernel with x64=True"):
        narrow(x)
    wide = jax_op(unique("more"), lambda x: x + (1 << 40), x64=True)
    assert wide(x).tolist() == [(1 << 40) + i for i in range(3)]
    assert wide(x.double()).dtype == torch.float64
    assert not jax.config.jax_enable_x64


def test_trees_of_outputs():
    def both(x):
        return {"sum": x.sum(), "parts": (x[:1], [x[1:]])}

    op = jax_op(unique("both"), both, outputs={"sum": 0, "parts": (0, [0])})
    x = torch.arange(3.0, device="tpu").requires_grad_()
    out = op(x)
    assert out["sum"].item() == 3
    assert [out["parts"][0].tolist(), out["parts"][1][0].tolist()] == [[0], [1, 2]]
    out["parts"][1][0].sum().backward()
    assert x.grad.tolist() == [0, 1, 1]

    @custom_jax_kernel(name=unique("pair"))
    def pair(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x + 1, x - 1

    assert [t.tolist() for t in pair(torch.ones(1, device="tpu"))] == [[2], [0]]


def test_lists_and_optional_arguments():
    def total(xs: list[jax.Array], bias: jax.Array | None = None, *, sign: str = "+"):
        out = sum(x.sum() for x in xs) * (1 if sign == "+" else -1)
        return out if bias is None else out + bias

    op = jax_op(unique("total"), total)
    xs = [torch.ones(n, device="tpu", requires_grad=n == 2) for n in (1, 2, 3)]
    assert op(xs).item() == 6
    assert op(xs, sign="-").item() == -6
    bias = torch.tensor(5.0, device="tpu", requires_grad=True)
    out = op(xs, bias)
    assert out.item() == 11
    (out * 3).backward()
    assert xs[1].grad.tolist() == [3, 3]
    assert xs[0].grad is None
    assert bias.grad.item() == 3


def test_a_backward_of_ones_own():
    def clipped(x, low: float = 0.0):
        return jnp.maximum(x, low)

    def straight_through(inputs, output, grad, low):
        assert output.shape == inputs[0].shape
        return (grad * 10 + low,)

    op = jax_op(unique("clip"), clipped, backward=straight_through)
    x = torch.tensor([-1.0, 2.0], device="tpu", requires_grad=True)
    op(x, 0.5).sum().backward()
    assert x.grad.tolist() == [10.5, 10.5]

    bad = jax_op(unique("clip"), clipped, backward=lambda inputs, output, grad, low: (grad[:1],))
    with pytest.raises(RuntimeError, match=r"gradient of shape \(1,\) for tensor 0"):
        bad(x).sum().backward()


def test_second_derivatives():
    op = jax_op(unique("tanh"), tanh_product)
    x, y = torch.randn(4, 5), torch.randn(5, 3)
    grads = []
    for f, a, b in ((op, x.to("tpu"), y.to("tpu")), (tanh_reference, x, y)):
        a = a.requires_grad_()
        (first,) = torch.autograd.grad(f(a, b).sum(), a, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), a)
        grads.append(second.cpu())
    torch.testing.assert_close(*grads)


def test_vmap():
    op = jax_op(unique("tanh"), tanh_product)
    xs, y = torch.randn(4, 7, 5), torch.randn(5, 3)
    out = torch.vmap(op, in_dims=(1, None))(xs.to("tpu"), y.to("tpu"))
    torch.testing.assert_close(out.cpu(), tanh_reference(xs.transpose(0, 1), y))
    both = torch.vmap(torch.vmap(op, in_dims=(0, None)), in_dims=(0, None))
    xs = torch.randn(2, 3, 4, 5)
    torch.testing.assert_close(both(xs.to("tpu"), y.to("tpu")).cpu(), tanh_reference(xs, y))
    dy = y.to("tpu")
    grads = torch.vmap(torch.func.grad(lambda x: op(x, dy).sum()))(xs[0].to("tpu"))
    expected = torch.vmap(torch.func.grad(lambda x: tanh_reference(x, y).sum()))(xs[0])
    torch.testing.assert_close(grads.cpu(), expected)


def update(cache, x, at: int = 0):
    return jax.lax.dynamic_update_slice(cache, x[None], (at, 0)), x.sum()


def test_donated_arguments(every_mode):
    op = jax_op(unique("update"), update, outputs=2, donate_argnames=("cache",))
    assert "Tensor(a0!) cache" in str(op.op._schema)
    cache = torch.zeros(3, 2, device="tpu")
    version = cache._version
    new, total = op(cache, torch.tensor([1.0, 2.0], device="tpu"), 1)
    assert new is cache
    assert cache._version == version + 1
    assert total.item() == 3
    assert cache.tolist() == [[0, 0], [1, 2], [0, 0]]
    view = torch.zeros(4, 3, 2, device="tpu")  # written through a view of it
    op(view[2], torch.ones(2, device="tpu"), 2)
    assert view.sum().item() == view[2, 2].sum().item() == 2
    with pytest.raises(RuntimeError, match=r"has no gradient, but 'cache' requires one"):
        op(cache.requires_grad_(), torch.ones(2, device="tpu"))


def test_donation_takes_the_memory():
    op = jax_op(unique("update"), update, outputs=2, donate_argnames={"cache": 0})
    cache, x = torch.zeros(1000, 100, device="tpu"), torch.ones(100, device="tpu")
    with torch_tpu.mode("strict"):
        op(cache, x)
        torch.tpu.synchronize()
        torch.tpu.reset_peak_memory_stats()
        before = torch.tpu.memory_allocated()
        op(cache, x)
        torch.tpu.synchronize()
        assert torch.tpu.max_memory_allocated() - before < cache.nbytes
    bad = jax_op(unique("update"), lambda c, x: c[1:], donate_argnames=("c",))
    with pytest.raises(RuntimeError, match=r"'c' is float32\[3\].*result.*is float32\[2\]"):
        bad(torch.zeros(3, device="tpu"), x)


def test_compile():
    op = jax_op(unique("tanh"), tanh_product)
    store = jax_op(unique("update"), update, outputs=2, donate_argnames=("cache",))

    @torch.compile(fullgraph=True)
    def step(x, y, cache):
        out = op(x, y).relu()
        new, total = store(cache, out[0], 1)
        return out, total + new.sum()

    x, y = torch.randn(4, 5), torch.randn(5, 3)
    dx, cache = x.to("tpu").requires_grad_(), torch.zeros(2, 3, device="tpu")
    x.requires_grad_()
    with torch.no_grad():
        out, total = step(dx, y.to("tpu"), cache)
    expected = tanh_reference(x, y).relu()
    torch.testing.assert_close(out.cpu(), expected.detach())
    torch.testing.assert_close(total.item(), 2 * expected[0].sum().item())
    torch.testing.assert_close(cache[1].cpu(), expected[0].detach())

    graph = torch.compile(lambda x, y: op(x, y).square().sum(), fullgraph=True)
    graph(dx, y.to("tpu")).backward()
    tanh_reference(x, y).square().sum().backward()
    torch.testing.assert_close(dx.grad.cpu(), x.grad)
    for rows in (6, 7):  # another size: traced again, whatever Dynamo makes of it
        more = torch.randn(rows, 5)
        torch.testing.assert_close(
            graph(more.to("tpu"), y.to("tpu")).cpu(), tanh_reference(more, y).square().sum()
        )


def test_export(tmp_path):
    op = jax_op(unique("tanh"), tanh_product)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(5, 3))

        def forward(self, x):
            return op(x, self.weight) + 1

    model = Model().to("tpu").eval()
    x = torch.randn(2, 5, device="tpu")
    torch_tpu.export(model, (x,), path=tmp_path / "model")
    torch.testing.assert_close(torch_tpu.load(tmp_path / "model")(x), model(x))


def block_sum(x):
    """Sums of 128 columns at a time: blocks, a grid, an accumulator."""

    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...].sum(axis=1, keepdims=True)

    rows, columns = x.shape
    return pl.pallas_call(
        kernel,
        grid=(rows // 8, columns // 128),
        in_specs=[pl.BlockSpec((8, 128), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((8, 1), lambda i, j: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, 1), x.dtype),
    )(x)


def test_pallas(every_mode):
    op = jax_op(unique("sums"), block_sum, differentiable=False)
    x = torch.randn(16, 384)
    torch.testing.assert_close(op(x.to("tpu")).cpu(), x.sum(1, keepdim=True))


def test_two_kernels_with_functions_of_the_same_names_share_a_program():
    one = jax_op(unique("one"), lambda x: jnp.where(x > 0, x, 0) + jax.nn.silu(x))
    two = jax_op(unique("two"), lambda x: jnp.where(x < 1, x, 2) * jax.nn.silu(x))

    @torch.compile(fullgraph=True)
    def f(x):
        return two(one(x)) + one(two(x))

    x = torch.randn(50)

    def reference_one(x):
        return x.relu() + torch.nn.functional.silu(x)

    def reference_two(x):
        return torch.where(x < 1, x, 2) * torch.nn.functional.silu(x)

    expected = reference_two(reference_one(x)) + reference_one(reference_two(x))
    torch.testing.assert_close(f(x.to("tpu")).cpu(), expected)


def test_a_name_can_be_defined_again(every_mode):
    name = unique("again")
    x = torch.ones(2, device="tpu")
    assert jax_op(name, lambda x: x + 1)(x).tolist() == [2, 2]
    assert jax_op(name, lambda x, y=1: x + 2 * y)(x).tolist() == [3, 3]
    assert getattr(torch.ops.test_pallas, name.split("::")[1])(x).tolist() == [3, 3]


def test_other_functions_for_other_compilers():
    op = jax_op(unique("here"), lambda x: x, platforms={"cpu": lambda x: x + 1})
    kind = torch_tpu._C._device_properties(0)["platform_kind"]
    assert op(torch.zeros(1, device="tpu")).item() == (1 if kind == "cpu" else 0)
    with pytest.raises(ValueError, match="platforms are"):
        jax_op(unique("here"), lambda x: x, platforms={"rocm": lambda x: x})


DISK = """
import sys, torch, torch_tpu
factor = float(sys.argv[1])
op = torch_tpu.jax_op("disk::scale", lambda x: x * factor)
with torch_tpu.mode("strict"):
    print(op(torch.ones(3, device="tpu")).sum().item(), torch_tpu.stats()["compiles"])
"""


def test_programs_on_disk_are_found_by_what_they_do(tmp_path):
    env = {**os.environ, "TORCH_TPU_CACHE_DIR": str(tmp_path)}
    said = []
    for factor in ("2", "2", "3"):
        done = subprocess.run(
            [sys.executable, "-c", DISK, factor], capture_output=True, text=True, env=env
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split())
    assert [s[0] for s in said] == ["6.0", "6.0", "9.0"]
    assert int(said[0][1]) > 0
    assert said[1][1] == "0"  # the second process compiled nothing
    assert said[2][1] == "1"  # the kernel changed, the sum did not


def test_threads():
    op = jax_op(unique("tanh"), tanh_product)
    x, y = torch.randn(4, 5), torch.randn(5, 3)
    failures = []

    def work(n):
        try:
            out = op((x[:n] + 0).to("tpu"), y.to("tpu"))
            torch.testing.assert_close(out.cpu(), tanh_reference(x[:n], y))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(1 + i % 4,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
