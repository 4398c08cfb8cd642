"""Errors on purpose: indices out of range and more memory than there is. The worker that made one
is told, each time it reads what came of it; no other worker is, and nothing else is lost."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .own import matrix
from .worker import Worker, WrongError

LOOKUPS = (
    "{a}[{index}]",
    "{a}.index_select(0, {index})",
    "F.embedding({index}, {a}.float())",
    "{a}.take({index} * {columns})",
)
DERIVED = (
    "{x} * 2",
    "{x}.sum()",
    "torch.stack([{x}, {x}])",
    "{x}.clone()",
    "{x} + 1",
    "{x}.to(torch.float64)",
)
READS = ("{x}.tolist()", "{x}.sum().item()", "{x}.cpu()")


def attempt(w: Worker, line: str, kind: type[Exception]) -> bool:
    """Runs a line on the device alone. Whether it went through."""
    w.say(line)
    try:
        exec(line, w.device)
    except kind as error:
        w.say(f"# raised {kind.__name__}: {str(error).splitlines()[0][:80]}")
        return False
    return True


def must_raise(w: Worker, expression: str, kind: type[Exception]) -> None:
    w.say(f"{expression}  # must raise {kind.__name__}")
    try:
        value = eval(expression, w.device)
    except kind:
        return
    shown = value.flatten()[:4].tolist() if isinstance(value, Tensor) else value
    raise WrongError(f"{expression} raised no {kind.__name__} but gave {shown}")


def bad_index(w: Worker) -> None:
    a = matrix(w)
    rows, columns = w.cpu[a].shape
    number = w.pick.choice((rows, rows + 3, -rows - 1, 1 << 40))
    w.say(f"bad = torch.tensor([0, {number}]).to({w.place(a)})")
    w.device["bad"] = torch.tensor([0, number]).to(w.device[a].device)
    template = w.pick.choice((*LOOKUPS, "compiled"))
    reads = [w.pick.choice(READS).format(x="x") for _ in range(w.pick.randrange(1, 4))]
    derived = w.pick.choice(DERIVED).format(x="x")
    line = template.format(a=a, index="bad", columns=columns)
    if template == "compiled":
        w.device["table"] = w.device[a].float().contiguous().to("tpu:0", copy=True)
        w.device["bad"] = w.device["bad"].to("tpu:0")
        w.say(f"table = {a}.float().contiguous().to(d0, copy=True); bad = bad.to(d0)")
        line = "c_look_up(table, bad)"
    try:
        if attempt(w, f"x = {line}", IndexError):
            for read in reads:
                must_raise(w, read, IndexError)
            if attempt(w, f"y = {derived}", IndexError):
                must_raise(w, "y.tolist()", IndexError)
            must_raise(w, "x.tolist()", IndexError)
        w.check(a)
    finally:
        for name in ("x", "y", "bad", "table"):
            w.device.pop(name, None)


def bad_write(w: Worker) -> None:
    """A tensor that is written from a bad value keeps what it had, and says so once."""
    a = matrix(w)
    rows, _ = w.cpu[a].shape
    w.say(f"bad = torch.tensor([{rows + 1}]).to({w.place(a)})")
    w.device["bad"] = torch.tensor([rows + 1]).to(w.device[a].device)
    line = w.pick.choice(("{a}.add_({a}[bad])", "{a}[0] = {a}[bad][0]", "{a}[1:].copy_({a}[bad])"))
    try:
        if attempt(w, line.format(a=a), IndexError):
            must_raise(w, f"{a}.tolist()", IndexError)
        w.check(a)
    finally:
        w.device.pop("bad", None)


TOO_MUCH: tuple[tuple[str, str], ...] = (
    # (a line, what to read of it)
    ("x = torch.empty(1 << 28, device={d})", "x[:2].tolist()"),
    ("x = torch.full((1 << 28,), 2.0, device={d})", "x.cpu()"),
    ("x = torch.ones(1 << 14, device={d}).expand(1 << 14, 1 << 14) * 2", "x.cpu()"),
    ("x = torch.ones(1 << 14, 1, device={d}) + torch.ones(1 << 14, device={d})", "x.cpu()"),
    ("x = torch.empty(1 << 28).to({d})", "x[:2].tolist()"),
)


def too_much_memory(w: Worker) -> None:
    device = w.a_device()
    line, read = w.pick.choice(TOO_MUCH)
    try:
        if attempt(w, line.format(d=device), torch.OutOfMemoryError):
            for _ in range(2):
                must_raise(w, read, torch.OutOfMemoryError)
    finally:
        w.device.pop("x", None)
    w.check(matrix(w))


FAULTS: dict[str, Callable[[Worker], None]] = {
    "bad_index": bad_index,
    "bad_write": bad_write,
    "too_much_memory": too_much_memory,
}
