"""Models for `torch-tpu aot`: the demo GPT, and Llamas that need no memory.

    torch-tpu aot examples/aot_models.py:gpt --topology v5e:2x2
    torch-tpu aot examples/aot_models.py:llama_7b --shard fsdp --scan blocks \
        --compare v5e:4x4 tpu7x:2x2x1
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from gpt import GPT, Config
from torch import Tensor, nn

from torch_tpu.aot import TrainStep


def next_token_loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in float32."""
    return F.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten())


def step_of(model: nn.Module, batch: int, length: int) -> tuple[TrainStep, tuple[Tensor, Tensor]]:
    """A step of AdamW on a batch of tokens."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.empty(batch, length, dtype=torch.long, device="meta")
    return TrainStep(model, optimizer, next_token_loss), (tokens, tokens)


def gpt() -> tuple[TrainStep, tuple[Tensor, Tensor]]:
    """The step that examples/train_gpt.py does."""
    with torch.device("meta"):
        model = GPT(Config(context=64))
    return step_of(model, batch=8, length=64)


class LlamaBlock(nn.Module):
    """Attention with rotary positions, and a gated feed-forward network."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (m(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for m in self.qkv())
        mixed = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True
        )
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def qkv(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        return self.q, self.k, self.v


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: halves of each head turn against each other."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Llama(nn.Module):
    """As the 7B model of that name, in plain PyTorch."""

    def __init__(
        self,
        layers: int = 32,
        width: int = 4096,
        heads: int = 32,
        hidden: int = 11008,
        vocab: int = 32000,
    ) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.tokens = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        half = torch.arange(0, self.head_dim, 2, device=x.device, dtype=torch.float32)
        place = torch.arange(tokens.shape[1], device=x.device, dtype=torch.float32)
        angle = torch.outer(place, 10000.0 ** (-half / self.head_dim))
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def llama_7b() -> tuple[TrainStep, tuple[Tensor, Tensor]]:
    """A step on 16 sequences of 2048 tokens, weights and states in bfloat16."""
    with torch.device("meta"):
        model = Llama().to(torch.bfloat16)
    return step_of(model, batch=16, length=2048)


def llama_70b() -> tuple[TrainStep, tuple[Tensor, Tensor]]:
    """The same with 80 layers of width 8192 (all heads have keys of their own)."""
    with torch.device("meta"):
        model = Llama(80, 8192, 64, 28672).to(torch.bfloat16)
    return step_of(model, batch=16, length=2048)
