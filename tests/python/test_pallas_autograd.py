"""How a call of a kernel is recorded by autograd: like one of PyTorch's own ops. Needs JAX."""

from __future__ import annotations

import sys

import pytest
import torch

jax = pytest.importorskip("jax")
jnp = jax.numpy

import torch_tpu  # noqa: E402
from torch_tpu.pallas import jax_op  # noqa: E402


@pytest.fixture(scope="module")
def product():
    return jax_op("test_pallas_autograd::product", lambda x, y: x * y)


def leaf(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype, device="tpu", requires_grad=True)


def test_the_node(product):
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    out = product(x, y)
    assert out.grad_fn.name() == "productBackward"
    (first, _), (second, _) = out.grad_fn.next_functions
    assert first.variable is x
    assert second.variable is y
    assert not out.is_leaf
    assert not product(x.detach(), y.detach()).requires_grad
    with torch.no_grad():
        assert product(x, y).grad_fn is None
    with torch.inference_mode():
        assert product(x, y).grad_fn is None


def test_no_python_on_a_hit(product):
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    product(x, y).sum().backward()
    called = []

    def profile(frame, event, _):
        if event == "call":
            called.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        out = product(x, y)
    finally:
        sys.setprofile(None)
    assert called == ["product", "is_dynamo_compiling"]  # the function itself
    out.sum().backward()
    assert x.grad.tolist() == [6, 8]


def test_only_wanted_gradients_are_computed():
    asked = []

    def backward(inputs, output, grad):
        asked.append(len(inputs))
        return grad * inputs[1], grad * inputs[0]

    op = jax_op("test_pallas_autograd::both", lambda x, y: x * y, backward=backward)
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    out = op(x, y)
    (dx,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
    assert dx.tolist() == [3, 4]
    (dy,) = torch.autograd.grad(out.sum(), y)
    assert dy.tolist() == [1, 2]
    assert len(asked) == 2  # once per set of wanted tensors, when the gradient is lowered


def test_saved_tensors_are_checked_and_freed(product):
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    out = product(x, y)
    out.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.sum().backward()
    out = product(x, y)
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_saved_tensor_hooks_see_them(product):
    packed = []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor.cpu()

    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to("tpu")):
        out = product(x, y)
    assert len(packed) == 2
    out.sum().backward()
    assert x.grad.tolist() == [3, 4]
    assert y.grad.tolist() == [1, 2]


@pytest.mark.parametrize("by_hand", [False, True])
def test_lists_and_what_is_left_out(by_hand):
    def f(xs: list[jax.Array], bias: jax.Array | None = None):
        out = sum((x * x).sum() for x in xs)
        return jnp.float32(len(xs)), out if bias is None else out * bias, out > 2

    def backward(inputs, outputs, grads):
        xs, bias = inputs
        scale = grads[1] if bias is None else grads[1] * bias
        return [2 * scale * x for x in xs], grads[1] * sum((x * x).sum() for x in xs)

    name = f"test_pallas_autograd::lists_{by_hand}"
    op = jax_op(name, f, outputs=3, backward=backward if by_hand else None)
    a, b, bias = leaf(1.0, 2.0), leaf(3.0), leaf(2.0)
    _, out, flag = op([a, b.detach()])
    assert flag.item()
    assert not flag.requires_grad
    out.backward()
    assert a.grad.tolist() == [2, 4]
    assert b.grad is None
    # The gradient of a gradient: the op's list of gradients has nothing for the first output.
    grads = torch.autograd.grad(op([b, a], bias[0])[1], (a, b, bias), create_graph=True)
    assert [g.tolist() for g in grads] == [[4, 8], [12], [14]]
    (second,) = torch.autograd.grad(grads[0].sum() + grads[2].sum(), a)
    assert second.tolist() == [6, 8]


def test_complex_gradients():
    def f(z, w):
        return z * w * (1 + 2j), (z * z.conj()).real

    op = jax_op("test_pallas_autograd::complex", f, outputs=2)
    cpu = [torch.randn(3, dtype=torch.complex64, requires_grad=True) for _ in range(2)]
    tpu = [t.detach().to("tpu").requires_grad_() for t in cpu]
    grads = [torch.randn(3, dtype=torch.complex64), torch.randn(3)]
    expected = torch.autograd.grad(f(*cpu), cpu, grads)
    found = torch.autograd.grad(op(*tpu), tpu, [g.to("tpu") for g in grads])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


def test_forward_mode_is_refused(product):
    x, y = leaf(1.0, 2.0).detach(), leaf(3.0, 4.0)
    with pytest.raises(NotImplementedError, match="no forward-mode gradient"):
        torch.func.jvp(lambda x: product(x, y), (x,), (torch.ones_like(x),))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(NotImplementedError, match="no forward-mode gradient"):
            product(dual, x)


def test_a_graph_of_an_old_definition():
    name = "test_pallas_autograd::again"
    x = leaf(3.0)
    old = jax_op(name, lambda x: x * 2)(x)
    new = jax_op(name, lambda x: x * x)(x)
    with pytest.raises(RuntimeError, match="defined anew after this forward pass"):
        old.sum().backward()
    new.sum().backward()
    assert x.grad.tolist() == [6]


@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_transforms_in_any_order(product, mode):
    x, y = torch.rand(3, 4), torch.rand(4)

    def both(f):
        grad = torch.func.grad(lambda a, b: f(f(a, b), b).sum(), argnums=(0, 1))
        second = torch.func.grad(lambda a, b: grad(a, b)[1].sum())
        return (
            *torch.vmap(grad, in_dims=(0, None))(*arguments),
            torch.func.vmap(second, in_dims=(0, None))(*arguments),
            torch.func.vjp(f, *arguments)[1](torch.ones_like(arguments[0]))[1],
        )

    arguments = (x, y)
    expected = both(torch.mul)
    with torch_tpu.mode(mode):
        arguments = (x.to("tpu"), y.to("tpu"))
        for ours, theirs in zip(both(product), expected, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs)
