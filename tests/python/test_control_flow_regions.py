"""What happens inside branches and loops: nesting, random numbers, index checks, writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from control_flow_check import Tree, check, compiled, rand, to
from torch._higher_order_ops import map, scan, while_loop


def test_cond_in_while_loop() -> None:
    """Collatz: how many steps to 1."""

    def f(n: torch.Tensor, steps: torch.Tensor) -> Tree:
        def body(n: torch.Tensor, steps: torch.Tensor) -> Tree:
            following = torch.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, (n,))
            return following, steps + 1

        return while_loop(lambda n, steps: n != 1, body, (n, steps))

    _, steps = check(f, torch.tensor(27), torch.tensor(0))
    assert int(steps) == 111


def test_scan_in_cond() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        def total(x: torch.Tensor) -> torch.Tensor:
            return scan(lambda c, x: (c + x, c * x), torch.zeros_like(x[0]), x)[1]

        return torch.cond(x.sum() > 0, total, lambda x: x.cos(), (x,))

    check(f, rand(4, 3).abs(), grad=True)
    check(f, -rand(4, 3).abs(), grad=True)


def test_scan_in_scan() -> None:
    def f(x: torch.Tensor) -> Tree:
        def outer(c: torch.Tensor, row: torch.Tensor) -> Tree:
            last, ys = scan(lambda c, x: (c * 0.5 + x, c + x), c, row)
            return last, ys

        return scan(outer, torch.zeros_like(x[0, 0]), x)

    check(f, rand(3, 4, 2), grad=True)


def test_random_numbers_in_a_branch() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(
            x.sum() > 0, lambda x: torch.rand_like(x), lambda x: torch.randn_like(x) + 10, (x,)
        )

    g = compiled(f)
    x = torch.ones(1000, device="tpu")
    torch.manual_seed(1)
    first, second = g(x).cpu(), g(x).cpu()
    assert first.min() >= 0
    assert first.max() < 1
    assert abs(float(first.mean()) - 0.5) < 0.05
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    torch.testing.assert_close(g(x).cpu(), first, rtol=0, atol=0)
    assert float(g(-x).cpu().min()) > 4


def test_each_iteration_draws_anew() -> None:
    def f(xs: torch.Tensor) -> Tree:
        def step(c: torch.Tensor, x: torch.Tensor) -> Tree:
            inner = map(lambda y: torch.rand_like(y), x)
            return c + 1, (torch.rand_like(x), torch.rand_like(x), inner)

        return scan(step, torch.zeros((), device=xs.device), xs)

    def walk(x: torch.Tensor) -> Tree:
        n = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(
            lambda n, x, y: n < 4,
            lambda n, x, y: (n + 1, y + 0, torch.rand_like(x)),
            (n, x, x.clone()),
        )

    torch.manual_seed(2)
    _, draws = compiled(f)(torch.zeros(6, 4, 5, device="tpu"))
    numbers = torch.cat([d.cpu().flatten() for d in draws])
    assert len(numbers.unique()) > 0.999 * len(numbers)
    assert abs(float(numbers.mean()) - 0.5) < 0.05
    g = compiled(walk)
    _, before, last = g(torch.zeros(50, device="tpu"))
    assert not torch.equal(before.cpu(), last.cpu())
    assert float(last.cpu().std()) > 0.2


def test_an_index_out_of_range_is_found_in_every_region() -> None:
    def lookup(i: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(i, table)

    def branch(i: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return torch.cond(
            i.sum() > 0, lambda i, t: lookup(i, t), lambda i, t: t[:2] * 1, (i, table)
        )

    def loop(i: torch.Tensor, table: torch.Tensor) -> Tree:
        return map(lambda i, t: lookup(i, t), i, table)

    table = rand(4, 3)
    for f in (branch, loop):
        check(f, torch.tensor([1, 3]), table)
        g = compiled(f)
        for bad in ([1, 4], [5, 1]):
            with pytest.raises(IndexError, match="index out of range"):
                g(torch.tensor(bad).to("tpu"), table.to("tpu")).cpu()
    # The branch not taken looks nothing up.
    check(branch, torch.tensor([0, -9]), table)


def test_an_index_out_of_range_in_a_condition() -> None:
    def f(limit: torch.Tensor, x: torch.Tensor) -> Tree:
        zero = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(
            lambda i, n: x.take(i) > 0, lambda i, n: (i + limit, n + 1), (zero, zero.clone())
        )

    x = torch.tensor([1.0, 2.0, 3.0, -1.0, 5.0])
    check(f, torch.tensor(1), x)
    check(f, torch.tensor(3), x)
    g = compiled(f)
    with pytest.raises(IndexError, match="out of range"):
        g(torch.tensor(2).to("tpu"), x.to("tpu"))[1].cpu()


def test_an_index_that_is_a_number_is_checked() -> None:
    def f(n: torch.Tensor, x: torch.Tensor) -> Tree:
        def body(i: int, total: torch.Tensor) -> Tree:
            return i + 1, total + x.select(0, i)

        return while_loop(lambda i, total: i < n, body, (0, x.new_zeros(())))

    x = rand(4)
    g = compiled(f)
    for n in (0, 2, 4):
        torch.testing.assert_close(g(torch.tensor(n).to("tpu"), x.to("tpu"))[1].cpu(), x[:n].sum())
    with pytest.raises(IndexError, match="index 4 out of range for tensor of size"):
        g(torch.tensor(9).to("tpu"), x.to("tpu"))[1].cpu()


def test_regions_may_write_into_tensors_of_outside() -> None:
    def branch(x: torch.Tensor, cache: torch.Tensor) -> Tree:
        def on_true(x: torch.Tensor) -> torch.Tensor:
            cache[1].add_(x)
            return x + cache[1]

        return torch.cond(x.sum() > 0, on_true, lambda x: x * 2, (x,)), cache * 2

    def loop(x: torch.Tensor, cache: torch.Tensor) -> Tree:
        def body(i: torch.Tensor, x: torch.Tensor) -> Tree:
            cache.index_add_(0, i[None], x[None])
            return i + 1, x * 2 + cache[0]

        zero = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, x: i < 3, body, (zero, x)), cache * 2

    with torch.no_grad():
        for f in (branch, loop):
            for x in (torch.ones(3), -torch.ones(3)):
                expected_cache, cache = rand(4, 3), rand(4, 3).to("tpu")
                torch._dynamo.reset()
                expected = torch.compile(f, backend="eager", fullgraph=True)(x, expected_cache)
                actual = compiled(f)(x.to("tpu"), cache)
                torch.testing.assert_close(to((actual, cache), "cpu"), (expected, expected_cache))


def test_one_program_with_the_control_flow_in_it(run_python: Any, tmp_path: Path) -> None:
    code = """
        import torch, torch_tpu
        from torch._higher_order_ops import scan, while_loop
        from torch_tpu._compile import backend

        def f(x):
            n = torch.zeros((), dtype=torch.int64, device=x.device)
            _, y = while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x * 2), (n, x))
            y = torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,))
            return scan(lambda c, x: (c + x, c * x), y[0] * 0, y)[1]

        x = torch.ones(4, 3, device="tpu")
        g = torch.compile(f, backend=backend, fullgraph=True, options={"fallback": "error"})
        g(x).cpu()
        before = torch_tpu.stats()["compiles"]
        g(x + 0).cpu()
        print(torch_tpu.stats()["compiles"] - before)
    """
    run_python(code, TORCH_TPU_DUMP=str(tmp_path), TORCH_TPU_CACHE_DIR=str(tmp_path / "cache"))
    texts = [p.read_text() for p in tmp_path.glob("*compiled*")]
    assert len(texts) == 1
    assert texts[0].count("stablehlo.while") == 2
    assert texts[0].count("stablehlo.if") == 1
    assert "stablehlo.dynamic_slice" in texts[0]
    assert "stablehlo.dynamic_update_slice" in texts[0]
    assert "stablehlo.gather" not in texts[0]
