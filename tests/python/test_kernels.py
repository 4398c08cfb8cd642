"""torch_tpu.kernels against PyTorch: values and gradients, f32 and bf16; and that each compiles for
a TPU where libtpu is installed (see test_kernels_tpu.py). Needs JAX, on the CPU only."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("jax")

from torch_tpu import kernels

DTYPES = [torch.float32, torch.bfloat16]
# Of results whose largest element is about one.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


def compare(ours, reference, inputs, dtype, tolerance=None):
    """Values and gradients of two functions of the inputs, the second in f32 on the CPU."""
    tolerance = TOLERANCE[dtype] if tolerance is None else tolerance
    floats = [t.is_floating_point() for t in inputs]
    rounded = [t.to(dtype) if f else t for t, f in zip(inputs, floats, strict=True)]
    device = [t.to("tpu").requires_grad_(f) for t, f in zip(rounded, floats, strict=True)]
    host = [
        (t.float().clone().requires_grad_() if f else t)
        for t, f in zip(rounded, floats, strict=True)
    ]
    out, expected = ours(*device), reference(*host)
    assert out.shape == expected.shape
    close(out, expected, tolerance)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(7))
    (out * weight.to("tpu", out.dtype)).sum().backward()
    (expected * weight.to(out.dtype).float()).sum().backward()
    for have, want in zip(device, host, strict=True):
        if want.requires_grad:
            close(have.grad, want.grad, tolerance)


def close(have, want, tolerance):
    have, want = have.detach().cpu().float(), want.detach()
    scale = max(1.0, want.abs().max().item() if want.numel() else 1.0)
    torch.testing.assert_close(have, want, atol=tolerance * scale, rtol=0)


def sdpa(causal, scale=None):
    def run(q, k, v):
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=scale, enable_gqa=True
        )

    return run


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "length", "keys", "width", "causal"),
    [
        ((4, 4), 128, 128, 64, False),
        ((4, 2), 200, 200, 64, True),  # GQA, two blocks of which the second is partly there
        ((6, 1), 77, 333, 32, False),  # one key head, odd lengths
        ((2, 2), 150, 45, 16, True),  # more queries than keys
        ((2, 1), 1, 129, 128, False),
    ],
)
def test_flash_attention(dtype, heads, length, keys, width, causal):
    torch.manual_seed(0)
    q = torch.randn(2, heads[0], length, width)
    k, v = (torch.randn(2, heads[1], keys, width) for _ in range(2))

    def ours(q, k, v):
        return kernels.flash_attention(q, k, v, is_causal=causal, block_q=128, block_k=128)

    compare(ours, sdpa(causal), [q, k, v], dtype, 1e-5 if dtype == torch.float32 else 2e-2)
    # Against PyTorch in the same dtype: 2e-3.
    cpu = [t.to(dtype) for t in (q, k, v)]
    expected = sdpa(causal)(*cpu).float()
    out = ours(*[t.to("tpu") for t in cpu]).cpu().float()
    if dtype == torch.float32:
        torch.testing.assert_close(out, expected, atol=2e-3, rtol=0)
    else:  # both round to bf16: two units in its last place, 2⁻⁸ of the value each
        torch.testing.assert_close(out, expected, atol=2e-3, rtol=2**-7)


def test_flash_attention_scale_and_large_scores():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 130, 32) * 6 for _ in range(3))

    def ours(q, k, v):
        return kernels.flash_attention(q, k, v, is_causal=True, scale=0.5)

    compare(ours, sdpa(True, 0.5), [q, k, v], torch.float32, 1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_paged_attention(dtype):
    torch.manual_seed(0)
    batch, heads, kv_heads, width, page, pages = 3, 8, 2, 64, 16, 12
    q = torch.randn(batch, heads, width).to(dtype)
    k, v = (torch.randn(kv_heads, pages, page, width).to(dtype) for _ in range(2))
    lengths = torch.tensor([33, 1, 48])
    table = torch.randperm(pages)[: 3 * batch].view(batch, 3)
    out = kernels.paged_attention(*(t.to("tpu") for t in (q, k, v, lengths, table)))
    for b in range(batch):
        keys, values = (
            t[:, table[b]].reshape(kv_heads, -1, width)[:, : lengths[b]].float() for t in (k, v)
        )
        expected = sdpa(False)(q[b, :, None].float(), keys, values)[:, 0]
        close(out[b], expected, TOLERANCE[dtype])


def test_paged_attention_of_an_empty_sequence_is_zero():
    q, pages = torch.ones(1, 2, 8, device="tpu"), torch.ones(2, 4, 16, 8, device="tpu")
    none = torch.zeros(1, device="tpu", dtype=torch.int32)
    out = kernels.paged_attention(q, pages, pages, none, torch.zeros(1, 2, device="tpu").int())
    assert out.abs().max() == 0


def grouped_reference(x, w, sizes):
    parts, at = [], 0
    for i, size in enumerate(sizes.tolist()):
        parts.append(x[at : at + size] @ w[i])
        at += size
    return torch.cat([*parts, torch.zeros(x.shape[0] - at, w.shape[2])])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "inner", "columns", "sizes"),
    [
        (300, 40, 24, [100, 0, 73, 127]),  # an empty group, tiles that several share
        (130, 130, 600, [1, 128, 0, 0, 1]),
        (256, 16, 16, [0, 100, 0]),  # rows of no group; the last group is empty
        (5, 8, 8, [2, 3]),
        (512, 520, 16, [128, 256, 128]),
    ],
)
def test_grouped_matmul(dtype, rows, inner, columns, sizes):
    torch.manual_seed(0)
    x = torch.randn(rows, inner) / inner**0.5
    w = torch.randn(len(sizes), inner, columns)
    compare(kernels.grouped_matmul, grouped_reference, [x, w, torch.tensor(sizes)], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 5, 64), (257, 100), (1, 2048), (7,)])
def test_rms_norm(dtype, shape):
    torch.manual_seed(0)
    x, w = torch.randn(*shape), torch.randn(shape[-1])

    def reference(x, w):
        return F.rms_norm(x, w.shape, w, 1e-5)

    compare(lambda x, w: kernels.rms_norm(x, w, 1e-5), reference, [x, w], dtype)


def rotary_reference(x, cos, sin):
    cos, sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 10, 64), (1, 2, 300, 128), (1, 1, 1, 6)])
def test_rotary(dtype, shape):
    torch.manual_seed(0)
    angles = torch.rand(shape[2], shape[3] // 2) * 6
    inputs = [torch.randn(*shape), angles.cos(), angles.sin()]
    compare(kernels.rotary, rotary_reference, inputs, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "classes"), [(5, 7), (130, 3000)])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_cross_entropy(dtype, rows, classes, reduction):
    torch.manual_seed(0)
    logits, target = torch.randn(rows, classes) * 3, torch.randint(classes, (rows,))
    target[1] = -100

    def ours(x, t):
        return kernels.cross_entropy(x, t, reduction=reduction)

    compare(ours, lambda x, t: F.cross_entropy(x, t, reduction=reduction), [logits, target], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding_bag(dtype):
    torch.manual_seed(0)
    table = torch.randn(50, 24)
    flat, offsets = torch.randint(50, (20,)), torch.tensor([0, 3, 3, 10, 20])  # two empty bags
    for mode in ("sum", "mean"):
        compare(
            lambda t, i, o, mode=mode: kernels.embedding_bag(i, t, o, mode=mode),
            lambda t, i, o, mode=mode: F.embedding_bag(i, t, o, mode=mode),
            [table, flat, offsets],
            dtype,
        )
    square, weights = torch.randint(50, (4, 6)), torch.rand(4, 6)
    compare(
        lambda t, i, w: kernels.embedding_bag(i, t, per_sample_weights=w),
        lambda t, i, w: F.embedding_bag(i, t, mode="sum", per_sample_weights=w),
        [table, square, weights],
        dtype,
    )


def test_new_group_sizes_compile_nothing():
    import torch_tpu

    x, w = torch.randn(64, 16, device="tpu"), torch.randn(2, 16, 16, device="tpu")
    kernels.grouped_matmul(x, w, torch.tensor([30, 34], device="tpu")).cpu()
    before = torch_tpu.stats()["compiles"]
    for n in (0, 1, 64):
        kernels.grouped_matmul(x, w, torch.tensor([n, 64 - n], device="tpu")).cpu()
    assert torch_tpu.stats()["compiles"] == before


def test_bad_arguments():
    x = torch.ones(2, 3, 4, 8, device="tpu")
    with pytest.raises(ValueError, match=r"flash_attention.*where Hkv divides H.*\[2, 2, 4, 8\]"):
        kernels.flash_attention(x, x[:, :2], x[:, :2])
    with pytest.raises(ValueError, match="block_q must be a multiple of 128, got 100"):
        kernels.flash_attention(x, x, x, block_q=100)
    with pytest.raises(ValueError, match=r"rms_norm.*x\[..., D\] and weight\[D\]"):
        kernels.rms_norm(x, torch.ones(3, device="tpu"))
    with pytest.raises(ValueError, match="grouped_matmul"):
        kernels.grouped_matmul(x[0, 0], x[0], torch.ones(3, device="tpu"))
    with pytest.raises(ValueError, match="rotary"):
        kernels.rotary(x, x[0, 0], x[0, 0])
    with pytest.raises(ValueError, match="cross_entropy"):
        kernels.cross_entropy(x[0, 0], x[0, 0, :, 0])
    with pytest.raises(ValueError, match="mode must be"):
        kernels.embedding_bag(torch.zeros(2, 2).long().to("tpu"), x[0, 0], mode="max")
    with pytest.raises(ValueError, match="paged_attention"):
        kernels.paged_attention(x, x, x, x, x)


def test_a_transformer_layer_compiles():
    """Several kernels in one graph of torch.compile, with their gradients."""
    torch.manual_seed(0)
    x, w = torch.randn(2, 40, 32), torch.rand(32)
    angles = torch.rand(40, 8)

    def layer(x, w, cos, sin, norm, turn, attend):
        h = norm(x, w).view(2, 40, 2, 16).transpose(1, 2)
        h = turn(h, cos, sin)
        return x + attend(h, h, h).transpose(1, 2).reshape(2, 40, 32)

    def ours(x, w, cos, sin):
        attend = lambda q, k, v: kernels.flash_attention(q, k, v, is_causal=True)  # noqa: E731
        return layer(x, w, cos, sin, kernels.rms_norm, kernels.rotary, attend)

    def reference(x, w, cos, sin):
        norm = lambda x, w: F.rms_norm(x, w.shape, w, 1e-6)  # noqa: E731
        return layer(x, w, cos, sin, norm, rotary_reference, sdpa(True))

    inputs = [x, w, angles.cos(), angles.sin()]
    compare(torch.compile(ours, fullgraph=True), reference, inputs, torch.float32)
