"""Lines on tensors that belong to one worker: each line is Python for both sides."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .compiled import SHAPES
from .worker import Worker

MOST = 10  # tensors of a worker
DTYPES = ("torch.float32", "torch.int64", "torch.float32", "torch.int32")


def make(w: Worker) -> str:
    rows, columns = w.pick.choice(SHAPES)
    name, place, dtype = w.new_name(), w.a_device(), w.pick.choice(DTYPES)
    k = w.pick.randrange(-5, 6)
    w.run(
        w.pick.choice(
            (
                f"{name} = torch.full(({rows}, {columns}), {k}, dtype={dtype}, device={place})",
                f"{name} = torch.arange({rows * columns}, dtype={dtype}, device={place})"
                f".remainder(7).view({rows}, {columns})",
                f"{name} = torch.arange({k}, {rows * columns + k}, dtype={dtype})"
                f".view({rows}, {columns}).to({place})",
                f"{name} = torch.zeros({rows}, {columns}, dtype={dtype}, device={place})",
            )
        )
    )
    return name


def some(w: Worker, want: Callable[[torch.Tensor], bool] = lambda _: True) -> str:
    """A tensor that is as wanted; a new one if there is none."""
    while True:
        found = [name for name in w.own() if want(w.cpu[name])]
        if found:
            return w.pick.choice(found)
        make(w)


def matrix(w: Worker) -> str:
    return some(w, lambda t: t.dim() == 2 and tuple(t.shape) in SHAPES)


def like(w: Worker, name: str) -> str:
    """Another tensor of the same dtype, shape and device, in other memory; a copy if need be."""
    mine, place = w.cpu[name], w.place(name)
    found = [
        other
        for other in w.own()
        if other != name
        and w.cpu[other].dtype == mine.dtype
        and w.cpu[other].shape == mine.shape
        and w.place(other) == place
        and w.cpu[other].untyped_storage().data_ptr() != mine.untyped_storage().data_ptr()
    ]
    if found:
        return w.pick.choice(found)
    other = w.new_name()
    w.run(f"{other} = {name}.clone()")
    return other


BOUND = "clamp(-1024, 1024)"
PURE = (
    "(-{a})",
    "{a}.abs()",
    "{a}.relu()",
    "({a} * {k} + {j})",
    "{a}.square()",
    "{a}.cumsum(0)",
    "{a}.flip(0)",
    "{a}.roll(1, 0)",
    "({a} + {b})",
    "({a} - {b})",
    "({a} * {b})",
    "torch.maximum({a}, {b})",
    "torch.where({a} > {b}, {a}, {b} + {k})",
    "torch.stack([{a}, {b}]).sum(0)",
    "torch.cat([{a}, {b}])[{rows}:]",
    "({a}.clamp(-8, 8) @ {b}.clamp(-8, 8).t() @ {b}.clamp(-8, 8))",
    "{a}.index_select(0, torch.tensor([1, 0]).to({place})).sum(0, keepdim=True).expand({rows}, -1)",
    "{a}[torch.tensor({order}).to({place})]",
    "{a}.sum(1, keepdim=True).expand_as({b}).contiguous()",
    "{a}.to(torch.float32).to({dtype})",
)
IN_PLACE = (
    "{a}.add_({k})",
    "{a}.mul_({k})",
    "{a}.sub_({b})",
    "{a}.neg_()",
    "{a}.zero_()",
    "{a}.fill_({k})",
    "{a}.copy_({b})",
    "{a} += {b}",
    "{a}.masked_fill_({b} > {k}, {j})",
    "{a}[{row}].add_({k})",
    "{a}[{row}, 1:4] = {k}",
    "{a}[:, {column}].mul_(2)",
    "{a}[1:].copy_({a}[:-1].clone())",
    "{a}.t()[{column}].sub_({b}[:, 0])",
    "{a}[torch.tensor([{row}]).to({place})] = {b}[:1]",
    "{a}.index_add_(0, torch.tensor([{row}, 0]).to({place}), {b}[:2])",
    "torch.add({a}, {b}, out={a})",
    "torch._foreach_add_([{a}, {b}], {k})",
    "{a}[{b} > {k}] = {j}",
    "{a}[{row}].copy_(torch.arange({columns}))",
)
VIEWS = ("{a}[{row}]", "{a}.t()", "{a}[:, {column}]", "{a}.view(-1)", "{a}[::2]", "{a}[1:3, 2:5]")
READS = (
    "{a}.sum().item()",
    "{a}.tolist()",
    "{a}[{row}, {column}].item()",
    "{a}.max().item()",
    "bool(({a} > {k}).any())",
    "{a}[{a} > {k}].tolist()",
    "({a} > {k}).nonzero().shape[0]",
    "{a}.to(torch.float64).sum().item()",
    "(({a} + {b}) * 2).sum().item()",
)


def filled(w: Worker, template: str, a: str) -> str:
    t = w.cpu[a]
    rows, columns = t.shape
    order = list(range(rows))
    w.pick.shuffle(order)
    return template.format(
        a=a,
        b=like(w, a) if "{b}" in template else "",
        k=w.pick.randrange(-3, 4),
        j=w.pick.randrange(-9, 10),
        rows=rows,
        columns=columns,
        row=w.pick.randrange(rows),
        column=w.pick.randrange(columns),
        order=order,
        place=w.place(a),
        dtype=t.dtype,
    )


def pure(w: Worker) -> None:
    line = filled(w, w.pick.choice(PURE), matrix(w))
    w.run(f"{w.new_name()} = {line}.{BOUND}")


def in_place(w: Worker) -> None:
    a = matrix(w)
    w.run(filled(w, w.pick.choice(IN_PLACE), a))
    w.run(f"{a}.clamp_(-1024, 1024)")


def view(w: Worker) -> None:
    """A view that lives on, and a write through it."""
    a, name = matrix(w), w.new_name()
    if not w.cpu[a].is_contiguous():
        w.run(f"{a} = {a}.contiguous()")
    w.run(f"{name} = {filled(w, w.pick.choice(VIEWS), a)}")
    w.run(f"{name}.{w.pick.choice(('add_(1)', 'mul_(2)', 'neg_()', 'fill_(3)'))}")
    w.run(f"{name}.clamp_(-1024, 1024)")


def read(w: Worker) -> None:
    w.same(filled(w, w.pick.choice(READS), matrix(w)))


def compare(w: Worker) -> None:
    w.check(some(w))


def to_host_and_back(w: Worker) -> None:
    a, name, other = matrix(w), w.new_name(), w.a_device()
    w.run(
        w.pick.choice(
            (
                f"{name} = ({a}.cpu() + 1).to({other}, copy=True)",
                f"{name} = {a}.to({other}, copy=True)",
                f"{name} = torch.empty_like({a}, device={other}).copy_({a}, non_blocking=True)",
                f"{name} = torch.zeros_like({a}, device={other}); {name}[:2].copy_({a}[:2])",
                f"{name} = {a}.to({other}) + 1",
            )
        )
    )


def call_compiled(w: Worker) -> None:
    a = some(w, lambda t: tuple(t.shape) in SHAPES and t.dtype == torch.float32)
    x, y = w.new_name(), w.new_name()
    w.run(f"{x} = {a}.contiguous().to(d0, copy=True)")
    w.run(f"{y} = torch.full_like({x}, {w.pick.randrange(-3, 4)})")
    kind = w.pick.randrange(3)
    if kind == 0:
        w.run(f"c_bump({x}, {y})")
    elif kind == 1:
        w.run(f"{w.new_name()} = c_mix({x}, {y})")
    else:
        w.run(f"{w.new_name()} = c_mix_and_bump({x}, {y})")


def gradient(w: Worker) -> None:
    a = some(w, lambda t: tuple(t.shape) in SHAPES and t.dtype == torch.float32)
    leaf, name = w.new_name(), w.new_name()
    k = w.pick.randrange(1, 4)
    w.run(f"{leaf} = {a}.clone().requires_grad_()")
    w.run(f"(({leaf} * {k}).relu() + {leaf}.detach() * {leaf}).sum().backward()")
    w.run(f"{name} = {leaf}.grad; {leaf} = {leaf}.detach().sub_({name}).{BOUND}")


def train(w: Worker) -> None:
    """Steps of an optimizer over two tensors: in place, lists of tensors, memory given on."""
    a, name, place = w.new_name(), w.new_name(), w.a_device()
    w.run(f"{a} = torch.ones(4, 8, device={place}).requires_grad_()")
    w.run(f"{name} = torch.zeros(8, device={place}).requires_grad_()")
    momentum = w.pick.choice((0, 1))
    w.run(f"optimizer = torch.optim.SGD([{a}, {name}], lr=1.0, momentum={momentum})")
    for k in range(w.pick.randrange(1, 5)):
        w.run("optimizer.zero_grad()")
        w.run(f"({a} * {k} + {name} * 2).sum().backward()")
        w.run("optimizer.step()")
    w.run(f"{a} = {a}.detach(); {name} = {name}.detach(); del optimizer")


def sizes(w: Worker) -> None:
    """The same ops with sizes that change: programs for all sizes up to a bound."""
    place = w.a_device()
    for n in sorted(w.pick.sample(range(16, 48), 4)):
        w.run(f"x = torch.arange({n}).remainder(5).to(torch.float32).to({place})")
        w.run(f"x = (x.view(-1, 1) * torch.ones(4, device={place}) - 1).relu()")
        w.same("x.cumsum(0).sum(0).tolist()")
    w.run("del x")


def loop(w: Worker) -> None:
    """Enough of the same for Fused Eager to cut and to compile."""
    a = some(w, lambda t: tuple(t.shape) in SHAPES and t.dtype == torch.float32)
    x = w.new_name()
    w.run(f"{x} = {a}.clone()")
    for k in range(w.pick.choice((5, 40))):
        w.run(f"{x} = ({x} + 1).clamp(-1024, 1024); {x}[0].sub_({k % 3}); {x}.t()[1].mul_(-1)")
    w.check(x)


def forget(w: Worker) -> None:
    for name in w.pick.sample(w.own(), k=min(3, len(w.own()))):
        w.drop(name)


def tidy(w: Worker) -> None:
    """Not too many tensors are kept."""
    names = w.own()
    w.pick.shuffle(names)
    for name in names[MOST:]:
        if w.pick.random() < 0.3:
            w.check(name)
        w.drop(name)
