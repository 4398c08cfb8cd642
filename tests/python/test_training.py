"""Real training loops: losses on tpu agree with those on the CPU, and nothing falls back."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_tpu

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from gpt import GPT, Config

Loss = Callable[[nn.Module, tuple[Tensor, ...]], Tensor]
Optimizer = Callable[[nn.Module], torch.optim.Optimizer]


def train(
    model: nn.Module,
    device: str,
    data: list[tuple[Tensor, ...]],
    loss_of: Loss,
    make_optimizer: Optimizer,
) -> list[float]:
    """One pass over `data`; the loss of each step."""
    model = copy.deepcopy(model).to(device)
    optimizer = make_optimizer(model)
    losses = []
    for batch in data:
        loss = loss_of(model, tuple(t.to(device) for t in batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_training(
    model: nn.Module,
    data: list[tuple[Tensor, ...]],
    loss_of: Loss,
    make_optimizer: Optimizer,
    rtol: float,
) -> None:
    """Trains on both devices and compares every loss."""
    expected = train(model, "cpu", data, loss_of, make_optimizer)
    torch_tpu._C._reset_fallback_counts()
    actual = train(model, "tpu", data, loss_of, make_optimizer)
    assert torch_tpu.coverage() == {}
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), rtol=rtol, atol=0)


def next_token_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    (tokens,) = batch
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def class_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


def text_batches(count: int, batch: int, length: int) -> list[tuple[Tensor, ...]]:
    text = (Path(__file__).resolve().parents[2] / "LICENSE").read_bytes()
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(0)
    out: list[tuple[Tensor, ...]] = []
    for _ in range(count):
        starts = torch.randint(len(data) - length - 1, (batch,), generator=generator).tolist()
        out.append((torch.stack([data[s : s + length + 1] for s in starts]),))
    return out


@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_gpt_adamw_50_steps(mode: torch_tpu.Mode) -> None:
    # A gradient that is zero but for rounding (the key bias) becomes a full step under Adam unless
    # eps is above the rounding error; the CPU in float64 differs from float32 just as much.
    torch.manual_seed(0)
    model = GPT(Config(context=32))
    with torch_tpu.mode(mode):
        check_training(
            model,
            text_batches(50, batch=4, length=32),
            next_token_loss,
            lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, eps=1e-6),
            rtol=2e-3,
        )


class ConvNet(nn.Module):
    """Convolutions with batch norm, pooling and a classifier."""

    def __init__(self, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, stride in ((16, 1), (16, 2), (32, 1), (32, 2)):
            layers += [
                nn.Conv2d(channels, width, 3, stride, padding=1, bias=False),
                nn.BatchNorm2d(width),
                activation(),
            ]
            channels = width
        self.features = nn.Sequential(*layers, nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


def image_batches(count: int) -> list[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    labels = [torch.randint(10, (8,), generator=generator) for _ in range(count)]
    return [
        (torch.randn(8, 3, 16, 16, generator=generator) + 0.2 * y[:, None, None, None], y)
        for y in labels
    ]


# A value within rounding of zero may pass ReLU on one device only, and training then drifts apart;
# with a smooth activation nothing hides behind that.
@pytest.mark.parametrize(("activation", "rtol"), [(nn.SiLU, 1e-4), (nn.ReLU, 5e-2)])
def test_convnet_batchnorm_50_steps(activation: type[nn.Module], rtol: float) -> None:
    torch.manual_seed(0)
    check_training(
        ConvNet(activation),
        image_batches(50),
        class_loss,
        lambda m: torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4),
        rtol=rtol,
    )


def test_convnet_running_statistics_and_eval() -> None:
    torch.manual_seed(0)
    cpu = ConvNet()
    tpu = copy.deepcopy(cpu).to("tpu")
    for inputs, _ in image_batches(3):
        cpu(inputs)
        tpu(inputs.to("tpu"))
    for name, expected in cpu.named_buffers():
        torch.testing.assert_close(tpu.get_buffer(name).cpu(), expected)
    probe = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(
        tpu.eval()(probe.to("tpu")).cpu(), cpu.eval()(probe), rtol=1e-4, atol=1e-5
    )


class Tagger(nn.Module):
    """An LSTM over tokens with a classifier on the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 24)
        self.lstm = nn.LSTM(24, 32, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states[:, -1])


def test_lstm_50_steps() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(2)
    data: list[tuple[Tensor, ...]] = []
    for _ in range(50):
        tokens = torch.randint(50, (6, 9), generator=generator)
        data.append((tokens, tokens[:, 0] % 5))
    check_training(
        Tagger(),
        data,
        class_loss,
        lambda m: torch.optim.Adam(m.parameters(), lr=5e-3, eps=1e-6),
        rtol=2e-3,
    )


@torch_tpu.mode("strict")
def test_learning_rate_compiles_nothing() -> None:
    model = nn.Linear(8, 8).to("tpu")
    x = torch.randn(4, 8, device="tpu")

    def steps(optimizer: torch.optim.Optimizer, rates: list[float]) -> None:
        for rate in rates:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()

    for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
        optimizer = make(model.parameters(), lr=0.5)
        steps(optimizer, [0.1, 0.2])
        before = torch_tpu.stats()["misses"]
        steps(optimizer, [0.3, 0.05, 1e-4, 0.7])
        assert torch_tpu.stats()["misses"] == before, make


@torch_tpu.mode("strict")
def test_python_scalars_compile_nothing() -> None:
    x = torch.randn(5, device="tpu")
    y = torch.randn(5, device="tpu")

    def work(s: float) -> Tensor:
        out = (x * s + s).clamp(min=-s, max=s).add(y, alpha=s)
        out = out.masked_fill(out > s, s).addcmul(x, y, value=s).lerp(y, s)
        return out.fill_(s) + torch.full_like(x, s)

    work(0.3)
    before = torch_tpu.stats()["misses"]
    for s in (0.4, 0.7, -2.5, 1e-3):
        expected = torch.full((5,), 2 * s)
        torch.testing.assert_close(work(s).cpu(), expected)
    assert torch_tpu.stats()["misses"] == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_step(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
    twin = copy.deepcopy(model).to("tpu")
    x, y = torch.randn(8, 16), torch.randint(4, (8,))
    with torch.autocast("cpu", dtype=dtype):
        expected = F.cross_entropy(model(x), y)
    with torch.autocast("tpu", dtype=dtype):
        actual = F.cross_entropy(twin(x.to("tpu")), y.to("tpu"))
    expected.backward()
    actual.backward()
    torch.testing.assert_close(actual.cpu(), expected, rtol=2e-2, atol=2e-2)
    for a, b in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=5e-2, atol=2e-2)
