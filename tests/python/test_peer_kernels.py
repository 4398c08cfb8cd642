"""jax_op as clients of Google's torch-tpu use it: donated arguments by number, fake and gradient of
their own, functions with bound arguments, JaxCallable; HF kernels' example of an experts layer."""

from __future__ import annotations

import functools
import gc
import itertools

import pytest
import torch

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import torch_tpu  # noqa: E402
from torch_tpu._internal import pallas  # noqa: E402

_serial = itertools.count()


def unique(name: str) -> str:
    return f"test_peer_kernels::{name}_{next(_serial)}"


def core(
    x: jax.Array, state: jax.Array, *, factor: int, activation: object = None
) -> tuple[jax.Array, jax.Array]:
    return activation(x) * factor, state + x.sum()


@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_donated_by_number(mode):
    """The second argument takes the second result: the first of its sizes."""
    op = pallas.jax_op(
        unique("core"), functools.partial(core, factor=3, activation=jnp.tanh), donate_argnums=(1,)
    )
    assert str(op.op._schema).endswith("(Tensor x, Tensor state) -> (Tensor, Tensor)")
    x, state = torch.randn(4), torch.ones(700)
    with torch_tpu.mode(mode):
        given = state.to("tpu")
        out, after = op(x.to("tpu"), given)
        torch.testing.assert_close(out.cpu(), torch.tanh(x) * 3)
        torch.testing.assert_close(after.cpu(), state + x.sum())
        assert torch.equal(given, after)
        gc.collect()  # of what tests before this one have left
        torch.tpu.synchronize()
        held = torch.tpu.memory_allocated()
        given.copy_(after)  # as clients do: nothing moves
        torch.tpu.synchronize()
        assert torch.tpu.memory_allocated() <= held
    with pytest.raises(
        TypeError, match="argument 5 cannot be donated; its tensors are number 0, 1"
    ):
        pallas.jax_op(unique("bad"), lambda x, y: x + y, donate_argnums=(5,))


def test_fake_of_its_own_and_compile():
    seen = []
    op = pallas.jax_op(
        unique("core"), functools.partial(core, factor=2, activation=jnp.exp), donate_argnums=1
    )

    @op.register_fake
    def fake(x, state):
        seen.append(x.shape)
        return torch.empty_like(x), torch.empty_like(state)

    def f(x, state):
        out, after = op(x, state)
        state.copy_(after)
        return out + state.sum()

    x, state = torch.randn(4), torch.ones(3)
    given = state.to("tpu")
    out = torch.compile(f, fullgraph=True)(x.to("tpu"), given)
    assert seen
    torch.testing.assert_close(given.cpu(), state + x.sum())
    torch.testing.assert_close(out.cpu(), x.exp() * 2 + (state + x.sum()).sum())


