"""torch.cond, while_loop, scan, map and associative_scan: compiled into one program with the
control flow in it, and eagerly. Values and gradients are those of CPU eager."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from control_flow_check import Tree, both_ways, check, compiled, eager, gradients, rand, to
from torch._higher_order_ops import associative_scan, map, scan, while_loop
from torch._higher_order_ops.associative_scan import associative_scan_op

# --- cond -----------------------------------------------------------------------------------------


@both_ways
@gradients
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cond_takes_one_branch(how: Any, grad: bool, sign: float) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() @ w, lambda x: (x @ w).cos(), (x,))

    check(f, rand(3, 4).abs() * sign, rand(4, 2), how=how, grad=grad)


@both_ways
def test_cond_with_a_tree_of_results(how: Any) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Tree:
        def on_true(x: torch.Tensor, y: torch.Tensor) -> Tree:
            return {"a": x + y, "b": (y.long(), x.sum())}

        def on_false(x: torch.Tensor, y: torch.Tensor) -> Tree:
            return {"a": x - y, "b": (y.long() * 2, x.prod())}

        return torch.cond(x[0, 0] > y[0, 0], on_true, on_false, (x, y))

    check(f, rand(2, 3), rand(2, 3) * 3, how=how)


@pytest.mark.parametrize("size", [3, 8])
def test_cond_over_a_python_bool_is_no_branch(size: int) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.shape[0] > 4, lambda x: x.sin(), lambda x: x.cos(), (x,))

    check(f, rand(size))


def test_cond_over_a_predicate_on_the_cpu() -> None:
    def f(flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(flag, lambda x: x + 1, lambda x: x - 1, (x,))

    g = compiled(f)
    x = rand(4)
    for flag in (True, False, True):
        torch.testing.assert_close(
            g(torch.tensor(flag), x.to("tpu")).cpu(), f(torch.tensor(flag), x)
        )


def test_cond_results_keep_their_layout() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.t() + 1, lambda x: x.t() - 1, (x,))

    y = check(f, rand(3, 4))
    assert y.stride() == f(rand(3, 4)).stride()


def test_branches_that_disagree_are_refused() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: (x + 1).long(), (x,))

    with pytest.raises(Exception, match="dtype"):
        compiled(f)(rand(3).to("tpu"))


def test_cond_in_cond() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        def inner(x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.max() > 1, lambda x: x * 2, lambda x: x * 3, (x,))

        return torch.cond(x.sum() > 0, inner, lambda x: x - 1, (x,))

    for x in (torch.tensor([2.0, 1.0]), torch.tensor([0.5, 0.2]), torch.tensor([-2.0, 1.0])):
        check(f, x, grad=True)


# --- while_loop -----------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_while_loop(how: Any, steps: int) -> None:
    def f(i: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Tree:
        return while_loop(lambda i, x: i < steps, lambda i, x: (i + 1, (x @ w).sin()), (i, x))

    check(f, torch.tensor(0), rand(2, 3), rand(3, 3), how=how)


def test_while_loop_decides_on_data() -> None:
    def f(x: torch.Tensor) -> Tree:
        return while_loop(
            lambda n, x: x.norm() < 100, lambda n, x: (n + 1, x * 1.5), (x.new_zeros(()), x)
        )

    check(f, rand(4))


@both_ways
def test_while_loop_with_an_int(how: Any) -> None:
    def f(x: torch.Tensor) -> Tree:
        return while_loop(
            lambda i, total, x: i < 4,
            lambda i, total, x: (i + 1, total + i * 2, x + i),
            (0, 10, x),
        )

    assert f(rand(3))[:2] == (4, 22)
    result = check(f, rand(3), how=how)
    assert result[:2] == (4, 22)


def test_while_loop_uses_its_int_afterwards() -> None:
    def f(x: torch.Tensor) -> Tree:
        n, y = while_loop(lambda n, x: x.sum() < 50, lambda n, x: (n + 1, x * 2), (0, x))
        return y * n, y[0] / n

    check(f, torch.ones(3))


def test_while_loop_selects_by_an_int() -> None:
    def f(x: torch.Tensor) -> Tree:
        def body(i: int, total: torch.Tensor) -> Tree:
            torch._check(i >= 0)
            torch._check(i < x.shape[0])
            return i + 1, total + x[i]

        return while_loop(lambda i, total: i < x.shape[0], body, (0, x.new_zeros(x.shape[1])))

    check(f, rand(5, 3))


def test_while_loop_over_a_tree() -> None:
    def f(state: Tree) -> Tree:
        return while_loop(
            lambda s: s["i"] < 3,
            lambda s: ({"i": s["i"] + 1, "xs": [s["xs"][0] + s["xs"][1], s["xs"][1] * 2]},),
            (state,),
        )

    check(f, {"i": torch.tensor(0), "xs": [rand(3), rand(3)]})


def test_while_loop_with_a_counter_on_the_cpu() -> None:
    def f(x: torch.Tensor) -> Tree:
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))

    i, y = compiled(f)(rand(3).to("tpu"))
    assert i.device.type == "cpu"
    torch.testing.assert_close((i, y.cpu()), f(rand(3)))


def test_decoding_loop() -> None:
    """Greedy decoding until an end token: indices in the condition and in the body."""
    end = 3

    def f(tokens: torch.Tensor, table: torch.Tensor) -> Tree:
        def going(i: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            return (i < tokens.shape[0] - 1) & (tokens.take(i) != end)

        def step(i: torch.Tensor, tokens: torch.Tensor) -> Tree:
            following = table.index_select(0, tokens.take(i)[None]).argmax()
            return i + 1, torch.where(
                torch.arange(tokens.shape[0], device=tokens.device) == i + 1, following, tokens
            )

        return while_loop(
            going, step, (torch.zeros((), dtype=torch.int64, device=tokens.device), tokens)
        )

    table = torch.zeros(5, 5)
    for a, b in ((0, 2), (2, 4), (4, 1), (1, 3), (3, 0)):
        table[a, b] = 1
    i, tokens = check(f, torch.zeros(9, dtype=torch.int64), table)
    assert tokens.tolist() == [0, 2, 4, 1, 3, 0, 0, 0, 0]
    assert int(i) == 4


@both_ways
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_gradient_of_while_loop(how: Any, steps: int) -> None:
    """What it saves is as long as the loop: known from the counter alone."""

    def f(x: torch.Tensor, w: torch.Tensor) -> Tree:
        zero = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(
            lambda i, x: i < steps, lambda i, x: (i + 1, (x @ w).sin() * x), (zero, x)
        )

    check(f, rand(2, 3), rand(3, 3), how=how, grad=True)


def test_gradient_of_a_while_loop_that_decides_on_data() -> None:
    """Its length is not known before it has run, so this graph runs op by op."""

    def f(x: torch.Tensor) -> Tree:
        return while_loop(lambda x: x.abs().sum() < 50, lambda x: (x * 1.5,), (x,))

    check(f, rand(4), how=eager, grad=True)
    with pytest.warns(UserWarning, match="op by op"):
        check(f, rand(4), how=functools.partial(compiled, fallback="warn"), grad=True)


def test_item_stays_in_the_program() -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> Tree:
        half = x.max().item()
        count = n.item()
        return x * half, x.half() + count, (n + count).int(), count * 2 + 1

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        check(f, rand(5), torch.tensor(3, dtype=torch.int32))


def test_cond_over_a_number() -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return torch.cond(n.item() > 3, lambda x: x + 1, lambda x: x - 1, (x,))

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for n in (4, 2):
            check(f, rand(3), torch.tensor(n))


def test_cond_gives_numbers() -> None:
    def f(x: torch.Tensor) -> Tree:
        y, n, same = torch.cond(x.sum() > 0, lambda x: (x + 1, 1, 7), lambda x: (x - 1, 2, 7), (x,))
        return y * n, n, same

    for x in (rand(3).abs(), -rand(3).abs()):
        check(f, x)


def test_while_loop_carries_any_dtype() -> None:
    def f(x: torch.Tensor) -> Tree:
        flags = torch.ones(2, dtype=torch.bool, device=x.device)
        return while_loop(
            lambda b, x, c, h: b.any(),
            lambda b, x, c, h: (b & (x < 3), x + 1, c * 1j, h * 0.5),
            (flags, x, x.to(torch.complex64), x.bfloat16()),
        )

    check(f, torch.tensor([0, 1]))


def test_branches_of_a_module() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)
            self.register_buffer("offset", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(
                x.sum() > 0,
                lambda x: self.linear(x) + self.offset,
                lambda x: x @ self.linear.weight,
                (x,),
            )

    torch.manual_seed(0)
    model = Model()
    on_device = copy.deepcopy(model).to("tpu")
    run = compiled(on_device)
    for x in (rand(2, 3).abs(), -rand(2, 3).abs()):
        model.zero_grad()
        on_device.zero_grad()
        expected, actual = model(x), run(x.to("tpu"))
        torch.testing.assert_close(actual.cpu(), expected)
        expected.sum().backward()
        actual.sum().backward()
        for a, b in zip(on_device.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a.grad.cpu(), b.grad)


# --- scan, map, associative_scan ------------------------------------------------------------------


@both_ways
@gradients
@pytest.mark.parametrize("reverse", [False, True])
def test_scan(how: Any, grad: bool, reverse: bool) -> None:
    def f(init: torch.Tensor, xs: torch.Tensor, w: torch.Tensor) -> Tree:
        def step(h: torch.Tensor, x: torch.Tensor) -> Tree:
            h = torch.tanh(h @ w + x)
            return h, h * 2

        return scan(step, init, xs, reverse=reverse)

    check(f, rand(2, 3), rand(5, 2, 3), rand(3, 3), how=how, grad=grad)


@gradients
def test_scan_over_trees(grad: bool) -> None:
    def f(init: Tree, xs: Tree) -> Tree:
        def step(c: Tree, x: Tree) -> Tree:
            total = c["s"] + x["a"] * x["b"]
            return {"s": total, "n": c["n"] + 1}, (total.exp(), x["b"] - c["n"])

        return scan(step, init, xs, dim=1)

    check(
        f,
        {"s": torch.zeros(3), "n": torch.zeros(())},
        {"a": rand(3, 4) * 0.1, "b": rand(3, 4)},
        grad=grad,
    )


def test_scan_of_one_element() -> None:
    check(lambda c, xs: scan(lambda c, x: (c + x, c * x), c, xs), rand(2), rand(1, 2), grad=True)


@both_ways
@gradients
def test_map(how: Any, grad: bool) -> None:
    def f(xs: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return map(lambda x, w: (x @ w).relu(), xs, w)

    check(f, rand(4, 2, 3), rand(3, 3), how=how, grad=grad)


@gradients
def test_map_over_trees(grad: bool) -> None:
    def f(xs: Tree, y: torch.Tensor) -> Tree:
        return map(lambda x: (x["a"] + x["b"] * y, x["a"].sum()), xs)

    check(f, {"a": rand(4, 3), "b": rand(4, 3)}, rand(3), grad=grad)


@both_ways
@gradients
@pytest.mark.parametrize("length", [1, 5, 8])
def test_associative_scan(how: Any, grad: bool, length: int) -> None:
    """A linear recurrence: h' = a h + b."""

    def f(a: torch.Tensor, b: torch.Tensor) -> Tree:
        def combine(left: Tree, right: Tree) -> Tree:
            return left[0] * right[0], left[1] * right[0] + right[1]

        return associative_scan(combine, (a, b), dim=0, combine_mode="generic")

    check(f, rand(length, 3), rand(length, 3), how=how, grad=grad)


@pytest.mark.parametrize("length", [1, 6, 7])
def test_associative_scan_as_one_node(length: int) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Tree:
        return associative_scan_op(lambda a, b, c, d: [a + c, torch.maximum(b, d)], [x, y], ())

    x, y = rand(length, 3), rand(length, 3)
    actual = compiled(f)(x.to("tpu"), y.to("tpu"))
    torch.testing.assert_close(to(actual, "cpu"), (x.cumsum(0), y.cummax(0).values))
