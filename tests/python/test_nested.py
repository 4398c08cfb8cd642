"""Nested tensors on the device, strided and jagged, against the same on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_tpu

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

LENGTHS = (3, 1, 5)


def parts(*rest: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, *rest, generator=generator) for n in LENGTHS]


def both(layout: torch.layout, *rest: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The same nested tensor on the CPU and on the device, as leaves."""
    made = [
        torch.nested.nested_tensor(
            parts(*rest, seed=seed), layout=layout, device=device, requires_grad=True
        )
        for device in ("cpu", "tpu")
    ]
    return made[0], made[1]


def same(on_device: torch.Tensor, expected: torch.Tensor) -> None:
    assert on_device.device.type == "tpu"
    assert on_device.is_nested == expected.is_nested
    if expected.is_nested:
        pairs = zip(on_device.unbind(), expected.unbind(), strict=True)
    else:
        pairs = zip([on_device], [expected], strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=2e-5, atol=2e-5)


def norm(x: torch.Tensor) -> torch.Tensor:
    weight = torch.linspace(0.5, 2, 4, device=x.device)
    return F.layer_norm(x, (4,), weight, weight - 1)


def linear(x: torch.Tensor) -> torch.Tensor:
    weight = torch.linspace(-1, 1, 24, device=x.device).view(6, 4)
    return F.linear(x, weight, weight[:, 0])


COMMON: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "add": lambda x: x + x * 2,
    "gelu": F.gelu,
    "silu": F.silu,
    "softmax": lambda x: torch.softmax(x, -1),
    "layer_norm": norm,
    "linear": linear,
    "padded": lambda x: torch.nested.to_padded_tensor(x, 7.0),
    "transpose": lambda x: (x.transpose(1, 2) * 3).transpose(1, 2),
    "clone": lambda x: x.clone() - 1,
}
STRIDED = {
    **COMMON,
    "sum": lambda x: x.sum(-1, keepdim=True),
    "matmul": lambda x: torch.matmul(x, x.transpose(1, 2)),
    "bmm": lambda x: torch.bmm(x, x.transpose(1, 2)),
    "select": lambda x: x.select(0, 2),
    "reshape": lambda x: x.reshape(3, -1, 2, 2),
    "chunk": lambda x: torch.chunk(x, 2, -1)[1].contiguous(),
}
JAGGED = {
    **COMMON,
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "amax": lambda x: x.amax(1),
    "unflatten": lambda x: x.unflatten(-1, (2, 2)),
    "softmax_ragged": lambda x: torch.softmax(x, 1),
    "norm_ragged": lambda x: F.layer_norm(x, x.shape[1:]),
}


# PyTorch has no gradient for these, on any device.
FORWARD = {(torch.strided, "chunk"), *((torch.jagged, n) for n in ("sum", "mean", "norm_ragged"))}


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        *((torch.strided, name) for name in STRIDED),
        *((torch.jagged, name) for name in JAGGED),
    ],
)
def test_ops_and_gradients(layout: torch.layout, name: str) -> None:
    op = (STRIDED if layout == torch.strided else JAGGED)[name]
    on_cpu, on_device = both(layout, 4)
    results = [op(x) for x in (on_cpu, on_device)]
    same(results[1], results[0])
    if (layout, name) in FORWARD:
        return
    for result in results:
        parts = result.unbind() if result.is_nested else [result]
        sum((part * part).sum() for part in parts).backward()  # type: ignore[union-attr]
    assert on_cpu.grad is not None
    assert on_device.grad is not None
    same(on_device.grad, on_cpu.grad)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_to_the_device_and_back(layout: torch.layout) -> None:
    on_cpu, _ = both(layout, 4)
    moved = on_cpu.detach().to("tpu")
    same(moved, on_cpu)
    back = moved.cpu()
    assert back.device.type == "cpu"
    for a, b in zip(back.unbind(), on_cpu.unbind(), strict=True):
        assert torch.equal(a, b)