def test_gradient_of_its_own():
    op = pallas.pallas.jax_op(unique("square"), lambda x: x * x)

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 100 * grad * x

    def keep(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    op.register_autograd(backward, setup_context=keep)
    for call in (op, op.op, torch.compile(lambda x: op(x), fullgraph=True)):
        x = torch.full((3,), 2.0, device="tpu", requires_grad=True)
        call(x).sum().backward()
        assert x.grad.tolist() == [200.0] * 3
    writes = pallas.jax_op(unique("add"), lambda c, x: c + x, donate_argnames=("c",))
    with pytest.raises(TypeError, match="it writes c, and such an op has no gradient"):
        writes.register_autograd(backward)


def test_meshes():
    mesh = torch_tpu.pallas.get_pallas_mesh(("data", "model"))
    op = pallas.jax_op(unique("double"), lambda x: x * 2, mesh=mesh, input_partition_specs=(None,))
    assert op(torch.ones(2, device="tpu")).tolist() == [2.0, 2.0]
    with pytest.raises(ValueError, match="for 1 ranks"):
        torch_tpu.pallas.get_pallas_mesh(("x",), (4,))
    four = jax.sharding.AbstractMesh((4,), ("x",))
    with pytest.raises(NotImplementedError, match=r"a mesh of 4 devices.*spmd\.per_device"):
        pallas.jax_op(unique("double"), lambda x: x * 2, mesh=four)


def test_jax_callable():
    """As Helion makes and subclasses it."""

    class Static(pallas.JaxCallable):
        __slots__ = ("extra",)

    made = Static(
        name="scale<add>",
        jit_fn=jax.jit(lambda x, out: (x * 2 + out, x.sum())),
        trace_key="scale_add_1",
        mesh=None,
        input_partition_specs=None,
        input_output_aliases={1: 0},
    )
    x, out = torch.arange(4.0, device="tpu"), torch.ones(4, device="tpu")
    results = made(x, out)
    assert out.tolist() == [1.0, 3.0, 5.0, 7.0]
    assert results[1].item() == 6.0
    assert made.output_shapes == {}
    like = pallas.jax_placeholder(torch.zeros(2, 3, dtype=torch.bfloat16))
    assert (like.shape, like.dtype) == ((2, 3), jnp.bfloat16)
    with pytest.raises(NotImplementedError, match="are not called by fingerprint"):
        pallas.tpu_torch_pallas.call_custom_kernel()


def test_jax_callables_of_one_name():
    """Each runs its own function; the same function is the same op."""
    twice, thrice = jax.jit(lambda x: x * 2), jax.jit(lambda x: x * 3)
    first = pallas.JaxCallable("scale", twice, "one_key")
    x = torch.ones(3, device="tpu")
    assert first(x).tolist() == [2.0] * 3
    compiled = torch.compile(lambda x: first(x) + 1, fullgraph=True)
    assert compiled(x).tolist() == [3.0] * 3
    second = pallas.JaxCallable("scale", thrice, "one_key")
    for _ in range(2):
        assert second(x).tolist() == [3.0] * 3
        assert first(x).tolist() == [2.0] * 3
        assert first(x[:2]).tolist() == [2.0] * 2  # traced anew
        assert compiled(x).tolist() == [3.0] * 3
    again = pallas.JaxCallable("scale", twice, "one_key")
    assert again._definition is first._definition
    assert again(x).tolist() == [2.0] * 3


def test_specs_of_a_jax_callable_are_refused():
    with pytest.raises(NotImplementedError, match=r"\[double\] input_partition_specs=\('x',\)"):
        pallas.JaxCallable("double", lambda x: x * 2, "key", input_partition_specs=("x",))


# As in HF kernels' example of experts on a TPU, with JAX's grouped product in tokamax's place.
DIMS = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(([1], [2]), ([], [])),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[0],
)


def experts(
    hidden: jax.Array,
    top_k_index: jax.Array,
    top_k_weights: jax.Array,
    gate_up: jax.Array,
    down: jax.Array,
) -> jax.Array:
    ids = top_k_index.reshape(-1)
    order = jnp.argsort(ids)
    sizes = jnp.sum(ids[order][:, None] == jnp.arange(gate_up.shape[0]), axis=0, dtype=jnp.int32)
    rows = hidden[order // top_k_index.shape[-1]]
    gate, up = jnp.split(jax.lax.ragged_dot_general(rows, gate_up, sizes, DIMS), 2, axis=-1)
    out = jax.lax.ragged_dot_general(jax.nn.silu(gate) * up, down, sizes, DIMS)
    out = (out * top_k_weights.reshape(-1)[order][:, None])[jnp.argsort(order)]
    return out.reshape(hidden.shape[0], top_k_index.shape[-1], -1).sum(axis=1)


def test_experts_layer():
    torch.manual_seed(0)
    op = pallas.jax_op(unique("experts"), experts)
    hidden, gate_up, down = torch.randn(6, 8), torch.randn(4, 10, 8), torch.randn(4, 8, 5)
    weights, index = torch.rand(6, 4).topk(2)
    expected = torch.zeros(6, 8)
    for token in range(6):
        for weight, expert in zip(weights[token], index[token], strict=True):
            gate, up = (gate_up[expert] @ hidden[token]).chunk(2)
            inner = torch.nn.functional.silu(gate) * up
            expected[token] += weight * (down[expert] @ inner)
    given = [t.to("tpu") for t in (hidden, index.int(), weights, gate_up, down)]
    torch.testing.assert_close(op(*given).cpu(), expected, atol=1e-4, rtol=1e-4)
    compiled = torch.compile(lambda *args: op(*args), fullgraph=True)
    torch.testing.assert_close(compiled(*given).cpu(), expected, atol=1e-4, rtol=1e-4)
