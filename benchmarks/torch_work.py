"""The workloads in plain PyTorch. The device is a parameter, and nothing else differs.

A workload is a function without arguments that does one unit of work, waits until it is done and
gives a number: the loss, or a sum of the result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from spec import (
    CHAIN_OPS,
    CONVNET,
    GPT,
    MLP,
    ConvNet,
    Gpt,
    Mlp,
    learning_rate,
)
from torch import Tensor, nn
from weights import integers, normal, parameter

Work = Callable[[], float]
Function = TypeVar("Function", bound=Callable[..., object])

COMPILER = ""  # the backend of torch.compile, or "" for eager; set by worker.py
OWN_ATTENTION = True  # whether scaled_dot_product_attention may be called; set by worker.py


def compiled(function: Function, dynamic: bool | None = None) -> Function:
    """The function as it is, or by torch.compile in the contestants that compile."""
    if not COMPILER:
        return function
    return torch.compile(function, backend=COMPILER, dynamic=dynamic)


class Block(nn.Module):
    """Explicit attention (no fused kernel: not every contestant has one) and a feed-forward net."""

    def __init__(self, spec: Gpt) -> None:
        super().__init__()
        self.heads = spec.heads
        self.norm1 = nn.LayerNorm(spec.width)
        self.qkv = nn.Linear(spec.width, 3 * spec.width)
        self.proj = nn.Linear(spec.width, spec.width)
        self.norm2 = nn.LayerNorm(spec.width)
        self.up = nn.Linear(spec.width, 4 * spec.width)
        self.down = nn.Linear(4 * spec.width, spec.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        scores = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
        mixed = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GptModel(nn.Module):
    """Token and position embeddings, blocks, a norm and a head."""

    mask: Tensor

    def __init__(self, spec: Gpt) -> None:
        super().__init__()
        self.tokens = nn.Embedding(spec.vocab, spec.width)
        self.positions = nn.Parameter(torch.empty(spec.length, spec.width))
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.layers))
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, spec.vocab, bias=False)
        hidden = torch.ones(spec.length, spec.length, dtype=torch.bool).triu(1)
        self.register_buffer("mask", hidden, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions[:length]
        mask = self.mask[:length, :length]
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def mlp_model(spec: Mlp) -> nn.Module:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for _ in range(spec.layers):
        layers += [nn.Linear(spec.width, spec.width), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convnet_model(spec: ConvNet) -> nn.Module:
    """Convolutions with batch norm and ReLU, a mean over the image and a linear layer."""
    layers: list[nn.Module] = []
    previous = 3
    for channels, stride in zip(spec.channels, spec.strides, strict=True):
        layers += [
            nn.Conv2d(previous, channels, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        ]
        previous = channels
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(previous, spec.classes)]
    return nn.Sequential(*layers)


def with_weights(model: nn.Module, device: str) -> nn.Module:
    """The model on the device, with the weights every contestant starts from."""
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(torch.from_numpy(parameter(name, tuple(tensor.shape))))
    return model.to(device)


def synchronize(device: str) -> None:
    """Waits for all work on the device; the CPU has none pending."""
    if device != "cpu":
        torch.accelerator.synchronize()


def chain(device: str, size: int, op: Callable[[Tensor, Tensor, int], Tensor]) -> Work:
    """The same three ops over and over, each on the result of the one before."""
    x = torch.from_numpy(normal("x", (size, size))).to(device)

    @compiled
    def ops(y: Tensor) -> Tensor:
        for i in range(CHAIN_OPS):
            y = op(y, x, i % 3)
        return y

    return lambda: ops(x).cpu().sum().item()


def tiny_op(y: Tensor, x: Tensor, which: int) -> Tensor:
    """x*0.5, +x, relu."""
    if which == 0:
        return y * 0.5
    return y + x if which == 1 else y.relu()


def chain_op(y: Tensor, x: Tensor, which: int) -> Tensor:
    """sin, *0.5, +x."""
    if which == 0:
        return y.sin()
    return y * 0.5 if which == 1 else y + x


def training(
    device: str,
    loss_of: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer,
) -> Work:
    """One step: forward, backward, update; done when the update is, not only the loss."""
    rate = optimizer.param_groups[0]["lr"]
    steps = itertools.count()
    loss_of = compiled(loss_of)
    update = compiled(optimizer.step)

    def work() -> float:
        optimizer.param_groups[0]["lr"] = learning_rate(next(steps), rate)
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        update()
        synchronize(device)
        return loss.item()

    return work


def mlp(device: str) -> Work:
    """MLP, mean squared error, SGD."""
    model = with_weights(mlp_model(MLP), device)
    x = torch.from_numpy(normal("x", (MLP.batch, MLP.width))).to(device)
    y = torch.from_numpy(normal("y", (MLP.batch, MLP.width))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return training(device, lambda: F.mse_loss(model(x), y), optimizer)


def gpt(device: str) -> Work:
    """GPT, cross entropy, AdamW."""
    model = with_weights(GptModel(GPT), device)
    shape = (GPT.batch, GPT.length)
    tokens = torch.from_numpy(integers("tokens", GPT.vocab, shape)).long().to(device)
    targets = torch.from_numpy(integers("targets", GPT.vocab, shape)).long().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)

    def loss_of() -> Tensor:
        return F.cross_entropy(model(tokens).view(-1, GPT.vocab), targets.view(-1))

    return training(device, loss_of, optimizer)


def gpt_forward(device: str) -> Work:
    """GPT logits."""
    model = with_weights(GptModel(GPT), device).eval()
    tokens = torch.from_numpy(integers("tokens", GPT.vocab, (GPT.batch, GPT.length)))
    tokens = tokens.long().to(device)

    forward = compiled(model)

    def work() -> float:
        with torch.no_grad():
            return forward(tokens).cpu()[0, :, 0].sum().item()

    return work


def convnet(device: str) -> Work:
    """ConvNet, cross entropy, SGD with momentum."""
    model = with_weights(convnet_model(CONVNET), device)
    x = torch.from_numpy(normal("x", (CONVNET.batch, 3, CONVNET.side, CONVNET.side))).to(device)
    y = torch.from_numpy(integers("y", CONVNET.classes, (CONVNET.batch,))).long().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return training(device, lambda: F.cross_entropy(model(x), y), optimizer)


WORK: dict[str, Callable[[str], Work]] = {
    "tiny300": lambda device: chain(device, 8, tiny_op),
    "chain300": lambda device: chain(device, 64, chain_op),
    "mlp": mlp,
    "gpt": gpt,
    "gpt_forward": gpt_forward,
    "convnet": convnet,
    "memory": gpt,
}
