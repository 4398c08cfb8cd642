"""Lines on tensors that all workers of a round share.

`rows*`, `columns*`: each worker writes its own part, which no other touches. `keep*`: writes that
change nothing, and reads. `count*`: writes in the order of a lock. And tensors that are handed over
to another worker, which reads, writes and frees them.
"""

from __future__ import annotations

import queue
import random
import threading
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .compiled import ROW
from .worker import Worker

KEPT = 4  # tensors of each size
BIG = (256, 256)


@dataclass
class Shared:
    """What the workers of a round have in common: names for both sides, a lock, a mail box."""

    device: dict[str, Tensor] = field(default_factory=dict)
    cpu: dict[str, Tensor] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    box: queue.Queue[tuple[Tensor, Tensor]] = field(default_factory=lambda: queue.Queue(maxsize=32))

    def add(self, name: str, value: Tensor, device: int) -> None:
        self.cpu[name] = value
        self.device[name] = value.to(f"tpu:{device}", copy=True)


def make_shared(pick: random.Random, workers: int, devices: int) -> Shared:
    shared = Shared()
    for n, dtype in enumerate((torch.float32, torch.int64)):
        place = pick.choice((0, pick.randrange(devices)))
        shared.add(f"rows{n}", torch.zeros(workers, ROW, dtype=dtype), place)
        shared.add(f"columns{n}", torch.zeros(ROW, workers, dtype=dtype), place)
    place = pick.choice((0, pick.randrange(devices)))  # of all that stand in one list
    for n in range(KEPT):
        shared.add(f"keep{n}", torch.arange(64.0).remainder(n + 2).view(8, 8), place)
        shared.add(f"keepbig{n}", torch.arange(65536.0).remainder(n + 3).view(BIG), place)
        shared.add(f"zero{n}", torch.zeros(16), place)
    shared.add("count0", torch.zeros(workers, dtype=torch.int64), pick.randrange(devices))
    return shared


@dataclass
class Place:
    """Where a worker stands among the others."""

    shared: Shared
    number: int


PARTS = {
    "rows": ("{base}[{me}]", "{base}.select(0, {me})", "{base}.narrow(0, {me}, 1)[0]"),
    "columns": ("{base}[:, {me}]", "{base}.t()[{me}]", "{base}.select(1, {me})"),
}
PART_WRITES = (
    "{part}.add_({k})",
    "{part}.mul_({k})",
    "{part}.copy_(torch.arange({row}))",
    "{part}.copy_(torch.full(({row},), {k}, device={part}.device))",
    "{part}[2:5] = {k}",
    "{part}[1::2].add_({k})",
    "{part}.fill_({k}).add_(1)",
    "{part} += {k}",
    "torch.add({part}, {k}, out={part})",
)


def write_part(w: Worker, place: Place) -> None:
    kind = w.pick.choice(("rows", "columns"))
    base = f"{kind}{w.pick.randrange(2)}"
    for _ in range(w.pick.randrange(1, 6)):
        part = w.pick.choice(PARTS[kind]).format(base=base, me=place.number)
        k = w.pick.randrange(-3, 4)
        template = w.pick.choice(PART_WRITES)
        if template.startswith("{part} +="):
            w.run(f"part = {part}")
            part = "part"
        w.run(template.format(part=part, k=k, row=ROW))
        w.run(f"{part}.clamp_(-1024, 1024)")
        if w.pick.random() < 0.3:
            w.same(f"{part}.tolist()")
        if base == "rows0" and w.place(base) == "d0" and w.pick.random() < 0.2:
            source = f"torch.ones({ROW}, device=rows0.device)"
            w.run(f"c_bump(rows0[{place.number}], {source})")
    w.device.pop("part", None)
    w.cpu.pop("part", None)


KEEPING = (
    "c_preserve({a})",  # for the first device only
    "{a}.mul_(1)",
    "{a}.add_(0)",
    "{a}.mul_(1.0); {a}.add_(0.0)",
    "{a}.copy_({a}.clone())",
    "{a}[1:3].mul_(1)",
    "{a}.t().add_(0)",
    "torch._foreach_mul_([{list}], 1.0)",
    "torch._foreach_add_([{list}], 0.0)",
    "torch.mul({a}, 1.0, out={a})",
    "{a}.clamp_(-1024, 1024)",
    "{a}[{a} > 1000] = 7",
)
READING = (
    "{a}.sum().item()",
    "({a} * 2 + 1).sum().item()",
    "{a}[1].tolist()",
    "{a}.cpu()",
    "{a}.clone().add_(1).sum().item()",
    "{a}.t().max(0).values.tolist()",
    "sum(t.sum() for t in [{list}]).item()",
    "torch.stack([{list}]).sum().item()",
)


def kept(w: Worker) -> tuple[str, str]:
    """One of them, and all of its kind in some order."""
    kind = "keepbig" if w.pick.random() < 0.5 else "keep"
    names = [f"{kind}{n}" for n in range(KEPT)]
    w.pick.shuffle(names)
    return names[0], ", ".join(names)


def keep(w: Worker, _place: Place) -> None:
    for _ in range(w.pick.randrange(1, 6)):
        name, names = kept(w)
        lines = KEEPING if w.place(name) == "d0" else KEEPING[1:]
        w.run(w.pick.choice(lines).format(a=name, list=names))


def read_kept(w: Worker, _place: Place) -> None:
    for _ in range(w.pick.randrange(1, 6)):
        name, names = kept(w)
        w.same(w.pick.choice(READING).format(a=name, list=names))


def each_other(w: Worker, _place: Place) -> None:
    """In place on operands that others write in place: zeros stay zeros."""
    for _ in range(w.pick.randrange(1, 8)):
        a, b = w.pick.sample(range(KEPT), 2)
        op = w.pick.choice(("add_", "copy_", "mul_"))
        w.run(f"zero{a}.{op}(zero{b})")
    if w.pick.random() < 0.5:
        w.same(f"zero{w.pick.randrange(KEPT)}.tolist()")


def count(w: Worker, place: Place) -> None:
    """Takes over where another worker left off."""
    me = place.number
    for _ in range(w.pick.randrange(1, 5)):
        with place.shared.lock:
            w.run(w.pick.choice(("count0.add_(1)", f"count0[{me}].add_(5)", f"count0[{me}:] += 2")))
            if w.pick.random() < 0.3:
                w.same("count0.tolist()")


def hand_over(w: Worker, place: Place) -> None:
    names = [name for name in w.own() if w.cpu[name]._base is None and w.cpu[name].is_leaf]
    if not names:
        return
    name = w.pick.choice(names)
    # Its views stay with this worker, and would see the other's writes.
    w.run(f"{name} = {name}.clone()")
    try:
        place.shared.box.put_nowait((w.device[name], w.cpu[name]))
    except queue.Full:
        return
    w.say(f"del {name}  # handed over")
    del w.device[name], w.cpu[name]


def take_over(w: Worker, place: Place) -> None:
    try:
        device, cpu = place.shared.box.get_nowait()
    except queue.Empty:
        return
    name = w.new_name()
    shape, dtype = tuple(cpu.shape), cpu.dtype
    w.say(f"{name} = ...  # taken over, {dtype} {shape}: {cpu.flatten()[:4].tolist()} ...")
    w.device[name], w.cpu[name] = device, cpu
    del device, cpu
    kind = w.pick.randrange(4)
    if kind == 0:
        w.drop(name)
    elif kind == 1:
        w.run(f"{name}.add_(1).clamp_(-1024, 1024)")
        w.check(name)
    elif kind == 2:
        w.check(name)
