"""Fused Eager when something goes wrong: the error comes with the right words, names the line that
issued the call, and nothing else that was pending is lost."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import io
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_tpu


@pytest.fixture(autouse=True, params=["never", "first"])
def _fused(request: pytest.FixtureRequest) -> Iterator[None]:
    with torch_tpu.mode("fused"), torch_tpu.fused.compile_when(request.param):
        yield
    with contextlib.suppress(IndexError):
        torch.tpu.synchronize()


def line_here(offset: int = 0) -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno + offset


def cpu_words(call: Callable[[str], object]) -> str:
    """What the CPU says about it."""
    with pytest.raises((RuntimeError, IndexError)) as raised:
        call("cpu")
    return str(raised.value).splitlines()[0]


def test_a_shape_error_raises_at_once_and_loses_nothing() -> None:
    x = torch.arange(6.0).to("tpu")
    y = x * 2
    launches = torch_tpu.stats()["launches"]
    with pytest.raises(RuntimeError) as raised:
        y + torch.ones(4).to("tpu")
    words = cpu_words(lambda _: torch.ones(6) + torch.ones(4))
    assert str(raised.value).splitlines()[0] == words
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        y.view(2, 3) @ y.view(2, 3)
    y += 1
    assert torch_tpu.stats()["launches"] == launches  # still pending
    assert y.tolist() == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]


def bad_lookup(table: Tensor) -> tuple[Tensor, int]:
    """An index that is out of range, and the line that issues the call."""
    indices = torch.tensor([1, 9]).to("tpu")
    return F.embedding(indices, table), line_here()


READS: dict[str, Callable[[Tensor], object]] = {
    "cpu": lambda t: t.cpu(),
    "item": lambda t: t[0, 0].item(),
    "tolist": lambda t: t.tolist(),
    "repr": repr,
    "bool": lambda t: bool((t > 0).all()),
    "numpy": lambda t: t.cpu().numpy(),
    "copy_": lambda t: torch.empty(2, 3).copy_(t),
    "strided": lambda t: t.t()[1:].cpu(),
    "synchronize": lambda _: torch.tpu.synchronize(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_an_index_out_of_range_raises_at_the_read(read: Callable[[Tensor], object]) -> None:
    table = torch.arange(12.0).reshape(4, 3).to("tpu")
    before = table + 1
    out, line = bad_lookup(table)
    after = (before * 2).sum(0)
    with pytest.raises(IndexError) as raised:
        read(out)
    first, second = str(raised.value).split("\n", 1)
    assert first == cpu_words(lambda _: F.embedding(torch.tensor([1, 9]), table.cpu()))
    assert second.startswith(f"Issued by aten::embedding at {__file__}:{line} in bad_lookup: ")
    # Said once; the rest is right, and the process goes on.
    expected = torch.arange(12.0).reshape(4, 3) + 1
    assert torch.equal(before.cpu(), expected)
    assert torch.equal(after.cpu(), 2 * expected.sum(0))
    good = F.embedding(torch.tensor([1, 3]).to("tpu"), table)
    assert torch.equal(good.cpu(), table.cpu()[[1, 3]])


def test_the_line_of_a_module_in_a_loop() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2)).to("tpu")
    batches = [torch.tensor([n, 4 if n < 2 else 6 - n]).to("tpu") for n in range(4)]
    batches[2] = batches[2] + 10
    total = torch.zeros((), device="tpu")
    line = line_here(2)
    for batch in batches:
        total = total + model(batch).sum()
    with pytest.raises(IndexError, match=rf"aten::embedding at {__file__}:{line} in test_the_line"):
        total.item()


def test_an_index_out_of_range_in_backward() -> None:
    weight = torch.zeros(4, 5, device="tpu", requires_grad=True)
    loss = F.nll_loss(F.log_softmax(weight, 1), torch.tensor([0, 1, 2, 7]).to("tpu"))
    loss.backward()
    other = torch.ones(3, device="tpu") * 4
    with pytest.raises(IndexError, match="Target 7 is out of bounds"):
        weight.grad.cpu()
    assert other.tolist() == [4.0] * 3


@pytest.mark.usefixtures("steady_memory")
def test_out_of_memory() -> None:
    x = torch.ones(1 << 10, device="tpu")
    keep = x * 3
    torch.tpu.synchronize()
    _, total = torch.tpu.mem_get_info()
    try:
        fraction = (torch.tpu.memory_allocated() + (1 << 20)) / total
        torch.tpu.set_per_process_memory_fraction(fraction)
        small = x + 1
        keep += 1
        wide = x.expand(1 << 10, 1 << 10)
        with pytest.raises(torch.OutOfMemoryError, match="TPU out of memory"):
            wide * 2
    finally:
        torch.tpu.set_per_process_memory_fraction(1.0)
    assert keep.sum().item() == 4 << 10
    assert (x + 2).sum().item() == 3 << 10
    assert small.sum().item() == 2 << 10  # what fits has run


def interrupted_loop(interrupt: Callable[[], None], kind: type[BaseException]) -> None:
    counter = torch.zeros(4, device="tpu")
    double = torch.zeros(4, device="tpu")
    done = 0

    def loop() -> None:
        nonlocal counter, double, done
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            counter += 1
            double += 2
            done += 1
            if done == 50:
                interrupt()

    with pytest.raises(kind):
        loop()
    counts = counter.tolist()
    assert counts[0] in (done, done + 1)
    assert counts == [counts[0]] * 4
    assert double[0].item() in (2 * done, 2 * done + 2)
    counter += 1
    assert counter.tolist() == [counts[0] + 1] * 4


def test_keyboard_interrupt() -> None:
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupted_loop(lambda: signal.raise_signal(signal.SIGINT), KeyboardInterrupt)
    finally:
        signal.signal(signal.SIGINT, previous)


class StopWorkError(Exception):
    """Thrown into a thread from outside."""


def test_an_exception_thrown_into_the_thread() -> None:
    me = threading.get_ident()

    def throw() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(me), ctypes.py_object(StopWorkError)
        )

    interrupted_loop(lambda: threading.Timer(0.02, throw).start(), StopWorkError)


def test_an_exception_inside_a_forward() -> None:
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.seen: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.seen = self.first(x).relu()
            raise ZeroDivisionError

    torch.manual_seed(0)
    model = Breaks()
    x = torch.randn(2, 3)
    expected = model.first(x).relu().detach()
    model.to("tpu")
    with pytest.raises(ZeroDivisionError):
        model(x.to("tpu"))
    torch.testing.assert_close(model.seen.detach().cpu(), expected)


def test_looking_at_tensors_in_the_middle() -> None:
    def work(device: str, look: bool) -> list[float]:
        x = torch.arange(4.0).to(device)
        y = x * 2
        if look:  # as a debugger does: every local of the frame
            shown = {name: repr(value) for name, value in inspect.currentframe().f_locals.items()}
            assert shown["y"] == "tensor([0., 2., 4., 6.], device='tpu:0')"
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                print(y, f"{y[1]:.1f}", y.shape)
            assert out.getvalue().split("\n")[0].endswith("2.0 torch.Size([4])")
        y[1:].add_(x[:3])
        if look:
            assert y.tolist() == [0.0, 2.0, 5.0, 8.0]
            assert bool(y.any())
            assert int(y[2]) == 5
            assert np.asarray(y.cpu()).sum() == 15.0
            assert y[3] == 8
        z = y.cumsum(0)
        return (z / 2).tolist()

    assert work("tpu", look=False) == work("tpu", look=True) == work("cpu", look=False)


def test_reads_cut_and_say_so() -> None:
    def host_reads() -> int:
        return torch_tpu.stats()["cuts"].get("host read", 0)

    for read in (lambda t: t.tolist(), lambda t: bool(t.any()), repr, lambda t: t.cpu().numpy()):
        value = torch.ones(3, device="tpu") * 2
        before = host_reads()
        read(value)
        assert host_reads() > before, torch_tpu.stats()["cuts"]


def test_a_program_that_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> list[float]:
        x = torch.arange(13.0).to("tpu")
        return ((x * 3 + 1).sin() - x).tolist()

    with torch_tpu.fused.compile_when("never"):
        expected = work()  # its ops are compiled now
    torch_tpu.fused.wait()
    folder = "/proc/no/such/folder"

    def refused() -> list[dict[str, Any]]:
        # Other tests of this process may have left failed programs of their own.
        return [p for p in torch_tpu.fused.programs() if folder in (p["failure"] or "")]

    known = refused()
    before = torch_tpu.stats()
    # The text of the program cannot be written, so the compiler does not get it.
    monkeypatch.setenv("TORCH_TPU_DUMP", folder)
    with torch_tpu.fused.compile_when("first"):
        if not known:
            with pytest.warns(UserWarning, match="could not compile fused_.* run one by one"):
                assert work() == expected
        assert work() == expected  # not tried again, and not said again
    after = torch_tpu.stats()
    (program,) = refused()
    assert program["state"] == "failed"
    assert program["runs"] == 0
    if not known:
        assert after["compile_failures"] == before["compile_failures"] + 1
        assert after["fused"]["failures"] == before["fused"]["failures"] + 1
    assert after["fused_launches"] == before["fused_launches"]


# Choices and their bounds


def test_a_mode_switch_keeps_what_is_pending() -> None:
    x = torch.ones(3, device="tpu")
    y = x * 2
    with torch_tpu.mode("strict"):
        y += 1
        z = y * 2
    w = z + y
    with torch_tpu.mode("debug"):
        w += x
    assert w.tolist() == [10.0] * 3
    assert y.tolist() == [3.0] * 3


def test_a_switch_of_when_to_compile_keeps_what_is_pending() -> None:
    x = torch.ones(3, device="tpu")
    for when in ("first", "never", "second"):
        with torch_tpu.fused.compile_when(when):
            x = x * 2
    assert x.tolist() == [8.0] * 3


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_nodes": 1}, "max_nodes must be from 2 to 65536"),
        ({"max_nodes": 65537}, "max_nodes must be from 2 to 65536"),
        ({"min_nodes": 0}, "node counts must be positive"),
        ({"min_nodes": 600, "max_nodes": 512}, "min_nodes must be from 1 to max_nodes"),
        ({"max_bytes": (1 << 20) - 1}, "max_bytes must be at least 1 MiB"),
        ({"max_bytes": -1}, "max_bytes must be at least 1 MiB"),
    ],
)
def test_limits_out_of_bounds(limits: dict[str, int], words: str) -> None:
    before = torch_tpu.fused.limits()
    with pytest.raises(ValueError, match=words):
        torch_tpu.fused.set_limits(**limits)
    assert torch_tpu.fused.limits() == before


@pytest.mark.parametrize("limits", [{"min_nodes": -1}, {"max_nodes": -5}])
def test_negative_limits(limits: dict[str, int]) -> None:
    with pytest.raises((ValueError, TypeError)):
        torch_tpu.fused.set_limits(**limits)


@pytest.mark.parametrize("when", ["", "First", "always", None, 2])
def test_unknown_compile_when(when: str) -> None:
    with pytest.raises(ValueError, match="expected 'first', 'second' or 'never'"):
        torch_tpu.fused.compile_when(when)


def test_small_limits_give_the_same() -> None:
    limits = torch_tpu.fused.limits()
    try:
        for few in ({"min_nodes": 1, "max_nodes": 2}, {"max_bytes": 1 << 20}):
            torch_tpu.fused.set_limits(*limits)
            torch_tpu.fused.set_limits(**few)
            x = torch.ones(1 << 16, device="tpu")
            for _ in range(30):
                x = x * 2 - 1
            assert x.sum().item() == 1 << 16
    finally:
        torch_tpu.fused.set_limits(*limits)