def test_from_padded_and_from_a_mask() -> None:
    padded = torch.nested.nested_tensor(parts(4)).to_padded_tensor(0.0)
    mask = torch.arange(5)[None] < torch.tensor(LENGTHS)[:, None]
    expected = torch._nested_tensor_from_mask(padded, mask)
    same(torch._nested_tensor_from_mask(padded.to("tpu"), mask.to("tpu")), expected)
    sizes = torch.tensor([[n, 4] for n in LENGTHS])
    same(torch._nested_from_padded(padded.to("tpu"), sizes), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("padding", [0.0, float("-inf"), 2.0])
def test_jagged_to_padded_and_back(dtype: torch.dtype, padding: float) -> None:
    values = torch.arange(-5, 22).view(9, 3).to(dtype)
    offsets = torch.tensor([0, 4, 4, 9])  # one of them is empty
    op, back = (
        torch.ops.aten._jagged_to_padded_dense_forward,
        torch.ops.aten._padded_dense_to_jagged_forward,
    )
    for longest in (5, 3, 8):
        expected = op(values, [offsets], [longest], padding)
        padded = op(values.to("tpu"), [offsets.to("tpu")], [longest], padding)
        assert torch.equal(padded.cpu(), expected)
        if longest >= 5:
            for total in (9, None):
                again = back(padded, [offsets.to("tpu")], total)
                assert torch.equal(again.cpu(), values)
    with pytest.raises(RuntimeError, match=r"found batch item of length 5 when max length .* is 3"):
        back(torch.zeros(3, 3, 2, device="tpu"), [offsets.to("tpu")], 9).cpu()
    with pytest.raises(RuntimeError, match="final offset should match total_L value"):
        back(torch.zeros(3, 5, 2, device="tpu"), [offsets.to("tpu")], 8).cpu()


def attend(device: str, dtype: torch.dtype, causal: bool, lengths: tuple[int, ...]) -> Any:
    """Jagged attention, or on the CPU sequence by sequence; with gradients."""
    generator = torch.Generator().manual_seed(1)
    total = sum(lengths)
    made = [torch.randn(total, 2, 8, generator=generator, dtype=torch.float64) for _ in range(3)]
    leaves = [x.to(device, dtype).requires_grad_() for x in made]
    if device == "cpu":
        by_sequence = [x.split(lengths) for x in leaves]
        out = torch.cat(
            [
                F.scaled_dot_product_attention(
                    *(x.transpose(0, 1) for x in sequence), is_causal=causal
                ).transpose(0, 1)
                for sequence in zip(*by_sequence, strict=True)
            ]
        )
    else:
        offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], device=device)
        q, k, v = (
            torch.nested.nested_tensor_from_jagged(
                x, offsets, min_seqlen=min(lengths), max_seqlen=max(lengths)
            ).transpose(1, 2)
            for x in leaves
        )
        nested = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        out = nested.transpose(1, 2).values()
    out.sin().sum().backward()
    return [out.detach().cpu(), *(x.grad.cpu() for x in leaves if x.grad is not None)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lengths", [(3, 1, 5), (200, 7, 61, 130), (1,)])
def test_jagged_attention(lengths: tuple[int, ...], dtype: torch.dtype, causal: bool) -> None:
    expected = attend("cpu", dtype, causal, lengths)
    for a, b in zip(attend("tpu", dtype, causal, lengths), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def test_jagged_attention_is_one_program_for_all_lengths(fresh_counts: None) -> None:
    """What decides is the number of tokens, not how they are spread, nor the longest."""
    attend("tpu", torch.float32, False, (5, 3, 8))
    before = torch_tpu.stats()["compiles"]
    attend("tpu", torch.float32, False, (2, 13, 1))
    assert torch_tpu.stats()["compiles"] == before


def test_jagged_attention_with_a_query_of_other_lengths() -> None:
    def run(device: str) -> list[torch.Tensor]:
        q, k, v = (
            torch.nested.nested_tensor(
                [torch.randn(n, 2, 8, generator=torch.Generator().manual_seed(n)) for n in lengths],
                layout=torch.jagged,
                device=device,
            ).transpose(1, 2)
            for lengths in ((3, 1, 5), (4, 2, 6), (4, 2, 6))
        )
        v = v if device == "cpu" else k * 1
        k = k if device == "tpu" else v
        return [x.cpu() for x in F.scaled_dot_product_attention(q, k, v).unbind()]

    for a, b in zip(run("tpu"), run("cpu"), strict=True):
        torch.testing.assert_close(a, b)


class Block(nn.Module):
    """Attention and a feed-forward part over a jagged batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.query = nn.Linear(8, 8)
        self.key = nn.Linear(8, 8)
        self.value = nn.Linear(8, 8)
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (
            layer(y).unflatten(-1, (2, 4)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        return x + self.out(F.gelu(mixed))


def test_training_a_jagged_block() -> None:
    torch.manual_seed(0)
    block = Block()
    start = {name: value.clone() for name, value in block.state_dict().items()}
    losses = {}
    for device in ("cpu", "tpu"):
        block.to("cpu").load_state_dict(start)
        block.to(device)
        optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
        for step in range(3):
            x = torch.nested.nested_tensor(parts(8, seed=step), layout=torch.jagged, device=device)
            loss = block(x).values().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.setdefault(device, []).append(loss.item())
    torch.testing.assert_close(losses["tpu"], losses["cpu"], rtol=1e-4, atol=1e-5)


def test_compiled_over_jagged_tensors() -> None:
    @torch.compile(fullgraph=True)
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x) * 2 + x

    for seed in range(2):
        on_cpu, on_device = both(torch.jagged, 4, seed=seed)
        result = f(on_device)
        same(result, F.gelu(on_cpu) * 2 + on_cpu)
        assert result.shape == on_device.shape  # the same ragged size


def test_what_no_kernel_has_is_refused() -> None:
    x = both(torch.strided, 4)[1].detach()
    with pytest.raises(NotImplementedError, match="Could not run 'aten::cumsum'"):
        torch.cumsum(x, 1)
    with pytest.raises(RuntimeError, match="can only be reduced across the last dimension"):
        x.sum(1, keepdim=True)
    with pytest.raises(RuntimeError, match="does not support broadcasting"):
        x + both(torch.strided, 5)[1].detach()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer_over_a_nested_batch(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, activation="gelu", batch_first=True, norm_first=norm_first
    ).eval()
    x = torch.nested.nested_tensor(parts(8))
    with torch.no_grad():
        expected = layer(x)
        same(layer.to("tpu")(x.to("tpu")), expected)


@pytest.mark.parametrize("average", [False, True])
def test_multi_head_attention_over_a_nested_batch(average: bool) -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.nested.nested_tensor(parts(8))

    def run(x: torch.Tensor, need_weights: bool) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            return attention(x, x, x, need_weights=need_weights, average_attn_weights=average)

    expected = [run(x, need_weights) for need_weights in (False, True)]
    attention.to("tpu")
    for need_weights, (out, weights) in zip((False, True), expected, strict=True):
        got, got_weights = run(x.to("tpu"), need_weights)
        same(got, out)
        assert (got_weights is None) == (weights is None)
        if need_weights:
            same(got_weights, weights)


@pytest.mark.parametrize("where", ["query", "key", "value", "grad"])
def test_a_nan_stays_in_its_sequence(where: str) -> None:
    generator = torch.Generator().manual_seed(0)
    names = ("query", "key", "value")
    parts = {n: [torch.randn(m, 2, 4, generator=generator) for m in (3, 5, 150)] for n in names}
    if where != "grad":
        parts[where][1][2, 0, 1] = float("nan")
    tokens = [
        torch.nested.nested_tensor(
            [x.to("tpu") for x in parts[n]], layout=torch.jagged, requires_grad=True
        )
        for n in names
    ]
    out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in tokens))
    values = out.transpose(1, 2).values()
    grad = torch.ones(158, 2, 4)
    if where == "grad":
        grad[4, 0, 1] = float("nan")
    values.backward(grad.to("tpu"))
    seen = [values.detach(), *(t.grad.values() for t in tokens)]
    bad = [x.cpu().isnan().flatten(1).any(1) for x in seen]
    assert not any(b[:3].any() or b[8:].any() for b in bad)  # the others have none
    assert any(b[3:8].any() for b in bad)
