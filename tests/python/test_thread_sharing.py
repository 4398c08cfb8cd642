"""Threads that share tensors see what they would see on the CPU: a write into one part of a tensor
loses no write into another, a read beside a write that changes nothing gives the right value, and
no order of operands makes two threads wait for each other.

All numbers are small integers, so every result is exact."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from threads import in_threads
from torch import Tensor

import torch_tpu

MODES = ("strict", "fused", "debug")


@pytest.fixture(params=MODES, autouse=True)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with torch_tpu.mode(request.param):
        yield request.param


def preserve(w: Tensor) -> None:
    w.mul_(1.0)
    w.add_(0.0)


def read_sum(w: Tensor) -> float:
    return w.sum().item()


def doubled_sum(w: Tensor) -> Tensor:
    return (w * 2).sum()


compiled_preserve = torch.compile(preserve, backend="tpu")
compiled_sum = torch.compile(doubled_sum, backend="tpu")

WRITERS: dict[str, Callable[[Tensor], object]] = {
    "eager": preserve,
    "compiled": compiled_preserve,
}
READERS: dict[str, Callable[[Tensor], float]] = {
    "sum": read_sum,
    "copy": lambda w: w.cpu().sum().item(),
    "rows": lambda w: float(sum(w[i].sum().item() for i in (0, 100, 255)) + w[[1, 2]].sum().item()),
    "clone": lambda w: w.clone().add_(1).sum().item(),
    "compiled": lambda w: compiled_sum(w).item(),
}


def for_seconds(seconds: float, work: Callable[[], object], stop: threading.Event) -> None:
    """Until one of the threads fails, or the time is over."""
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end and not stop.is_set():
            work()
    except BaseException:
        stop.set()
        raise


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_reads_beside_writes_that_change_nothing(writer: str, reader: str) -> None:
    w = torch.arange(256 * 256.0).remainder_(7).reshape(256, 256).to("tpu")
    write, read = WRITERS[writer], READERS[reader]
    write(w)  # compiled before the threads start
    right = read(w)
    assert right == {
        "sum": w.cpu().sum().item(),
        "copy": w.cpu().sum().item(),
        "rows": w.cpu()[[0, 100, 255, 1, 2]].sum().item(),
        "clone": w.cpu().sum().item() + w.numel(),
        "compiled": 2 * w.cpu().sum().item(),
    }.get(reader)
    stop = threading.Event()
    reads = 0

    def reading() -> None:
        nonlocal reads
        value = read(w)
        reads += 1
        assert value == right, f"read {reads} gave {value}, not {right}"

    seconds = 3.0 if reader == "sum" else 0.7
    writing = lambda: write(w)  # noqa: E731
    in_threads([lambda work=work: for_seconds(seconds, work, stop) for work in (writing, reading)])
    assert reads > 0
    assert w.cpu().sum().item() == torch.arange(256 * 256.0).remainder_(7).sum().item()


def test_reads_and_writes_in_several_threads_and_modes(mode: str) -> None:
    w = torch.arange(64 * 64.0).remainder_(5).reshape(64, 64).to("tpu")
    right = w.cpu().sum().item()
    others = itertools.cycle(other for other in MODES if other != mode)
    compiled_preserve(w)
    stop = threading.Event()

    def reading() -> None:
        assert read_sum(w) == right

    def switching() -> None:
        with torch_tpu.mode(next(others)):  # type: ignore[arg-type]
            time.sleep(0.01)

    works = [lambda: preserve(w), lambda: compiled_preserve(w), reading, reading, switching]
    in_threads([lambda work=work: for_seconds(2.0, work, stop) for work in works])
    assert w.cpu().sum().item() == right


# Threads that own a row each

COLUMNS = 8


def indices(i: int) -> Tensor:
    return torch.tensor([i]).to("tpu")


# (on the device: base and the number of the row; the same for a row on the CPU)
ROW_WRITES: dict[str, tuple[Callable[[Tensor, int, int], object], Callable[[Tensor, int], object]]]
ROW_WRITES = {
    "add_": (lambda w, i, k: w[i].add_(1), lambda row, k: row.add_(1)),
    "setitem": (lambda w, i, k: w[i, 2:5].fill_(k), lambda row, k: row[2:5].fill_(k)),
    "number": (lambda w, i, k: w.__setitem__((i, 0), k), lambda row, k: row[0].fill_(k)),
    "narrow": (
        lambda w, i, k: w.narrow(0, i, 1).copy_(torch.full((1, COLUMNS), float(k)).to("tpu")),
        lambda row, k: row.fill_(k),
    ),
    "select": (
        lambda w, i, k: w.select(0, i).copy_(torch.arange(COLUMNS, device="tpu") + k),
        lambda row, k: row.copy_(torch.arange(COLUMNS) + k),
    ),
    "strided": (lambda w, i, k: w[i, 1::2].mul_(2), lambda row, k: row[1::2].mul_(2)),
    "transposed": (lambda w, i, k: w.t()[3:, i].sub_(k), lambda row, k: row[3:].sub_(k)),
    "out": (
        lambda w, i, k: torch.add(torch.ones(COLUMNS, device="tpu"), k, out=w[i]),
        lambda row, k: row.fill_(1 + k),
    ),
    "index_add_": (
        lambda w, i, k: w.index_add_(0, indices(i), torch.ones(1, COLUMNS, device="tpu"), alpha=3),
        lambda row, k: row.add_(3),
    ),
    "index_put_": (
        lambda w, i, k: w.__setitem__(
            indices(i), torch.full((1, COLUMNS), k, device="tpu").float()
        ),
        lambda row, k: row.fill_(k),
    ),
    "from host": (
        lambda w, i, k: w[i].copy_(torch.full((COLUMNS,), float(k))),
        lambda row, k: row.fill_(k),
    ),
}


@pytest.mark.parametrize("threads", [2, 4, 8])
def test_threads_write_their_own_rows(threads: int) -> None:
    w = torch.zeros(threads, COLUMNS, device="tpu")
    rows = [torch.zeros(COLUMNS) for _ in range(threads)]

    def work(i: int) -> None:
        row = rows[i]
        for turn in range(24):
            for k, name in enumerate(ROW_WRITES):
                if (turn * 7 + k * 3 + i) % 4 == 0:  # another order in each thread
                    write, model = ROW_WRITES[name]
                    write(w, i, k)
                    model(row, k)
                    if (turn + k) % 5 == 0:
                        assert w[i].tolist() == row.tolist(), f"row {i}, turn {turn}, after {name}"
            row.clamp_(-1000, 1000)
            w[i].clamp_(-1000, 1000)
        assert w[i].tolist() == row.tolist()

    in_threads([lambda i=i: work(i) for i in range(threads)])
    assert torch.equal(w.cpu(), torch.stack(rows))


@pytest.mark.parametrize("name", ROW_WRITES)
def test_one_kind_of_write_into_rows(name: str) -> None:
    threads, turns = 4, 40
    w = torch.zeros(threads, COLUMNS, device="tpu")
    rows = [torch.zeros(COLUMNS) for _ in range(threads)]
    write, model = ROW_WRITES[name]

    def work(i: int) -> None:
        for turn in range(turns):
            write(w, i, turn % 3)
            model(rows[i], turn % 3)
            if name == "strided":  # stays exact
                w[i].add_(1).clamp_(-1000, 1000)
                rows[i].add_(1).clamp_(-1000, 1000)

    in_threads([lambda i=i: work(i) for i in range(threads)])
    assert torch.equal(w.cpu(), torch.stack(rows))


def test_threads_write_their_own_columns_and_elements() -> None:
    threads, turns = 4, 60
    columns = torch.zeros(16, threads, device="tpu")
    elements = torch.zeros(threads, dtype=torch.int64, device="tpu")

    def work(i: int) -> None:
        mine, element = columns[:, i], elements[i]
        for turn in range(turns):
            mine += 1
            elements[i] += i
            element += 1
            if turn % 10 == 0:
                assert mine.tolist() == [turn + 1.0] * 16
                assert element.item() == (i + 1) * (turn + 1)

    in_threads([lambda i=i: work(i) for i in range(threads)])
    assert torch.equal(columns.cpu(), torch.full((16, threads), float(turns)))
    assert elements.tolist() == [(i + 1) * turns for i in range(threads)]


def test_views_that_live_on() -> None:
    """Made by one thread, written by others, overlapping where one thread has all of them."""
    threads, turns = 4, 60
    w = torch.zeros(threads, COLUMNS, device="tpu")
    rows, elements, flat = list(w.unbind()), [w[i, 3] for i in range(threads)], w.view(-1)

    def work(i: int) -> None:
        for _ in range(turns):
            rows[i].add_(1)
            elements[i].add_(1)
            flat[i * COLUMNS].sub_(1)

    in_threads([lambda i=i: work(i) for i in range(threads)])
    expected = torch.full((threads, COLUMNS), float(turns))
    expected[:, 3] += turns
    expected[:, 0] -= turns
    assert torch.equal(w.cpu(), expected)


def test_views_of_another_dtype() -> None:
    turns = 50
    w = torch.zeros(4, 2, device="tpu")
    numbers = torch.zeros(4, dtype=torch.complex64, device="tpu")
    real, imaginary, bits = numbers.real, numbers.imag, w.view(torch.int32)

    def add(part: Tensor, k: int) -> None:
        for _ in range(turns):
            part.add_(k)

    parts = [(w[0], 1), (bits[1], 1), (w[2], 2), (bits[3], 2), (real, 1), (imaginary, 2)]
    in_threads([lambda part=part, k=k: add(part, k) for part, k in parts])
    assert w[::2].tolist() == [[turns] * 2, [2 * turns] * 2]
    assert bits[1::2].tolist() == [[turns] * 2, [2 * turns] * 2]
    assert numbers.tolist() == [complex(turns, 2 * turns)] * 4


def add_row(row: Tensor, source: Tensor) -> None:
    row.add_(source)
    row[:2].sub_(source[0])


def test_compiled_functions_write_their_own_rows() -> None:
    threads, turns = 4, 40
    compiled = torch.compile(add_row, backend="tpu")
    w = torch.zeros(threads, COLUMNS, device="tpu")
    rows = torch.zeros(threads, COLUMNS)
    source = torch.arange(1.0, COLUMNS + 1)
    on_device = source.to("tpu")
    for i in range(threads):  # tracing is PyTorch's, and for one thread at a time
        compiled(w[i], on_device)
        add_row(rows[i], source)

    def work(i: int) -> None:
        for _ in range(turns):
            compiled(w[i], on_device)
            add_row(rows[i], source)

    in_threads([lambda i=i: work(i) for i in range(threads)])
    assert torch.equal(w.cpu(), rows)


def test_optimizers_over_parts_of_one_buffer() -> None:
    """As a flat buffer of parameters, of which each thread steps its own."""
    threads, turns = 4, 15
    flat = torch.zeros(threads * COLUMNS, device="tpu")

    def work(i: int) -> None:
        part = flat[i * COLUMNS : (i + 1) * COLUMNS].requires_grad_()
        optimizer = torch.optim.SGD([part], lr=1.0)
        for _ in range(turns):
            optimizer.zero_grad()
            (part * (i + 1)).sum().backward()
            optimizer.step()

    in_threads([lambda i=i: work(i) for i in range(threads)])
    expected = torch.arange(1.0, threads + 1).mul(-turns).repeat_interleave(COLUMNS)
    assert torch.equal(flat.cpu(), expected)


# Orders that could make two threads wait for each other


@pytest.mark.parametrize("size", [16, 1 << 16])
def test_lists_of_tensors_in_different_orders(size: int) -> None:
    shared = [torch.full((size,), float(n), device="tpu") for n in range(6)]
    ones = [torch.ones(size, device="tpu") for _ in range(6)]
    orders = [list(range(6)), [5, 4, 3, 2, 1, 0], [3, 0, 5, 1, 4, 2], [1, 0, 3, 2, 5, 4]]

    def work(order: list[int]) -> None:
        tensors = [shared[n] for n in order]
        for _ in range(25):
            torch._foreach_mul_(tensors, 1.0)
            torch._foreach_mul_(tensors, [ones[n] for n in order])
            torch._foreach_add_(tensors, 0.0)
            torch._foreach_copy_(tensors, [tensor.clone() for tensor in tensors])
        torch._foreach_max(tensors)

    in_threads([lambda order=order: work(order) for order in orders])
    for n, tensor in enumerate(shared):
        assert tensor.sum().item() == n * size


def add_each_other(a: Tensor, b: Tensor) -> None:
    a.add_(b)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_two_threads_in_place_on_each_others_operand(compiled: bool) -> None:
    a, b = (torch.zeros(128, 128, device="tpu") for _ in range(2))
    call = torch.compile(add_each_other, backend="tpu") if compiled else add_each_other
    call(a, b)
    turns = 200

    def work(target: Tensor, operand: Tensor) -> None:
        for turn in range(turns):
            call(target, operand)
            if turn % 20 == 0:
                assert target.sum().item() == 0

    in_threads([lambda: work(a, b), lambda: work(b, a), lambda: work(a, b)])
    assert (a.sum() + b.sum()).item() == 0


def test_variants_of_a_graph_made_beside_its_calls() -> None:
    """Each length of the storage behind an operand is another variant."""
    for _ in range(3):
        call = torch.compile(add_each_other, backend="tpu")
        a = torch.zeros(512, 512, device="tpu")
        operands = [torch.zeros(512 + n, 512, device="tpu")[:512] for n in range(24)]

        def work(first: int, call=call, a=a, operands=operands) -> None:
            for n in range(24):
                for _ in range(8):
                    call(a, operands[(first + n) % 24])
                    call(a, operands[first])

        in_threads([lambda first=first: work(first) for first in (0, 6, 12, 18)])
        assert a.sum().item() == 0


def test_swaps_of_equal_tensors() -> None:
    a, b = (torch.arange(4096.0, device="tpu") for _ in range(2))

    def work(target: Tensor, source: Tensor) -> None:
        for _ in range(100):
            target.copy_(source)
            target[1:9].copy_(source[1:9])
            torch.maximum(target, source, out=target)

    in_threads([lambda: work(a, b), lambda: work(b, a)])
    assert torch.equal(a.cpu(), torch.arange(4096.0))
    assert torch.equal(b.cpu(), torch.arange(4096.0))


def test_writes_that_a_lock_puts_in_order() -> None:
    """Each thread takes over the tensor where the one before it left it, pending ops and all."""
    counter = torch.zeros(5, dtype=torch.int64, device="tpu")
    lock = threading.Lock()

    def work(i: int) -> None:
        for turn in range(60):
            with lock:
                counter.add_(1)
                counter[i].add_(10)
            if turn % 20 == 0:
                counter.tolist()

    in_threads([lambda i=i: work(i) for i in range(4)])
    assert counter.tolist() == [4 * 60 + 600] * 4 + [4 * 60]


def test_tensors_freed_by_another_thread() -> None:
    """Values that one thread makes, pending or not, are read and dropped by another."""
    made: list[tuple[Tensor, float] | None] = []
    ready = threading.Condition()

    def making() -> None:
        for n in range(200):
            x = torch.full((64,), float(n % 16), device="tpu")
            x.mul_(2)
            if n % 3 == 0:
                x = x.clone()
            with ready:
                made.append((x, 128.0 * (n % 16)))
                ready.notify_all()
        with ready:
            made.extend([None, None])
            ready.notify_all()

    def freeing() -> None:
        for turn in itertools.count():
            with ready:
                ready.wait_for(lambda: made)
                item = made.pop(0)
            if item is None:
                return
            if turn % 2 == 0:
                assert item[0].sum().item() == item[1]
            del item

    in_threads([making, freeing, freeing])
