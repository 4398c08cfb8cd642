"""torch_tpu.ops: barrier, windows, groups, pooling, jagged batches, embedding tables; against the
CPU, with gradients. Collectives are in distributed/test_dim_collectives.py."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("jax")

import torch_tpu
from torch_tpu import ops


def on_both(*tensors):
    """Leaves on the CPU and on the device."""
    made = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
    return made, [t.detach().to("tpu").requires_grad_(t.requires_grad) for t in made]


def close(got, expected, atol=1e-5):
    torch.testing.assert_close(got.cpu(), expected, atol=atol, rtol=1e-5)


# The barrier


def test_barrier_and_its_gradient():
    x = torch.randn(4, 5, device="tpu", requires_grad=True)
    y = ops.optimization_barrier(x * 2)
    y.sum().backward()
    close(x.grad, torch.full((4, 5), 2.0))
    a, b = ops.optimization_barrier(x, torch.arange(3, device="tpu"))
    assert torch.equal(a, x)
    assert b.tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="expected tensors on 'tpu'"):
        ops.optimization_barrier(torch.ones(1))


def test_barrier_in_a_compiled_function():
    def f(a, b):
        a, b = ops.optimization_barrier([a * 2, b.long()])
        return a.sum() + b.sum()

    x = torch.randn(6, device="tpu", requires_grad=True)
    out = torch.compile(f, fullgraph=True)(x, torch.ones(2, device="tpu"))
    out.backward()
    close(out.detach(), (x.detach().cpu() * 2).sum() + 2)
    close(x.grad, torch.full((6,), 2.0))


def test_barrier_reaches_the_compiler():
    with torch_tpu._C._Recording(0) as recording:
        x = recording.parameter([3], [1], torch.float32)
        text = recording.module("fence", [ops.optimization_barrier(x + 1)])["text"]
    assert "stablehlo.optimization_barrier" in text


# Attention with a window


@pytest.mark.parametrize("window", [(10, 0), (None, 3), (130, 5)])
def test_window(window):
    torch.manual_seed(0)
    length = 200
    cpu, tpu = on_both(
        torch.randn(1, 4, length, 32), torch.randn(1, 2, length, 32), torch.randn(1, 2, length, 32)
    )
    far = torch.arange(length)[:, None] - torch.arange(length)[None]
    left, right = window
    mask = torch.ones(length, length, dtype=torch.bool)
    mask &= far <= left if left is not None else mask
    mask &= -far <= right if right is not None else mask
    expected = F.scaled_dot_product_attention(*cpu, attn_mask=mask, enable_gqa=True)
    out = ops.splash_sdpa(*tpu, enable_gqa=True, window=window)
    close(out.detach(), expected.detach())
    grad = torch.randn_like(expected)
    expected.backward(grad)
    out.backward(grad.to("tpu"))
    for mine, theirs in zip(tpu, cpu, strict=True):
        close(mine.grad, theirs.grad)


def test_windows_by_number_and_causal():
    q = torch.randn(1, 1, 6, 8, device="tpu")
    last_three = ops.splash_sdpa(q, q, q, window=3)
    torch.testing.assert_close(last_three, ops.splash_sdpa(q, q, q, window=(2, 0)))
    torch.testing.assert_close(
        last_three, ops.splash_sdpa(q, q, q, is_causal=True, window=(2, None))
    )
    with pytest.raises(ValueError, match="has no key for query 5: there are 2 keys"):
        ops.splash_sdpa(q, q[:, :, :2], q[:, :, :2], window=(1, 0))
    with pytest.raises(ValueError, match=r"\[splash_sdpa\] the window 2 has no key for query 5"):
        ops.splash_sdpa(q, q[:, :, :2], q[:, :, :2], window=2)
    with pytest.raises(ValueError, match=r"\[splash_sdpa\] a window is .*, got \(-2, 0\)"):
        ops.splash_sdpa(q, q, q, window=(-2, 0))
    for none in (0, -3):
        with pytest.raises(ValueError, match=rf"\[splash_sdpa\] .* from 1, got {none}$"):
            ops.splash_sdpa(q, q, q, window=none)
    with pytest.raises(NotImplementedError, match="no mask of your own and no dropout"):
        ops.splash_sdpa(q, q, q, dropout_p=0.5)


# Groups of rows


def test_ragged_dot():
    torch.manual_seed(0)
    sizes = [5, 0, 9]
    cpu, tpu = on_both(torch.randn(14, 8), torch.randn(3, 8, 6))
    expected = torch.cat([rows @ w for rows, w in zip(cpu[0].split(sizes), cpu[1], strict=True)])
    out = ops.ragged_dot(*tpu, torch.tensor(sizes, device="tpu"))
    close(out.detach(), expected.detach())
    grad = torch.randn(14, 6)
    expected.backward(grad)
    out.backward(grad.to("tpu"))
    for mine, theirs in zip(tpu, cpu, strict=True):
        close(mine.grad, theirs.grad)
    alone = ops.ragged_dot_weight_grad(
        tpu[0].detach(), grad.to("tpu"), torch.tensor(sizes, device="tpu")
    )
    close(alone, cpu[1].grad)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_pooling(dims):
    torch.manual_seed(0)
    x = torch.randn(2, 3, *[7] * dims, requires_grad=True)
    pool = getattr(ops, f"max_pool{dims}d")
    out = pool(x, 3, 2, 1)
    grad = torch.randn_like(out)
    out.backward(grad)
    close(pool(x.detach().to("tpu"), 3, 2, 1), out.detach())
    backward = getattr(ops, f"max_pool{dims}d_backward")
    close(backward(grad.to("tpu"), x.detach().to("tpu"), 3, 2, 1), x.grad)


# Jagged batches


def test_jagged():
    x = torch.randn(10, 3, device="tpu", requires_grad=True)
    lengths = torch.tensor([3, 0, 5, 2], device="tpu")
    padded, aligned = ops.align_jagged_to_multiple(x, lengths, 4, padding_value=9.0)
    assert aligned.tolist() == [4, 0, 8, 4]
    want = torch.full((16, 3), 9.0)
    for at, rows in zip([0, 4, 12], x.detach().cpu().split([3, 5, 2]), strict=True):
        want[at : at + len(rows)] = rows
    close(padded.detach(), want)
    back = ops.strip_jagged_padding(padded, lengths, aligned)
    assert torch.equal(back, x)
    (back * torch.arange(10.0, device="tpu")[:, None]).sum().backward()
    close(x.grad, torch.arange(10.0)[:, None].expand(10, 3))
    with pytest.raises(ValueError, match="add up to 10, but there are 9 values"):
        ops.align_jagged_to_multiple(x[:9], lengths, 4)
    with pytest.raises(ValueError, match="add up to 16, but there are 10 values"):
        ops.strip_jagged_padding(x, lengths, aligned)
    empty, _ = ops.align_jagged_to_multiple(x[:0], lengths * 0, 4)
    assert empty.shape == (0, 3)


@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_lengths_that_are_refused(mode):
    x = torch.arange(4.0, device="tpu")

    def lengths(*values):
        return torch.tensor(values, dtype=torch.int64, device="tpu")

    with torch_tpu.mode(mode):
        with pytest.raises(ValueError, match=r"must not be negative, got \[5, -1\]"):
            ops.align_jagged_to_multiple(x, lengths(5, -1), 2)
        with pytest.raises(ValueError, match=r"must not be negative, got \[-1, 2\]"):
            ops.strip_jagged_padding(x, lengths(-1, 2), lengths(2, 2))
        with pytest.raises(ValueError, match=r"beyond the padded .*, got \[3, 1\] of \[2, 2\]"):
            ops.strip_jagged_padding(x, lengths(3, 1), lengths(2, 2))
        with pytest.raises(ValueError, match="got 2 padded lengths and 3 lengths"):
            ops.strip_jagged_padding(x, lengths(1, 1, 1), lengths(2, 2))
        assert ops.strip_jagged_padding(x, lengths(0, 2), lengths(2, 2)).tolist() == [2.0, 3.0]
        assert ops.strip_jagged_padding(x[:0], lengths(), lengths()).tolist() == []


# Embedding tables

SAMPLES, ROWS = torch.tensor([[0, 0, 1, 3, 3, 3], [4, 1, 1, 0, 2, 2]])


def batch():
    torch.manual_seed(0)
    gains, table, grad = torch.rand(6), torch.randn(6, 4), torch.randn(4, 4)
    dense = torch.zeros(4, 6).index_put((SAMPLES, ROWS), gains, accumulate=True)
    return gains, table, grad, dense


def test_sparse_dense_matmul():
    gains, table, grad, dense = batch()
    (cpu_table,), (tpu_gains, tpu_table) = on_both(table)[0], on_both(gains, table)[1]
    expected = dense @ cpu_table
    out = ops.sparse_dense_matmul(SAMPLES.to("tpu"), ROWS.to("tpu"), tpu_gains, tpu_table, 4)
    close(out.detach(), expected.detach())
    expected.backward(grad)
    out.backward(grad.to("tpu"))
    close(tpu_table.grad, cpu_table.grad)
    close(tpu_gains.grad, (grad[SAMPLES] * table[ROWS]).sum(1))
    rows = ops.sparse_gather(table.to("tpu"), ROWS.to("tpu").view(2, 3))
    close(rows, table[ROWS].view(2, 3, 4))
    back = ops.sparse_gather_backward(rows, ROWS.to("tpu").view(2, 3), 6)
    close(back, torch.zeros(6, 4).index_add(0, ROWS, table[ROWS]))
    with pytest.raises(ValueError, match=r"expected integer sample_ids\[N\]"):
        ops.sparse_dense_matmul(SAMPLES.to("tpu")[:3], ROWS.to("tpu"), gains, table, 4)


def test_steps_of_tables():
    gains, table, grad, dense = batch()
    given = [t.to("tpu") for t in (SAMPLES, ROWS, gains)]
    total = dense.T @ grad
    stepped = ops.sparse_dense_matmul_grad_with_sgd(*given, table.to("tpu"), grad.to("tpu"), 0.1)
    close(stepped, table - 0.1 * total)

    weight = torch.nn.Parameter(table.clone())
    weight.grad = total
    optimizer = torch.optim.Adagrad([weight], lr=0.1)
    optimizer.step()
    stepped, accumulator = ops.sparse_dense_matmul_grad_with_adagrad(
        *given, table.to("tpu"), torch.zeros(6, 4, device="tpu"), grad.to("tpu"), 0.1
    )
    close(stepped, weight.data)
    close(accumulator, optimizer.state[weight]["sum"])

    weight = torch.nn.Parameter(table.clone())
    optimizer = torch.optim.SparseAdam([weight], lr=0.1)
    met = ROWS.unique()
    state = [table.to("tpu"), *torch.zeros(2, 6, 4, device="tpu")]
    for step in (1, 2):
        weight.grad = torch.sparse_coo_tensor(met[None], total[met], (6, 4), check_invariants=True)
        optimizer.step()
        state = list(
            ops.sparse_dense_matmul_grad_with_adam(*given, *state, grad.to("tpu"), 0.1, step)
        )
    close(state[0], weight.data)
    assert torch.equal(state[0][5].cpu(), table[5])  # never looked up


def test_stacked_tables():
    activations = torch.arange(12.0, device="tpu").view(3, 4)
    a, b = ops.sparse_dense_matmul_activation_unstack(activations, [1, 2], [4, 2])
    assert (a.shape, b.shape) == ((1, 4), (2, 2))
    again = ops.sparse_dense_matmul_gradient_stack([a, b])
    want = activations.cpu().clone()
    want[1:, 2:] = 0
    close(again, want)
