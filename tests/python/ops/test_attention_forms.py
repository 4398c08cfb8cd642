"""The forms of scaled_dot_product_attention that do without all scores at once.

The loop over blocks runs here as it does elsewhere; mostly forced and with small blocks.
cuDNN's kernel does not: what is asked of it is looked at.
"""

import json
import re

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
SIDE = 4


@pytest.fixture(autouse=True)
def _auto_afterwards():
    yield
    torch_tpu._C._set_attention_form("auto")


def qkv(b=2, h=4, q_len=10, k_len=11, e=8, ev=8, kv_heads=None):
    """Lengths that SIDE divides neither way."""
    generator = torch.Generator().manual_seed(0)
    shapes = (h, q_len, e), (kv_heads or h, k_len, e), (kv_heads or h, k_len, ev)
    return [torch.randn(b, *shape, generator=generator) for shape in shapes]


def run(device, inputs, dtype, mask=None, **kwargs):
    """Output and gradients of query, key, value and a floating mask."""
    leaves = [x.to(dtype).to(device).requires_grad_() for x in inputs]
    given = mask
    if mask is not None:
        given = mask.to(device)
        if mask.is_floating_point():
            given = mask.to(dtype).to(device).requires_grad_()
            leaves.append(given)
    out = F.scaled_dot_product_attention(*leaves[:3], attn_mask=given, **kwargs)
    weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape)
    grads = torch.autograd.grad(out, leaves, weight.to(out.dtype).to(device))
    return [x.detach().cpu() for x in (out, *grads)]


def check(inputs, dtype=torch.float32, form="blocks", **kwargs):
    with sdpa_kernel(SDPBackend.MATH):
        want = run("cpu", inputs, torch.float64, **kwargs)
    torch_tpu._C._set_attention_form(form, SIDE if form == "blocks" else 0)
    got = run("tpu", inputs, dtype, **kwargs)
    rtol, atol = TOLERANCE[dtype]
    for g, w in zip(got, want, strict=True):
        assert g.dtype == dtype
        torch.testing.assert_close(g.double(), w, rtol=rtol, atol=atol)
    return got


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("causal", [False, True])
def test_blocks(dtype, causal):
    check(qkv(), dtype, is_causal=causal)


@pytest.mark.parametrize("lengths", [(8, 8), (9, 5), (5, 9), (12, 8), (1, 13), (13, 1), (3, 3)])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths(lengths, causal):
    check(qkv(q_len=lengths[0], k_len=lengths[1]), is_causal=causal)


def test_sides_chosen_by_the_shapes():
    # Beyond what is done at once: 512 by 512, the last ones overlapping.
    check(qkv(b=1, h=1, q_len=2100, k_len=2100), form="auto", is_causal=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_query(dtype, kv_heads):
    check(qkv(kv_heads=kv_heads), dtype, enable_gqa=True, is_causal=True)


def test_width_of_value_and_scale():
    check(qkv(ev=3), scale=0.3)
    check(qkv(ev=12), scale=1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(2, 4, 10, 11), (10, 11), (2, 1, 1, 11), (4, 10, 1), (1, 11), (2, 1, 10, 11), (1,)]
)
def test_float_mask_and_its_gradient(dtype, shape):
    mask = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    check(qkv(), dtype, mask=mask)


