"""A child that is forked from a process which used the device, and leaves it alone, ends as any
other would: whatever it inherits, and whatever other threads were at when it was forked."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from distributed.ranks import free_port

# `fork(end)` waits for a child that calls `end` and then runs on to the end of the script; there it
# gives True. No child may hang, or end with another code than expected.
PRELUDE = """
import atexit, faulthandler, gc, multiprocessing, os, signal, sys, threading, time
import torch, torch_tpu
faulthandler.enable()

def await_child(pid, code=0, seconds=100):
    deadline = time.monotonic() + seconds
    done = 0
    while not done:
        done, status = os.waitpid(pid, os.WNOHANG)
        if not done and time.monotonic() > deadline:
            os.kill(pid, signal.SIGABRT)  # says where it is
            time.sleep(2)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.002)
    assert os.waitstatus_to_exitcode(status) == code, os.waitstatus_to_exitcode(status)

def fork(end=lambda: None, code=0):
    pid = os.fork()
    if pid == 0:
        end()
        return True
    await_child(pid, code)
    return False

def refused(call):
    try:
        call()
    except RuntimeError as error:
        return "Cannot re-initialize TPU in forked subprocess" in str(error)
    return False
"""


def run(code: str, folder: Path | None = None, timeout: float = 280, **env: str) -> str:
    """In a fresh process; its output. With a cache of programs of its own where one is given."""
    if folder is not None:
        env["TORCH_TPU_CACHE_DIR"] = str(folder)
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "terminate" not in done.stderr, done.stderr
    return done.stdout


# Ops are pending, programs were loaded from disk, autograd has run.
USE = """
model = torch.nn.Linear(8, 8).to("tpu")
x = torch.ones(4, 8, device="tpu")
for _ in range(4):
    loss = model(x).square().sum()
    loss.backward()
    loss.item()
"""
EVERY_END = """
pinned = torch.ones(1000).pin_memory()
later = (x * 2).cos()  # pending

def raise_error():
    raise KeyError("on purpose")

def drop_all():
    global model, x, loss, pinned, later
    del model, x, loss, pinned, later
    gc.collect()
    sys.exit(0)

def at_exit():
    atexit.register(gc.collect)
    sys.exit(7)

def exit_in_grandchild():
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    await_child(pid)
    sys.exit(0)

def cpu_work():
    y = torch.randn(16, 16, requires_grad=True)
    (torch.manual_seed(3), (y @ y).sum(), torch.ones(10).pin_memory(), gc.collect())
    with torch_tpu.mode("strict"):
        pass
    sys.exit(0)

for end, code in [(lambda: sys.exit(0), 0), (raise_error, 1), (drop_all, 0), (at_exit, 7),
                  (exit_in_grandchild, 0), (cpu_work, 0), (lambda: os._exit(0), 0)]:
    fork(end, code)
process = multiprocessing.get_context("fork").Process(target=gc.collect)
process.start()
process.join(30)
assert process.exitcode == 0, process.exitcode
if not fork():  # the child goes on to the end
    print(torch.allclose(later.cpu(), (torch.ones(4, 8) * 2).cos()))
