"""The Python line that issued an op, taken without the GIL: every kind of code and thread."""

from __future__ import annotations

import _thread
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from torch_tpu import _C


def here(offset: int = 0) -> str:
    """ "file:line in function" of the caller, `offset` lines away."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    caller = frame.f_back
    return f"{caller.f_code.co_filename}:{caller.f_lineno + offset} in {caller.f_code.co_name}"


def test_user_function() -> None:
    line = _C._issue_line()
    assert line == here(-1) + ": line = _C._issue_line()"


def test_line_of_a_long_call() -> None:
    lines = [
        _C._issue_line(),
        _C._issue_line(),
    ]
    last = here(-2)
    first = here(-4)
    assert lines[0].startswith(first + ": ")
    assert lines[1].startswith(last + ": ")


def test_caller_of_a_user_function_is_not_named() -> None:
    def inner() -> tuple[str, str]:
        return _C._issue_line(), here()

    line, where = inner()
    assert line.startswith(where)
    assert " in inner: " in line


def library_function() -> Callable[..., str]:
    """A function whose code belongs to a file of torch."""
    namespace: dict[str, Any] = {"capture": _C._issue_line}
    exec(compile("def library(*_):\n    return capture()\n", torch.__file__, "exec"), namespace)
    function: Callable[..., str] = namespace["library"]
    return function


def test_module_forward_names_the_user_line() -> None:
    seen: list[str] = []
    library = library_function()

    class Inner(nn.Identity):
        pass

    Inner.forward = library  # type: ignore[assignment]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(self.inner(x))
            seen.append(here(-1))
            return x

    Net()(torch.ones(1))
    assert seen[0] == seen[1] + ": seen.append(self.inner(x))"


def test_no_user_frame_gives_the_innermost_line() -> None:
    # Python's own threading module counts as the user's; a bare thread has no other frames.
    lock, seen = threading.Lock(), []
    code = compile(
        "def run(*_):\n    seen.append(capture())\n    lock.release()\n", torch.__file__, "exec"
    )
    namespace: dict[str, Any] = {"capture": _C._issue_line, "seen": seen, "lock": lock}
    exec(code, namespace)
    lock.acquire()
    _thread.start_new_thread(namespace["run"], ())
    assert lock.acquire(timeout=30)
    assert seen[0].startswith(f"{torch.__file__}:2 in run")


def test_lambda_generator_comprehension_and_class_body() -> None:
    line = (lambda: _C._issue_line())()
    assert line.startswith(here(-1).split(" in ")[0] + " in <lambda>: ")

    def generate() -> Iterator[str]:
        yield _C._issue_line()
        yield _C._issue_line()

    first, second = generate()
    assert first.startswith(here(-4).rsplit(" ", 1)[0] + " generate")
    assert second.startswith(here(-4).rsplit(" ", 1)[0] + " generate")

    made = [_C._issue_line() for _ in range(2)]
    assert made[0].startswith(here(-1).split(" in ")[0])
    assert made[0] == made[1]

    class Body:
        line = _C._issue_line()
        where = here(-1)

    assert Body.line.startswith(Body.where)
    assert " in Body: " in Body.line


async def coroutine() -> str:
    return _C._issue_line()


def test_coroutine() -> None:
    step = coroutine()
    with pytest.raises(StopIteration) as done:
        step.send(None)
    assert " in coroutine: return _C._issue_line()" in done.value.value


def test_exec_code_has_no_source_text() -> None:
    namespace: dict[str, object] = {"capture": _C._issue_line}
    exec("\n\nline = capture()", namespace)
    assert namespace["line"] == "<string>:3 in <module>"


def test_threads_of_python_and_of_others() -> None:
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(_C._issue_line()))
    thread.start()
    thread.join()
    assert seen[0].startswith(here(-3).split(" in ")[0] + " in <lambda>")
    assert _C._issue_line("native") == ""
    assert _C._issue_line("attached") == ""


class Reports(torch.autograd.Function):
    """Has a user's line in backward, on autograd's thread."""

    lines: ClassVar[list[str]] = []

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        Reports.lines.append(_C._issue_line())
        return grad * 2


def test_python_code_on_autograd_thread() -> None:
    Reports.lines.clear()
    x = torch.ones(2, device="tpu", requires_grad=True)
    Reports.apply(x).sum().backward()
    assert "in backward: Reports.lines.append(" in Reports.lines[0]


def test_pending_exception_survives() -> None:
    try:
        raise ValueError("kept")
    except ValueError:
        assert _C._issue_line().startswith(here())
        assert str(sys.exc_info()[1]) == "kept"


def test_code_is_kept_alive_and_counted_once() -> None:
    def fresh(number: int) -> str:
        namespace: dict[str, object] = {"capture": _C._issue_line}
        exec(compile("line = capture()", f"<fresh {number}>", "exec"), namespace)
        return str(namespace["line"])

    before = _C._pinned_code()
    assert [fresh(n) for n in range(50)] == [f"<fresh {n}>:1 in <module>" for n in range(50)]
    added = _C._pinned_code() - before
    assert 50 <= added <= 60
    for _ in range(10):
        _C._issue_line()
    assert _C._pinned_code() - before <= added + 2


def test_cost() -> None:
    # About 10 ns on a quiet machine; a bound that only a mistake exceeds.
    assert 0 < min(_C._issue_line_cost(10_000) for _ in range(5)) < 500


SATURATE = """
import torch, torch_tpu
from torch_tpu import _C
def run(n):
    space = {"capture": _C._issue_line}
    exec(compile("line = capture()", f"<c{n}>", "exec"), space)
    return space["line"]
assert run(0) == "<c0>:1 in <module>"
known = _C._issue_line()
lines = [run(n) for n in range(9000)]
assert _C._pinned_code() == 8192, _C._pinned_code()
assert lines[100] == "<c100>:1 in <module>" and lines[-1] == ""
assert _C._issue_line().split(":")[0] == known.split(":")[0]  # what is known stays known
print("ok")
"""


def test_the_number_of_code_objects_is_bounded(tmp_path: Path) -> None:
    script = tmp_path / "saturate.py"
    script.write_text(SATURATE)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stdout == "ok\n", done.stderr


STRESS = """
import sys, threading, torch, torch_tpu
from torch_tpu import _C
sys.setswitchinterval(1e-5)
wrong = []
def work(thread):
    for n in range(400):
        name = f"<t{thread}n{n % 40 if n % 3 else n}>"
        space = {"capture": _C._issue_line}
        exec(compile("def f():\\n    return [capture() for _ in range(3)]\\n", name, "exec"), space)
        for line in space["f"]():
            if not line.startswith(f"{name}:2 in ") and line != "":
                wrong.append((name, line))
        _C._issue_line_cost(50)
threads = [threading.Thread(target=work, args=(t,)) for t in range(6)]
for t in threads: t.start()
for t in threads: t.join()
assert not wrong, wrong[:3]
print("ok")
"""


def test_many_threads(tmp_path: Path) -> None:
    script = tmp_path / "stress.py"
    script.write_text(STRESS)
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
