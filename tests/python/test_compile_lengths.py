"""Training under torch.compile with lengths that change: forward and backward are bounded, and one
program serves all lengths up to the bound."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import torch_tpu


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    with torch_tpu.mode("strict"):
        yield


class Block(nn.Module):
    """Attention with a mask of its own, layers over [B*T, C], an empty constant to begin with."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)
        self.head = nn.Linear(16, 32)
        self.dropout = dropout

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        shifted = tokens.new_zeros(tokens.shape)
        shifted[:, 1:] = tokens[:, :-1].clone()
        shifted[:, 0] = 1
        x = self.embedding(shifted)
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 4, 4).permute(2, 0, 3, 1, 4)
        k = torch.cat([torch.tensor([], dtype=k.dtype, device=k.device), k], dim=-2)
        y = nn.functional.scaled_dot_product_attention(
            q, k, v, mask[:, None, None, :] > 0, dropout_p=self.dropout
        )
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        flat = torch.addmm(self.up.bias, x.view(-1, c), self.up.weight.t())
        x = x + self.down(nn.functional.gelu(flat)).view(b, t, c)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


def batch(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    mask = torch.ones(2, n)
    mask[0, n - 4 :] = 0
    return torch.randint(0, 32, (2, n), generator=generator), mask


def losses_and_gradients(
    run: Callable[..., Tensor], model: nn.Module, device: str, lengths: tuple[int, ...]
) -> list[Tensor]:
    found = []
    for n in lengths:
        model.zero_grad()
        loss = run(*(value.to(device) for value in batch(n)))
        loss.backward()
        found.append(loss.detach().cpu())
        found += [p.grad.cpu() for p in model.parameters() if p.grad is not None]
    return found


@pytest.mark.parametrize("autocast", [False, True])
def test_training_is_bounded(autocast: bool) -> None:
    cpu = Block()
    device = copy.deepcopy(cpu).to("tpu")
    compiled = torch.compile(device, backend="tpu")
    lengths = (20, 35, 40, 50, 64, 20)

    def on(kind: str, model: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(*args: Tensor) -> Tensor:
            with torch.autocast(kind, dtype=torch.bfloat16, enabled=autocast):
                return model(*args)

        return run

    expected = losses_and_gradients(on("cpu", cpu), cpu, "cpu", lengths)
    actual = losses_and_gradients(on("tpu", compiled), device, "tpu", lengths)
    tolerance = {"rtol": 0.1, "atol": 0.02} if autocast else {"rtol": 1e-3, "atol": 1e-5}
    for want, have in zip(expected, actual, strict=True):
        torch.testing.assert_close(have, want, **tolerance)
    assert counters["torch_tpu"]["unbounded_graphs"] == 0
    assert counters["torch_tpu"]["graphs_forward"] == 2  # static, then dynamic: PyTorch's own two
    before = torch_tpu.stats()["compiles"]
    losses_and_gradients(on("tpu", compiled), device, "tpu", (33, 36, 61))
    assert torch_tpu.stats()["compiles"] == before


def test_attention_with_dropout_is_bounded() -> None:
    """It drops by true positions: two lengths of one bound draw what each would draw alone."""
    model = Block(dropout=0.5).to("tpu")
    compiled = torch.compile(model, backend="tpu")
    alone = torch.compile(model, backend="tpu", options={"bounded": False})
    for n in (20, 35, 50):
        args = [value.to("tpu") for value in batch(n)]
        torch.manual_seed(n)
        have = compiled(*args)
        torch.manual_seed(n)
        torch.testing.assert_close(have.cpu(), alone(*args).cpu())
    assert counters["torch_tpu"]["unbounded_graphs"] == 0


def test_mask_of_another_length_is_not_taken_for_the_same() -> None:
    """Two symbols that were equal so far, and are not any more."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        q = x[None, None]
        bias = y[None, None, None, :]
        return nn.functional.scaled_dot_product_attention(q, q, q, bias).sum() + y.sum()

    compiled = torch.compile(function, backend="tpu", dynamic=True)
    for n in (20, 25, 30):
        x, y = torch.randn(n, 4), torch.randn(n)
        actual = compiled(x.to("tpu"), y.to("tpu"))
        torch.testing.assert_close(actual.cpu(), function(x, y), rtol=1e-4, atol=1e-4)
    x, y = torch.randn(30, 4), torch.randn(1)
    actual = compiled(x.to("tpu"), y.to("tpu"))
    torch.testing.assert_close(actual.cpu(), function(x, y), rtol=1e-4, atol=1e-4)


def test_traced_layout_where_sizes_vary() -> None:
    """Without bounds: a gradient that was traced as transposed is viewed so."""
    model = Block().to("tpu")
    compiled = torch.compile(model, backend="tpu", dynamic=True, options={"bounded": False})
    expected = losses_and_gradients(model, model, "tpu", (20, 27))
    actual = losses_and_gradients(compiled, model, "tpu", (20, 27))
    for want, have in zip(expected, actual, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-5)


def test_small_last_batch_keeps_its_program() -> None:
    model = nn.Linear(4, 3).to("tpu")
    compiled = torch.compile(model, backend="tpu")

    def step(n: int) -> int:
        before = torch_tpu.stats()["compiles"]
        compiled(torch.ones(n, 4, device="tpu")).sum().backward()
        return int(torch_tpu.stats()["compiles"] - before)

    for n in (32, 32, 8, 32):
        step(n)
    assert [step(n) for n in (8, 32, 32, 8)] == [0, 0, 0, 0]
    assert counters["torch_tpu"]["graphs_forward"] == 2