"""


@pytest.mark.parametrize("mode", ["fused", "strict"])
def test_every_end_of_a_child(tmp_path: Path, mode: str) -> None:
    env = {
        "TORCH_TPU_MODE": mode,
        # How long PyTorch waits for autograd's threads: longer than we wait for a child.
        "TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT": "100",
    }
    run(USE, tmp_path, **env)  # for the programs on disk
    assert run(USE + EVERY_END, tmp_path, **env) == "True\n"


@pytest.mark.slow
def test_while_compilers_are_at_work(tmp_path: Path) -> None:
    out = run(
        """
        def turn(n):
            x = torch.full((3, n), 0.5, device="tpu")
            for _ in range(40):
                x = (x @ x.t()).softmax(1) @ x
            return x.sum()

        busy = 0
        with torch_tpu.mode("fused"), torch_tpu.fused.compile_when("second"):
            for n in range(4, 24):
                turn(n).item(), turn(n).item()
                busy += torch_tpu._C._fused_busy() > 0
                held = turn(n)
                fork(lambda: sys.exit(0))
        print(busy > 0)
        """,
        tmp_path,
        TORCH_TPU_COMPILE_THREADS="2",
    )
    assert out == "True\n"


def test_while_other_threads_use_the_device() -> None:
    """They hold one lock or another when the process forks."""
    out = run(
        """
        over = threading.Event()

        def work():
            while not over.is_set():
                x = torch.ones(64, device="tpu")
                for _ in range(20):
                    x = x * 0.5 + torch.ones(64).pin_memory().to("tpu")
                x.sum().item()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        y = torch.arange(4.0).to("tpu")
        pinned = [torch.ones(100).pin_memory() for _ in range(100)]

        def end():
            global y, pinned
            ok = refused(lambda: y + 1) and refused(y.tolist)
            del y, pinned
            torch.ones(10).pin_memory()
            os._exit(0 if ok else 1)

        for _ in range(20):
            fork(end)
        over.set()
        for thread in threads:
            thread.join()
        print(y.tolist())
        """
    )
    assert out == "[0.0, 1.0, 2.0, 3.0]\n"


def test_before_the_start_a_child_has_its_own() -> None:
    """Also the threads that compile, though the parent asked for them before it forked."""
    run(
        """
        torch_tpu.fused.wait()
        torch.ones(10).pin_memory()

        def use():
            with torch_tpu.mode("fused"), torch_tpu.fused.compile_when("second"):
                for _ in range(4):
                    x = torch.ones(8, 8, device="tpu")
                    for _ in range(10):
                        x = (x @ x).softmax(1)
                    assert abs(x.sum().item() - 8) < 1e-5
                    torch_tpu.fused.wait()
                assert torch_tpu._C._fused_counts()["hits"] > 0

        assert not torch.tpu.is_initialized()
        for _ in range(2):
            if fork(use):
                sys.exit(0)
        use()
        fork(lambda: sys.exit(0))
        """
    )


def test_while_the_client_starts() -> None:
    """A child of that time is turned away, or was forked before the start: it does not hang."""
    run(
        """
        torch.tpu.is_available()
        starter = threading.Thread(target=torch.tpu.init)

        def end():
            use = lambda: torch.ones(2, device="tpu").sum().item()
            os._exit(0 if (refused(use) if torch.tpu._is_in_bad_fork() else use() == 2) else 1)

        starter.start()
        forked = 0
        while starter.is_alive() or forked == 0:
            time.sleep(0.02)
            fork(end)
            forked += 1
        starter.join()
        fork(end)
        """
    )


RANK = """
import torch.distributed as dist
rank, port = int(os.environ["RANK"]), int(os.environ["PORT"])
store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
dist.init_process_group("tpu", store=store, rank=rank, world_size=2)
x = torch.ones(100, device="tpu")
dist.all_reduce(x)
dist.barrier()
y = torch.ones(100, device="tpu")
if rank == 1:
    time.sleep(1)  # the other has a promise
work = dist.all_reduce(y, async_op=True)
later = y + 1
group = dist.group.WORLD

def refuse_and_end():
    ok = refused(later.tolist) and refused(y.tolist)
    try:
        dist.barrier()
        ok = False
    except (dist.DistBackendError, RuntimeError):
        pass
    dist.destroy_process_group()
    os._exit(0 if ok else 1)

def drop_all():
    global x, y, work, later, group
    del x, y, work, later, group
    dist.distributed_c10d._world.pg_map.clear()
    gc.collect()
    sys.exit(0)

for end in (refuse_and_end, drop_all, lambda: sys.exit(0)):
    fork(end)
print(later.sum().item())
dist.barrier()
dist.destroy_process_group()
"""


def test_with_collectives_under_way() -> None:
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PRELUDE + RANK],
            env={**os.environ, "RANK": str(rank), "PORT": port},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert all(text.endswith("300.0\n") for text in outputs), outputs
