"""Fused Eager with threads, forks and the end of the process; and the same programs everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_tpu


@pytest.fixture(autouse=True)
def _fused() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    with torch_tpu.mode("fused"), torch_tpu.fused.compile_when("second"):
        yield
    sys.setswitchinterval(interval)


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Runs `work(0)` ... in threads that start together; a failure in any is the test's."""
    barrier = threading.Barrier(count)

    def start(number: int) -> None:
        barrier.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(start, number) for number in range(count)]
        for future in futures:
            future.result(timeout=120)


def test_own_tensors() -> None:
    def work(number: int) -> None:
        x = torch.full((4,), float(number)).to("tpu")
        for turn in range(30):
            x = x * 1 + 1
            if turn % (number + 2) == 0:
                assert x.tolist() == [number + turn + 1.0] * 4
        assert x.sum().item() == 4 * (number + 30)

    in_threads(4, work)


def test_shared_tensors() -> None:
    shared = torch.arange(5.0).to("tpu")
    made: list[Tensor] = []

    def work(number: int) -> None:
        for turn in range(30):
            y = shared * number + turn
            made.append(y)
            if turn % 5 == number:
                expected = [n * number + turn for n in range(5)]
                assert y.tolist() == expected
                assert made[turn % len(made)].cpu().shape == (5,)

    in_threads(4, work)
    assert shared.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    total = torch.stack(made).sum().item()
    assert total == sum(n * k + t for n in range(5) for k in range(4) for t in range(30))


def test_calls_that_keep_the_gil() -> None:
    # PyTorch reads an index on the device, and records an event, without letting go of the GIL.
    def work(number: int) -> None:
        for turn in range(40):
            x = torch.arange(8.0, device="tpu") * (number + 1)
            index = torch.arange(5, device="tpu")[2 + turn % 2] + 1
            event = torch.Event("tpu")
            event.record()
            assert x[index].item() == (number + 1) * (3 + turn % 2)
            event.synchronize()

    in_threads(4, work)


def test_one_thread_reads_while_another_records() -> None:
    counter = torch.zeros(3, device="tpu")
    stop = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            for _ in range(300):
                counter.add_(1)
            stop.set()
            return
        last = 0.0
        while not stop.is_set():
            seen = counter.tolist()
            assert seen == [seen[0]] * 3
            assert seen[0] >= last
            last = seen[0]

    in_threads(3, work)
    assert counter.tolist() == [300.0] * 3


def test_backward_in_several_threads() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    x = torch.randn(4, 2, 3)
    expected = []
    for part in x:
        grads = torch.autograd.grad(model(part).square().sum(), list(model.parameters()))
        expected.append([g.clone() for g in grads])
    model.to("tpu")
    parts = x.to("tpu")

    def work(number: int) -> None:
        for _ in range(5):
            loss = model(parts[number]).square().sum()
            grads = torch.autograd.grad(loss, list(model.parameters()))
            for grad, right in zip(grads, expected[number], strict=True):
                torch.testing.assert_close(grad.cpu(), right)

    in_threads(4, work)


def test_modes_change_under_way() -> None:
    def work(number: int) -> None:
        if number == 0:
            for _ in range(20):
                with torch_tpu.mode("strict"), torch_tpu.fused.compile_when("never"):
                    torch_tpu.fused.flush()
            return
        x = torch.zeros(3, device="tpu")
        for _ in range(50):
            x += number
        assert x.tolist() == [50.0 * number] * 3

    in_threads(3, work)


# Processes