@pytest.mark.parametrize("shape", [(2, 1, 10, 11), (10, 11), (2, 1, 1, 11)])
def test_bool_mask(shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.6
    check(qkv(), mask=mask)
    check(qkv(kv_heads=2), torch.bfloat16, mask=mask, enable_gqa=True)


def test_rows_with_nothing_to_attend_to():
    mask = torch.rand(2, 1, 10, 11, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[0, 0, 2] = False
    mask[1, 0, 5:] = False
    out, query_grad, *_ = check(qkv(), mask=mask)
    for x in (out, query_grad):
        assert (x[0, :, 2] == 0).all()
        assert (x[1, :, 5:] == 0).all()


def test_bias_and_causal():
    # scaled_dot_product_attention refuses the two together, the op does not.
    inputs = [x.to("tpu") for x in qkv()]
    bias = torch.randn(4, 10, 11).to("tpu")
    results = []
    for form in ("plain", "blocks"):
        torch_tpu._C._set_attention_form(form, SIDE)
        op = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
        results.append([x.cpu() for x in op(*inputs, bias, 0.0, True)[:2]])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_not_a_number_stays_where_it_is():
    q, k, v = qkv()
    q[0, 0, 3] = torch.nan
    torch_tpu._C._set_attention_form("blocks", SIDE)
    out = F.scaled_dot_product_attention(q.to("tpu"), k.to("tpu"), v.to("tpu")).cpu()
    assert out[0, 0, 3].isnan().all()
    assert out.isnan().sum() == out.shape[-1]


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_does_not_depend_on_the_form(causal):
    """The same mask in forward and backward, with blocks of any side and without."""
    results = []
    for side in (0, 3, 4, 16):
        torch_tpu._C._set_attention_form("blocks" if side else "plain", side)
        torch.manual_seed(3)
        results.append(run("tpu", qkv(), torch.float32, dropout_p=0.4, is_causal=causal))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_dropout_by_numbers():
    torch_tpu._C._set_attention_form("blocks", 24)
    q, k, _ = (x.to("tpu").requires_grad_() for x in qkv(q_len=64, k_len=64))
    # With one-hot values the output is the dropped attention matrix itself.
    eye = torch.eye(64).expand(2, 4, 64, 64).to("tpu").requires_grad_()
    plain = F.scaled_dot_product_attention(q, k, eye)
    out = F.scaled_dot_product_attention(q, k, eye, dropout_p=0.25)
    kept = (out != 0).detach()
    assert abs(kept.float().mean().item() - 0.75) < 0.02
    scaled = torch.where(kept, plain / 0.75, 0)
    torch.testing.assert_close(out.cpu(), scaled.cpu(), rtol=1e-4, atol=1e-6)
    weight = torch.randn(out.shape).to("tpu")
    got = torch.autograd.grad(out, (q, k, eye), weight)
    want = torch.autograd.grad(scaled, (q, k), weight)
    for g, w in zip(got[:2], want, strict=True):
        torch.testing.assert_close(g.cpu(), w.cpu(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[2].cpu(), (out.mT @ weight).cpu(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("forms", [("plain", "blocks"), ("blocks", "plain")])
def test_forward_and_backward_in_different_forms(forms):
    inputs = [x.to("tpu").requires_grad_() for x in qkv()]
    results = []
    for forward, backward in (("plain", "plain"), forms):
        torch.manual_seed(7)
        torch_tpu._C._set_attention_form(forward, SIDE)
        out = F.scaled_dot_product_attention(*inputs, is_causal=True, dropout_p=0.2)
        torch_tpu._C._set_attention_form(backward, SIDE)
        results.append([x.cpu() for x in torch.autograd.grad(out.sin().sum(), inputs)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_layers_in_inference(masked):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    x = torch.randn(2, 10, 16)
    mask = torch.ones(10, 10).triu(1).bool() if masked else None
    with torch.no_grad():
        attention = layer.self_attn
        want = layer(x, mask), attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        torch_tpu._C._set_attention_form("blocks", SIDE)
        layer, x = layer.to("tpu"), x.to("tpu")
        mask = mask.to("tpu") if masked else None
        got = layer(x, mask), attention(x, x, x, attn_mask=mask, need_weights=False)[0]
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=1e-4, atol=1e-5)


class Programs:
    """The text of attention's programs, as they are given to the compiler."""

    def __init__(self, folder):
        self.folder = folder

    def take(self):
        files = sorted(self.folder.glob("*attention*.mlir"))
        texts = [file.read_text() for file in files]
        for file in files:
            file.unlink()
        return texts


@pytest.fixture
def programs(tmp_path, monkeypatch):
    before = torch_tpu.get_mode()
    torch_tpu.set_mode("strict")
    torch_tpu._C._clear_programs()
    monkeypatch.setenv("TORCH_TPU_DUMP", str(tmp_path))
    yield Programs(tmp_path)
    torch_tpu.set_mode(before)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"dropout_p": 0.1}])
def test_no_matrix_of_all_scores(programs, options):
    torch_tpu._C._set_attention_form("blocks", 16)
    run("tpu", qkv(q_len=72, k_len=67), torch.float32, **options)
    texts = programs.take()
    assert len(texts) == 2
    for text in texts:
        assert "72x67x" not in text
        assert "16x16xf32" in text


@pytest.mark.parametrize(("lengths", "blocks"), [((512, 512), 0), ((513, 7), 0), ((2100, 2100), 2)])
def test_few_scores_are_done_at_once(programs, lengths, blocks):
    run("tpu", qkv(b=1, h=1, q_len=lengths[0], k_len=lengths[1]), torch.bfloat16)
    texts = programs.take()
    assert len(texts) == 2
    assert sum("stablehlo.while" in text for text in texts) == blocks


def asked_of_cudnn(programs, inputs, mask=None, backward=False, **kwargs):
    """Target, types and configuration of the call, which XLA:CPU does not know."""
    leaves = [x.to(torch.bfloat16).to("tpu").requires_grad_() for x in inputs]
    if mask is not None:
        mask = mask.to("tpu")
        if mask.requires_grad:
            leaves.append(mask)

    def forward():
        return F.scaled_dot_product_attention(*leaves[:3], attn_mask=mask, **kwargs)

    torch_tpu._C._set_attention_form("plain" if backward else "cudnn")
    out = forward() if backward else None
    torch_tpu._C._set_attention_form("cudnn")
    with pytest.raises(RuntimeError, match="__cudnn"):
        torch.autograd.grad(out.sum(), leaves) if backward else forward()
    lines = "".join(programs.take()).splitlines()
    (call,) = (line for line in lines if "__cudnn" in line)
    config = re.search(r'backend_config = "(.*?)", call_target', call)[1].replace(r"\22", '"')
    target = re.search(r'call_target_name = "(.*?)"', call)[1]
    types = call[call.rindex(" : (") :]
    return target, types, json.loads(config)["cudnn_fmha_backend_config"], call


def test_cudnn_forward(programs):
    inputs = qkv(q_len=128, k_len=64, e=16, ev=16, kv_heads=2)
    target, types, config, call = asked_of_cudnn(programs, inputs, is_causal=True, enable_gqa=True)
    assert target == "__cudnn$fmhaSoftmax"
    assert types == (
        " : (tensor<2x4x128x16xbf16>, tensor<2x2x64x16xbf16>, tensor<2x2x64x16xbf16>) -> "
        "(tensor<2x4x128x16xbf16>, tensor<2x4x128xf32>, tensor<0xui8>)"
    )
    assert config["fmha_scale"] == 0.25
    assert config["mask_type"] == "CAUSAL"
    assert config["intermediate_tensor_shape"]["dimensions"] == ["2", "4", "128", "64"]
    assert config["intermediate_tensor_shape"]["element_type"] == "BF16"
    assert config["bmm1_dot_dimension_numbers"] == {
        "lhs_contracting_dimensions": ["3"],
        "rhs_contracting_dimensions": ["3"],
        "lhs_batch_dimensions": ["0", "1"],
        "rhs_batch_dimensions": ["0", "1"],
    }
    assert config["bmm2_dot_dimension_numbers"]["rhs_contracting_dimensions"] == ["2"]
    assert "result_layouts = [dense<[3, 2, 1, 0]> : tensor<4xindex>, dense<[2, 1, 0]>" in call


def test_cudnn_reads_what_was_made_length_first(programs):
    inputs = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in qkv(q_len=64, k_len=66)]
    _, types, config, call = asked_of_cudnn(programs, inputs, scale=0.11)
    assert types.startswith(" : (tensor<2x64x4x8xbf16>, tensor<2x66x4x8xbf16>")
    assert "-> (tensor<2x4x64x8xbf16>, " in types
    assert config["bmm1_dot_dimension_numbers"]["lhs_batch_dimensions"] == ["0", "2"]
    assert config["bmm2_dot_dimension_numbers"]["rhs_contracting_dimensions"] == ["1"]
    assert "result_layouts = [dense<[3, 1, 2, 0]> : tensor<4xindex>, dense<[2, 1, 0]>" in call
    # A scale the program does not know is left to the query.
    assert config["fmha_scale"] == pytest.approx(8**-0.5)


def test_cudnn_backward(programs):
    target, types, config, _ = asked_of_cudnn(
        programs, qkv(q_len=64, k_len=64), backward=True, is_causal=True
    )
    assert target == "__cudnn$fmhaSoftmaxBackward"
    like, rows = "tensor<2x4x64x8xbf16>", "tensor<2x4x64xf32>"
    results = ", ".join([like] * 3 + ["tensor<0xui8>"])
    assert types == f" : ({like}, {like}, {like}, {rows}, {like}, {like}) -> ({results})"
    assert config["bmm1_grad_gemm1_dot_dimension_numbers"]["lhs_contracting_dimensions"] == ["2"]
    assert "bmm1_dot_dimension_numbers" not in config


@pytest.mark.parametrize("backward", [False, True])
def test_cudnn_with_a_mask(programs, backward):
    mask = torch.rand(2, 1, 1, 64) < 0.5
    target, types, config, _ = asked_of_cudnn(
        programs, qkv(q_len=64, k_len=64), mask=mask, backward=backward
    )
    assert target == "__cudnn$fmhaScaleBiasSoftmax" + "Backward" * backward
    assert "tensor<2x1x64x64xbf16>" in types.split("->")[0]
    assert "64x64" not in types.split("->")[1]  # no gradient of it
    assert config["mask_type"] == "NO_MASK"


def test_cudnn_gradient_of_a_bias_per_head(programs):
    bias = torch.zeros(1, 4, 64, 64, dtype=torch.bfloat16).to("tpu").requires_grad_()
    _, types, _, _ = asked_of_cudnn(programs, qkv(q_len=64, k_len=64), mask=bias, backward=True)
    assert "tensor<1x4x64x64xbf16>" in types.split("->")[1]


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ({"q_len": 64, "k_len": 64}, {"dtype": torch.float32}),
        ({"q_len": 64, "k_len": 64}, {"dropout_p": 0.1}),
        ({"q_len": 64, "k_len": 64, "e": 12, "ev": 12}, {}),
        ({"q_len": 64, "k_len": 64, "e": 8, "ev": 16}, {}),
        ({"q_len": 64, "k_len": 64, "e": 136, "ev": 136}, {}),
        ({"q_len": 20, "k_len": 64}, {}),
        ({"q_len": 64, "k_len": 65}, {"mask": torch.ones(64, 65).bool()}),
        ({"q_len": 64, "k_len": 64}, {"mask": torch.zeros(2, 1, 64, 64)}),
    ],
    ids=["f32", "dropout", "width", "widths", "wide", "short", "odd-mask", "mask-gradient"],
)
def test_beyond_cudnn(shape, options):
    """Falls to the other forms, at the latest in the backward; XLA:CPU knows no cuDNN."""
    options = dict(options)
    dtype = options.pop("dtype", torch.bfloat16)
    mask = options.get("mask")
    inputs = qkv(**shape)
    torch_tpu._C._set_attention_form("cudnn")
    if mask is None or mask.dtype == torch.bool:
        run("tpu", inputs, dtype, **options)
        return
    leaves = [x.to(dtype).to("tpu").requires_grad_() for x in inputs]
    bias = mask.to(dtype).to("tpu").requires_grad_()
    torch_tpu._C._set_attention_form("plain")
    out = F.scaled_dot_product_attention(*leaves, attn_mask=bias)
    torch_tpu._C._set_attention_form("cudnn")
    torch.autograd.grad(out.sum(), [*leaves, bias])[3].cpu()


def test_bad_forms_are_refused():
    with pytest.raises(ValueError, match="'auto', 'plain', 'blocks' or 'cudnn', got 'other'"):
        torch_tpu._C._set_attention_form("other")
    with pytest.raises(ValueError, match="block must be from 0"):
        torch_tpu._C._set_attention_form("blocks", -1)
