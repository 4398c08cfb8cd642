"""scaled_dot_product_attention: fused forward and backward against CPU's math path."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_tpu

TOLERANCE = {
    torch.float32: (1e-4, 1e-5),
    torch.float64: (1e-7, 1e-9),
    torch.bfloat16: (3e-2, 3e-2),
    torch.float16: (5e-3, 5e-3),
}


def run(device, q, k, v, mask=None, backend=None, **kwargs):
    """Output and gradients of q, k, v and a floating mask."""
    inputs = [x.to(device).requires_grad_() for x in (q, k, v)]
    given = mask
    if mask is not None:
        given = mask.to(device)
        if mask.is_floating_point():
            given.requires_grad_()
            inputs.append(given)
    if backend is None:
        out = F.scaled_dot_product_attention(*inputs[:3], attn_mask=given, **kwargs)
    else:
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(*inputs[:3], attn_mask=given, **kwargs)
    weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape)
    grads = torch.autograd.grad(out, inputs, weight.to(out.dtype).to(device))
    return out, *grads


def check(q, k, v, dtype=torch.float32, **kwargs):
    want = run(
        "cpu", q.double(), k.double(), v.double(), backend=SDPBackend.MATH, **widened(kwargs)
    )
    got = run("tpu", q.to(dtype), k.to(dtype), v.to(dtype), **narrowed(kwargs, dtype))
    rtol, atol = TOLERANCE[dtype]
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.cpu().double(), w, rtol=rtol, atol=atol)
    return got


def widened(kwargs):
    return narrowed(kwargs, torch.float64)


def narrowed(kwargs, dtype):
    mask = kwargs.get("mask")
    if mask is None or not mask.is_floating_point():
        return kwargs
    return {**kwargs, "mask": mask.to(dtype)}


def qkv(b=2, h=3, q_len=5, k_len=7, e=8, ev=8, kv_heads=None):
    torch.manual_seed(0)
    kv_heads = kv_heads or h
    return (
        torch.randn(b, h, q_len, e),
        torch.randn(b, kv_heads, k_len, e),
        torch.randn(b, kv_heads, k_len, ev),
    )


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("causal", [False, True])
def test_dtypes(dtype, causal):
    out = check(*qkv(), dtype=dtype, is_causal=causal)[0]
    assert "FusedAttentionOverrideable" in type(out.grad_fn).__name__


def test_scales():
    for scale in (0.3, 2.0, 1.0, 8**-0.5, 0.0):
        check(*qkv(), scale=scale)


def test_scale_is_a_runtime_value():
    q, k, v = (x.to("tpu") for x in qkv(b=1))
    F.scaled_dot_product_attention(q, k, v, scale=0.3).cpu()
    before = torch_tpu._C._program_stats()["misses"]
    F.scaled_dot_product_attention(q, k, v, scale=0.4).cpu()
    assert torch_tpu._C._program_stats()["misses"] == before


def test_value_width():
    check(*qkv(ev=6))


def test_causal_with_longer_query():
    check(*qkv(q_len=9, k_len=4), is_causal=True)


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (5, 7), (2, 1, 1, 7), (1, 7)])
def test_float_mask(shape):
    check(*qkv(), mask=torch.randn(shape))


def test_bool_mask_with_a_row_of_nothing():
    mask = torch.rand(2, 1, 5, 7) < 0.6
    mask[0, 0, 2] = False
    out = check(*qkv(), mask=mask)[0]
    assert (out[0, :, 2] == 0).all()


def test_grouped_query():
    check(*qkv(h=6, kv_heads=2), enable_gqa=True)


def test_three_dimensions_and_broadcast_batches():
    q, k, v = qkv()
    check(q[0], k[0], v[0])
    check(q, k[:1], v[:1])


def test_math_on_request():
    q, k, v = (x.to("tpu").requires_grad_() for x in qkv())
    with sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(q, k, v)
    assert "FusedAttention" not in type(out.grad_fn).__name__


def test_dropout():
    q, k, _ = qkv(b=2, h=4, q_len=64, k_len=64)
    torch.manual_seed(3)
    # With one-hot values the output is the dropped attention matrix itself.
    eye = torch.eye(64).expand(2, 4, 64, 64)
    q, k, eye = (x.to("tpu").requires_grad_() for x in (q, k, eye))
    plain = F.scaled_dot_product_attention(q, k, eye)
    dropped = F.scaled_dot_product_attention(q, k, eye, dropout_p=0.25)
    kept = dropped != 0
    assert abs(kept.float().mean().item() - 0.75) < 0.02
    scaled = torch.where(kept, plain / 0.75, 0)
    torch.testing.assert_close(dropped.cpu(), scaled.cpu(), rtol=1e-4, atol=1e-6)
    # The backward sees the same mask.
    weight = torch.randn(dropped.shape).to("tpu")
    got = torch.autograd.grad(dropped, (q, k, eye), weight)
    want = torch.autograd.grad(torch.where(kept, plain / 0.75, 0), (q, k), weight)
    for g, w in zip(got[:2], want, strict=True):
        torch.testing.assert_close(g.cpu(), w.cpu(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[2].cpu(), (dropped.mT @ weight).cpu(), rtol=1e-4, atol=1e-4)
    again = F.scaled_dot_product_attention(q, k, eye, dropout_p=0.25)
    assert ((again != 0) != kept).any()
    torch.manual_seed(3)
    F.scaled_dot_product_attention(q, k, eye)
    again = F.scaled_dot_product_attention(q, k, eye, dropout_p=0.25)
    assert torch.equal(again.cpu(), dropped.cpu())


PADDING = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
CAUSAL = torch.ones(5, 5).triu(1).bool()


def inferred(module, *inputs, **kwargs):
    """Outputs of a module in inference on CPU and, without any fallback, on the device."""
    module = module.eval()
    before = set(torch_tpu.coverage())
    results = []
    for device in ("cpu", "tpu"):
        module = module.to(device)
        args, options = torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda x, d=device: x.to(d), (inputs, kwargs)
        )
        with torch.no_grad():
            results.append(module(*args, **options))
    assert set(torch_tpu.coverage()) == before
    return results


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"need_weights": False},
        {"average_attn_weights": False},
        {"key_padding_mask": PADDING},
        {"attn_mask": CAUSAL},
    ],
)
def test_multihead_attention(options):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 16)
    module = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    want, got = inferred(module, x, x, x, **options)
    for g, w in zip(got, want, strict=True):
        if w is not None:
            torch.testing.assert_close(g.cpu(), w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "layer", [{}, {"norm_first": True}, {"activation": "gelu"}], ids=["post", "pre", "gelu"]
)
@pytest.mark.parametrize("masks", [{}, {"src_key_padding_mask": PADDING}, {"mask": CAUSAL}])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_transformer_encoder(layer, masks):
    torch.manual_seed(0)
    layers = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, **layer)
    want, got = inferred(torch.nn.TransformerEncoder(layers, 2), torch.randn(2, 5, 16), **masks)
    # What stands in the padding is not defined.
    valid = ~PADDING if "src_key_padding_mask" in masks else torch.ones_like(PADDING)
    torch.testing.assert_close(got.cpu()[valid], want[valid], rtol=1e-4, atol=1e-5)


def test_training_multihead_attention():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 16)
    module = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    results = []
    for device in ("cpu", "tpu"):
        module = module.to(device)
        out = module(*[x.to(device)] * 3, need_weights=False)[0]
        grads = torch.autograd.grad(out.sin().sum(), list(module.parameters()))
        results.append([v.detach().cpu() for v in (out, *grads)])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