def run(code: str, timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_fork_with_ops_pending() -> None:
    done = run("""
        import os, torch, torch_tpu
        x = torch.arange(4.0).to("tpu")
        for _ in range(3):
            torch_tpu.fused.wait()
            y = (x * 2 + 1).sum()
            y.item()
        y = x * 2  # pending
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                wrong = 0
                for call in (y.tolist, lambda: x + 1, y.sum, torch_tpu.fused.flush):
                    try:
                        call()
                    except RuntimeError as error:
                        wrong += "Cannot re-initialize TPU in forked subprocess" not in str(error)
                    else:
                        wrong += call is not torch_tpu.fused.flush
                del x, y
                status = wrong
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        print(y.tolist(), (y + x).sum().item())
    """)
    assert (done.returncode, done.stdout) == (0, "[0.0, 2.0, 4.0, 6.0] 18.0\n"), done.stderr


# Enough work for the compiler that it is not done when the process ends.
BUSY = """
import sys, threading, torch, torch_tpu
def turn(n):
    x = torch.full((3, n), 0.5, device="tpu")
    for _ in range(60):
        x = (x @ x.t()).softmax(1) @ x
    return x.sum()
for n in (4, 5, 6):
    turn(n).item(); turn(n).item()
assert torch_tpu._C._fused_busy() > 0
"""


@pytest.mark.parametrize(
    ("end", "code", "error"),
    [
        ("", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("t = threading.Thread(target=lambda: (turn(4), sys.exit(5))); t.start(); t.join()", 0, ""),
    ],
    ids=["end", "exit", "exception", "thread"],
)
def test_the_end_while_compiling(end: str, code: int, error: str, tmp_path) -> None:
    done = run(BUSY + end, timeout=60, TORCH_TPU_CACHE_DIR=str(tmp_path))
    waiting = "torch_tpu: waiting for a background compilation to end ...\n"
    said = done.stderr.replace(waiting, "")
    assert done.returncode == code, done.stderr
    assert said.endswith(error)
    if not error:
        assert said == ""


@pytest.mark.parametrize(
    "code",
    [
        "import torch; x = torch.ones(3, device='tpu').requires_grad_(); (x * 2).sum().backward()",
        "import torch_tpu; torch_tpu.fused.flush(); torch_tpu.fused.wait()",
    ],
)
def test_nothing_is_ever_read(code: str) -> None:
    done = run(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Limits are read with the first op, when to compile with the first launch: the order in which they
# are complained about.
BAD = {
    "TORCH_TPU_FUSED_MIN_NODES": "0",
    "TORCH_TPU_FUSED_MAX_NODES": "many",
    "TORCH_TPU_FUSED_MAX_BYTES": "12",
    "TORCH_TPU_FUSED_COMPILE": "always",
}
GOOD = {
    "TORCH_TPU_FUSED_MIN_NODES": "3",
    "TORCH_TPU_FUSED_MAX_NODES": "9",
    "TORCH_TPU_FUSED_MAX_BYTES": "2M",
    "TORCH_TPU_FUSED_COMPILE": "first",
}


def test_choices_from_the_environment(tmp_path) -> None:
    done = run(
        f"""
        import os, torch, torch_tpu
        for (name, bad), good in zip({BAD!r}.items(), {GOOD!r}.values()):
            os.environ[name] = bad
            try:
                (torch.ones(3, device="tpu") * 2).tolist()
                print("no error")
            except RuntimeError as error:
                print(name in str(error), bad in str(error))
            os.environ[name] = good
        print(torch_tpu._C._get_fused_compile(), *torch_tpu.fused.limits())
        x = torch.ones(3, device="tpu")
        for _ in range(20):
            x = x * 2 - 1
        print(x.tolist(), max(len(p["ops"]) for p in torch_tpu.fused.programs()) <= 9)
        print(torch_tpu.stats()["replays"])
        """,
        TORCH_TPU_CACHE_DIR=str(tmp_path),
    )
    choices = f"first 3 9 {2 << 20}"
    assert done.stdout.splitlines() == ["True True"] * 4 + [choices, "[1.0, 1.0, 1.0] True", "0"], (
        done
    )


def test_the_same_programs_in_every_process() -> None:
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), os.pardir, "stress"))
    try:
        from fingerprints import fingerprints_of_processes
    finally:
        sys.path.pop(0)
    lists = fingerprints_of_processes(6, at_once=3)
    assert len(lists[0]) > 3
    assert lists == [lists[0]] * 6


def test_backward_runs_on_the_thread_that_calls_it() -> None:
    """Unless the user asks for autograd's own."""
    x = torch.ones(3, device="tpu", requires_grad=True)
    seen: list[int] = []
    y = x * 2
    y.register_hook(lambda grad: seen.append(threading.get_ident()))
    y.sum().backward(retain_graph=True)
    assert seen == [threading.get_ident()]
    with torch.autograd.set_multithreading_enabled(True):
        y.sum().backward()
    assert seen[1] != seen[0]
    assert x.grad is not None
    assert x.grad.tolist() == [4.0, 4.0, 4.0]


def test_a_process_without_our_tensors_keeps_its_threads(run_python: Any) -> None:
    out = run_python("""
        import torch, torch_tpu
        torch.ones(3, requires_grad=True).sum().backward()
        print(torch._C._is_multithreading_enabled())
    """)
    assert out.split() == ["True"]
