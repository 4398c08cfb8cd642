"""Loops whose indices move, and a last batch that is smaller. A loop of a first call has everything
to compile; the second call goes over other indices, so it shows what an index costs by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from spec import MOVING, TAIL, ConvNet
from torch import Tensor, nn
from torch_work import Work, compiled, convnet_model, with_weights
from weights import integers, normal

RANGES = 4  # of indices, one after another, then again from the first


def starts(length: int) -> Iterator[int]:
    """Where each call's range of indices begins."""
    return itertools.cycle(range(0, RANGES * length, length))


def values(name: str, shape: tuple[int, ...], device: str) -> Tensor:
    """The same numbers for everybody."""
    return torch.from_numpy(normal(name, shape)).to(device)


def moving_write(device: str) -> Work:
    """x[i] += 1."""
    count = MOVING.rows
    x = values("x", (RANGES * count, MOVING.width), device)
    begins = starts(count)

    def add(x: Tensor, i: int) -> None:
        x[i] += 1

    def work() -> float:
        begin = next(begins)
        for i in range(begin, begin + count):
            add(x, i)
        return float(x.cpu().sum().item())

    return work


def moving_read(device: str) -> Work:
    """x[i].sum().item()."""
    count = MOVING.reads
    x = values("x", (RANGES * count, MOVING.width), device)
    begins = starts(count)

    def work() -> float:
        begin = next(begins)
        return float(sum(x[i].sum().item() for i in range(begin, begin + count)))

    return work


def moving_rnn(device: str) -> Work:
    """h = tanh(x[t] @ u + h @ w)."""
    count, width = MOVING.steps, MOVING.width
    x = values("x", (RANGES * count, 4, width), device)
    u, w = (values(name, (width, width), device) / width for name in "uw")
    begins = starts(count)
    step = compiled(lambda part, h: torch.tanh(part @ u + h @ w))

    def work() -> float:
        begin = next(begins)
        h = torch.zeros(4, width, device=device)
        for t in range(begin, begin + count):
            h = step(x[t], h)
        return float(h.cpu().sum().item())

    return work


def moving_cache(device: str) -> Work:
    """One token after another: its key and value go into the cache, and it attends to them."""
    heads, width, count = MOVING.heads, MOVING.width // MOVING.heads, MOVING.positions
    keys = torch.zeros(1, heads, RANGES * count, width, device=device)
    held = torch.zeros_like(keys)
    q, k, v = (values(name, (RANGES * count, 1, heads, 1, width), device) for name in "qkv")
    begins = starts(count)

    def attend(q: Tensor, keys: Tensor, held: Tensor) -> Tensor:
        scores = (q @ keys.transpose(-2, -1)) * width**-0.5
        return scores.softmax(-1) @ held

    attend = compiled(attend)

    def work() -> float:
        begin = next(begins)
        total = torch.zeros((), device=device)
        with torch.no_grad():
            for p in range(begin, begin + count):
                keys[:, :, p : p + 1] = k[p]
                held[:, :, p : p + 1] = v[p]
                total = total + attend(q[p], keys, held).sum()
        return float(total.item())

    return work


def moving_lstm(device: str) -> Work:
    """An LSTMCell over xs[:, k], and backward through all steps."""
    count, width = MOVING.cells, MOVING.width
    xs = values("xs", (4, RANGES * count, width), device)
    cell = with_weights(nn.LSTMCell(width, width), device)
    begins = starts(count)
    step = compiled(cell)

    def work() -> float:
        begin = next(begins)
        h = c = torch.zeros(4, width, device=device)
        for k in range(begin, begin + count):
            h, c = step(xs[:, k], (h, c))
        loss = h.square().mean()
        loss.backward()
        total = loss.item()
        for parameter in cell.parameters():
            assert parameter.grad is not None
            total += float(parameter.grad.cpu().square().sum().item())
            parameter.grad = None
        return total

    return work


def tail(device: str, autocast: bool = False) -> Work:
    """Steps of full batches, then the one that is left, then epochs."""
    net = ConvNet(channels=TAIL.channels, strides=(1, 2, 2), classes=TAIL.classes)
    model = with_weights(convnet_model(net), device)
    images = torch.from_numpy(normal("images", (TAIL.samples, 3, TAIL.side, TAIL.side)))
    labels = torch.from_numpy(integers("labels", TAIL.classes, (TAIL.samples,))).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    batches = list(zip(images.split(TAIL.batch), labels.split(TAIL.batch), strict=True))

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            return F.cross_entropy(model(x).float(), y)

    loss_of = compiled(loss_of)

    def steps(chosen: list[tuple[Tensor, Tensor]]) -> float:
        total = 0.0
        for x, y in chosen:
            loss = loss_of(x.to(device), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        return total

    calls = itertools.chain([batches[:-1], batches[-1:]], itertools.repeat(batches))
    return lambda: steps(next(calls))


WORK: dict[str, Callable[[str], Work]] = {
    "moving_write": moving_write,
    "moving_read": moving_read,
    "moving_rnn": moving_rnn,
    "moving_cache": moving_cache,
    "moving_lstm": moving_lstm,
    "tail": tail,
    "tail_autocast": lambda device: tail(device, autocast=True),
}
