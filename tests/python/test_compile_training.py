"""torch.compile of training: whole steps as one program, checkpointed random numbers, and that
programs end with their graphs."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from compile_check import close, compiled, fresh_graphs  # noqa: F401, used by each test
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.utils.checkpoint import checkpoint

import torch_tpu
from torch_tpu._compile.graph import CompiledGraph


def programs_of(function: Callable[[], Any]) -> int:
    """How many programs a call runs, compiled or not."""

    def runs() -> int:
        return sum(p["runs"] for p in torch_tpu.explain().to_dict()["programs"])

    gc.collect()  # programs of tests before must not be freed between the two counts
    gc.disable()
    try:
        before = runs()
        function()
        torch.tpu.synchronize()  # type: ignore[attr-defined]
        return runs() - before
    finally:
        gc.enable()


class Dropping(nn.Module):
    """Random numbers inside checkpoints, and between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.last = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 16)

    def block(self, x: Tensor) -> Tensor:
        hidden = F.dropout(self.up(x), 0.3).relu()
        return F.dropout(self.down(hidden), 0.5) + torch.rand_like(x)

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.block, x, use_reentrant=False)
        x = F.dropout(self.last(x), 0.2)
        x = checkpoint(self.block, x, use_reentrant=False)
        return x.square().mean()


def train(model: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Losses and gradients of three steps."""
    torch.manual_seed(7)
    results: list[Tensor] = []
    for _ in range(3):
        model.zero_grad()
        loss = run(x)
        loss.backward()
        results += [loss.detach().cpu(), *(p.grad.cpu().clone() for p in model.parameters())]
    results.append(torch.rand(3, device="tpu").cpu())  # the generator has moved as far
    return results


@pytest.mark.parametrize("dynamic", [None, True])
def test_checkpoints_draw_the_same_numbers_again(dynamic: bool | None) -> None:
    torch.manual_seed(0)
    model = Dropping().to("tpu")
    x = torch.randn(8, 16).to("tpu")
    expected = train(model, model, x)
    results = train(model, compiled(model, dynamic=dynamic), x)
    for a, b in zip(results, expected, strict=True):
        close(a, b)


def test_several_forwards_before_their_backwards() -> None:
    torch.manual_seed(0)
    model = Dropping().to("tpu")
    inputs = [torch.randn(8, 16).to("tpu") for _ in range(3)]

    def gradients(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        torch.manual_seed(7)
        losses = [run(x) for x in inputs]
        found: list[Tensor] = []
        for loss in reversed(losses):
            model.zero_grad()
            loss.backward()
            found += [p.grad.cpu().clone() for p in model.parameters()]
        return found

    for a, b in zip(gradients(compiled(model)), gradients(model), strict=True):
        close(a, b)


def test_checkpoints_of_a_graph_that_runs_op_by_op() -> None:
    torch.manual_seed(0)
    model = Dropping().to("tpu")
    x = torch.randn(8, 16).to("tpu")
    expected = train(model, model, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = train(model, compiled(model, options={"max_variants": 0}), x)
    for a, b in zip(results, expected, strict=True):
        close(a, b)


def test_a_step_written_with_backward_is_one_program() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    ours = copy.deepcopy(model).to("tpu")
    x, y = torch.randn(6, 4), torch.randn(6, 1)
    device_x, device_y = x.to("tpu"), y.to("tpu")
    params = list(ours.parameters())
    means, squares = ([torch.zeros_like(p) for p in params] for _ in range(2))
    counts = [torch.zeros((), device="tpu") for _ in params]
    numbers: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8}

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(ours(x), y)
        loss.backward()
        grads = [p.grad for p in params]
        with torch.no_grad():
            adamw(
                params,
                grads,
                means,
                squares,
                [],
                counts,
                foreach=True,
                capturable=True,
                amsgrad=False,
                maximize=False,
                lr=0.01,
                **numbers,
            )
        for p in params:
            p.grad = None
        return loss.detach()

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        run = compiled(step)
        for _ in range(4):
            loss = run(device_x, device_y)
            expected = F.mse_loss(model(x), y)
            close(loss.cpu(), expected.detach())
            optimizer.zero_grad()
            expected.backward()
            optimizer.step()
        for a, b in zip(params, model.parameters(), strict=True):
            close(a.detach().cpu(), b.detach())
        assert programs_of(lambda: run(device_x, device_y)) == 1


@pytest.mark.parametrize("gradient", [False, True])
def test_reset_ends_the_programs(gradient: bool) -> None:
    def double(x: Tensor) -> Tensor:
        return (x * 2).sin().sum()

    def alive() -> list[CompiledGraph]:
        return [o for o in gc.get_objects() if type(o) is CompiledGraph]

    others = {id(graph) for graph in alive()}  # of tests before
    result = compiled(double)(torch.ones(5, device="tpu", requires_grad=gradient))
    if gradient:
        result.backward()
    del result
    graphs = [weakref.ref(graph) for graph in alive() if id(graph) not in others]
    assert graphs
    torch._dynamo.reset()
    gc.collect()
    assert not any(graph() for graph in graphs)
