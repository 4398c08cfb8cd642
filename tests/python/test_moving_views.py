"""Where a view lies in its base is a number the program gets when it runs: one program for a loop
over rows, positions of a cache, steps of a sequence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import torch_tpu


def compiles() -> int:
    torch_tpu.fused.wait()
    return int(torch_tpu.stats()["compiles"])


def check(
    work: Callable[[str, range], list[Tensor]], first: range, other: range, most: int
) -> None:
    """The same as on the CPU; a second range of places compiles nothing new."""
    before = compiles()
    for got, expected in zip(work("tpu", first), work("cpu", first), strict=True):
        torch.testing.assert_close(got.cpu(), expected)
    assert compiles() - before <= most
    before = compiles()
    for got, expected in zip(work("tpu", other), work("cpu", other), strict=True):
        torch.testing.assert_close(got.cpu(), expected)
    assert compiles() == before


def test_rows_written_one_by_one() -> None:
    def work(device: str, places: range) -> list[Tensor]:
        x = torch.arange(96.0 * 3).reshape(96, 3).to(device)
        for i in places:
            x[i] += 1
        return [x]

    check(work, range(40), range(48, 88), most=8)


def test_elements_written_one_by_one() -> None:
    def work(device: str, places: range) -> list[Tensor]:
        x = torch.zeros(7, 9, dtype=torch.int64, device=device)
        for i in places:
            x[i // 9, i % 9] = i
            x[i // 9, i % 9] *= 2
        return [x]

    check(work, range(20), range(20, 63), most=20)


def test_rows_of_memory_that_was_never_written() -> None:
    def work(device: str, places: range) -> list[Tensor]:
        out = []
        for i in places:
            x = torch.empty(96, 3, device=device)
            x[i] = i
            x[i, 1:] += 1
            out.append(x[i])
        return out

    check(work, range(1, 9), range(48, 60), most=8)


def test_rows_read_one_by_one() -> None:
    def work(device: str, places: range) -> list[Tensor]:
        x = torch.arange(96.0 * 3).reshape(96, 3).to(device)
        return [x[i].sum() for i in places]

    check(work, range(32), range(33, 64), most=4)


def test_a_recurrent_net_over_time_steps() -> None:
    torch.manual_seed(0)
    cell = nn.LSTMCell(3, 5)
    data = torch.randn(2, 64, 3)

    def work(device: str, places: range) -> list[Tensor]:
        net = nn.LSTMCell(3, 5)
        net.load_state_dict(cell.state_dict())
        net.to(device)
        x = data.to(device)
        h = c = torch.zeros(2, 5, device=device)
        for t in places:
            h, c = net(x[:, t], (h, c))
        h.sum().backward()
        return [h.detach(), *(p.grad for p in net.parameters() if p.grad is not None)]

    check(work, range(16), range(32, 48), most=40)


def test_a_cache_written_at_a_position() -> None:
    def work(device: str, places: range) -> list[Tensor]:
        keys = torch.zeros(1, 2, 48, 4, device=device)
        query = torch.linspace(0, 1, 8, device=device).view(1, 2, 1, 4)
        out = []
        for p in places:
            keys[:, :, p : p + 1] = query * p
            mask = torch.arange(48, device=device) <= p
            scores = (query @ keys.transpose(-1, -2)).masked_fill(~mask, -1e9)
            out.append(scores.softmax(-1) @ keys)
        return out

    check(work, range(1, 20), range(21, 40), most=24)


VIEWS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "rows": lambda x, i: x[i],
    "columns": lambda x, i: x[:, i],
    "both": lambda x, i: x[i : i + 2, i],
    "steps": lambda x, i: x[i::2, i::3],
    "transposed": lambda x, i: x.transpose(0, 2)[i],
    "diagonal": lambda x, i: x.diagonal(offset=i),
    "window": lambda x, i: x.as_strided((3, 3), (2, 3), i),  # elements overlap
    "odd strides": lambda x, i: x.flatten()[i:].as_strided((2, 2), (7, 5), 5 * i),
    "repeated": lambda x, i: x[i, :, i : i + 1].expand(-1, 4),
    "unfolded": lambda x, i: x.unfold(1, 2, 1)[i],
    "reshaped across": lambda x, i: x.view(-1)[6 * i : 6 * i + 12].view(3, 4),
    "channels last": lambda x, i: x.permute(2, 0, 1)[i : i + 1],
    "of another dtype": lambda x, i: x.view(torch.int32)[i],
    "empty at the end": lambda x, i: x[6:, i],
    "a scalar": lambda x, i: x[i, i, i],
}


@pytest.mark.parametrize("mode", ["fused", "strict"])
@pytest.mark.parametrize("name", VIEWS)
def test_every_kind_of_view_is_read_where_it_is(name: str, mode: str) -> None:
    view = VIEWS[name]
    x = torch.arange(6.0 * 6 * 6).reshape(6, 6, 6)
    with torch_tpu.mode(mode):
        y = x.to("tpu")
        for i in (0, 1, 2, 3, 4, 1):
            assert torch.equal((view(y, i) + 1).cpu(), view(x, i) + 1)


WRITABLE = [name for name in VIEWS if name not in ("window", "odd strides", "repeated", "unfolded")]


@pytest.mark.parametrize("mode", ["fused", "strict"])
@pytest.mark.parametrize("name", WRITABLE)
def test_every_kind_of_view_is_written_where_it_is(name: str, mode: str) -> None:
    view = VIEWS[name]
    x = torch.arange(6.0 * 6 * 6).reshape(6, 6, 6)
    with torch_tpu.mode(mode):
        y = x.to("tpu")
        for i in (0, 1, 2, 3, 4, 1):
            view(x, i).add_(i + 1)
            view(y, i).add_(i + 1)
            assert torch.equal(y.cpu(), x)


def test_one_program_for_both_ends_of_a_copy() -> None:
    def work(device: str, places: range) -> list[Tensor]:
        x = torch.arange(64.0 * 2).reshape(64, 2).to(device)
        for i in places:
            x[i] = x[63 - i] + x[i - 1]
        return [x]

    check(work, range(2, 20), range(33, 60), most=12)


def test_an_overlap_that_is_an_error_stays_one() -> None:
    x = torch.arange(10.0, device="tpu")
    x[0:2].copy_(x[4:6])
    x[1:5].mul_(2)
    with pytest.raises(RuntimeError, match="unsupported operation"):
        torch.add(x[1:5], 1, out=x[2:6])
    torch.add(x[1:3], 1, out=x[5:7])
    with pytest.raises(RuntimeError, match="unsupported operation"):
        torch.add(x[2:6], 1, out=x[3:7])


def test_a_part_of_changing_length_near_the_end() -> None:
    """A program for lengths up to a bound must not move a part that ends where its base does."""
    x = torch.arange(256.0).view(64, 4)
    y = x.to("tpu")
    for n in range(17, 32):
        for start in (64 - n, 63 - n):
            got = (y[start : start + n] * 2).softmax(0).cumsum(0) + 1
            expected = (x[start : start + n] * 2).softmax(0).cumsum(0) + 1
            torch.testing.assert_close(got.cpu(), expected)


def test_large_places() -> None:
    x = torch.zeros(2**24 + 8, dtype=torch.float32, device="tpu")
    for i in (2**24 + 1, 2**24 + 3):
        x[i] = 5.0
        assert x[i].item() == 5.0
        assert x[i - 1].item() == x[i + 1].item() == 0.0
    assert x.sum().item() == 10.0


def test_a_compiled_graph_over_rows() -> None:
    compiled = torch.compile(lambda a, b: (a * 2 + b).sin().sum(-1), backend="tpu")
    x = torch.arange(64.0 * 8).reshape(64, 8)
    y, one = x.to("tpu"), torch.ones(8, device="tpu")
    before = compiles()
    for i in range(12):
        got = compiled(y[i], one)
        torch.testing.assert_close(got.cpu(), (x[i] * 2 + 1).sin().sum(-1))
    assert compiles() - before <= 4


def test_a_compiled_graph_that_writes_rows() -> None:
    compiled = torch.compile(lambda a: a.mul_(2), backend="tpu")
    x = torch.arange(6.0 * 8).reshape(6, 8)
    y = x.to("tpu")
    for i in range(6):
        compiled(y[i])
        x[i].mul_(2)
    assert torch.equal(y.cpu(), x)


def test_a_compiled_training_step_over_rows() -> None:
    weight = torch.eye(8)
    compiled = torch.compile(lambda a, w: (a @ w).tanh().sum(), backend="tpu")
    x = torch.linspace(-1, 1, 6 * 4 * 8).reshape(6, 4, 8)
    y = x.to("tpu")
    for i in range(6):
        mine, theirs = weight.to("tpu").requires_grad_(), weight.clone().requires_grad_()
        compiled(y[i], mine).backward()
        (x[i] @ theirs).tanh().sum().backward()
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)
