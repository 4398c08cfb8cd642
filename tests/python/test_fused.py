"""Fused Eager: the same results in every way of running, and one launch for each step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torch_tpu

Work = Callable[[str], list[Tensor]]
Optimizer = Callable[..., torch.optim.Optimizer]


pytestmark = pytest.mark.usefixtures("fused_mode")


def seeded(work: Work, device: str) -> list[Tensor]:
    torch.manual_seed(0)
    return [t.detach().cpu() for t in work(device)]


def check_everywhere(work: Work, tol: float = 1e-5, cpu_tol: float | None = 1e-4) -> None:
    """`work` gives the same one by one and fused, and the CPU's numbers unless it draws some."""
    with torch_tpu.mode("strict"):
        expected = seeded(work, "tpu")
    if cpu_tol is not None:
        torch.testing.assert_close(expected, seeded(work, "cpu"), rtol=cpu_tol, atol=cpu_tol)
    for when, times in (("never", 1), ("second", 3), ("first", 1)):
        with torch_tpu.fused.compile_when(when):
            for _ in range(times):
                torch.testing.assert_close(seeded(work, "tpu"), expected, rtol=tol, atol=tol)
                torch_tpu.fused.wait()


def train(
    model: nn.Module, data: tuple[Tensor, Tensor], optimizer: Optimizer, device: str, steps: int = 5
) -> list[Tensor]:
    model = model.to(device)
    x, y = (t.to(device) for t in data)
    stepper = optimizer(model.parameters())
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(x), y)
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    return [torch.tensor(losses), *model.parameters(), *model.buffers()]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))


def labelled(*shape: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(*shape), torch.arange(shape[0]) % classes


SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
# eps above rounding: a gradient that is nothing but rounding must not become a full step.
ADAMW = partial(torch.optim.AdamW, lr=1e-2, eps=1e-4)


@pytest.mark.parametrize("form", ["plain", "foreach", "fused"])
@pytest.mark.parametrize("make", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_mlp_training(make: Optimizer, form: str) -> None:
    choice = {"foreach": form == "foreach", "fused": form == "fused"}
    check_everywhere(lambda device: train(mlp(), labelled(5, 6), partial(make, **choice), device))


class Tiny(nn.Module):
    """One block of a transformer over tokens, and a classifier."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.block(self.embedding(tokens)).mean(1))


def tokens() -> tuple[Tensor, Tensor]:
    return torch.randint(11, (3, 4)), torch.arange(3)


def test_transformer_training() -> None:
    check_everywhere(lambda device: train(Tiny(), tokens(), ADAMW, device), tol=1e-4, cpu_tol=1e-3)


def test_dropout_draws_the_same_numbers() -> None:
    check_everywhere(
        lambda device: train(Tiny(0.3), tokens(), SGD, device, steps=3), tol=1e-4, cpu_tol=None
    )


def test_batch_norm() -> None:
    def work(device: str) -> list[Tensor]:
        model = nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.SiLU(), nn.Flatten(), nn.Linear(12, 3)
        )
        return train(model, labelled(4, 2, 4, 4), SGD, device)

    check_everywhere(work)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant: bool) -> None:
    def work(device: str) -> list[Tensor]:
        block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 4))
        block = block.to(device)
        x = torch.randn(3, 4).to(device).requires_grad_()
        results = []
        for forward in (block, partial(checkpoint, block, use_reentrant=reentrant)):
            torch.manual_seed(1)
            x.grad = None
            block.zero_grad()
            out = forward(x)
            out.square().sum().backward()
            results.append([out, x.grad, *(p.grad for p in block.parameters())])
        # The recomputed forward drew what the first one had.
        torch.testing.assert_close(*results)
        return results[1]

    check_everywhere(work, cpu_tol=None)


def test_hooks() -> None:
    seen: list[float] = []

    def double(parameter: Tensor) -> None:
        parameter.grad.mul_(2)

    def work(device: str) -> list[Tensor]:
        seen.clear()
        x = torch.randn(4).to(device).requires_grad_()
        model = nn.Linear(4, 2).to(device)
        model.register_full_backward_hook(lambda _m, inp, out: seen.append(out[0].sum().item()))
        model.weight.register_post_accumulate_grad_hook(double)
        y = model(x * 3)
        y.register_hook(lambda grad: grad * 0.5)
        y.square().sum().backward()
        return [x.grad, model.weight.grad, torch.tensor(seen)]

    check_everywhere(work)


def test_no_grad_inference_mode_and_views() -> None:
    def work(device: str) -> list[Tensor]:
        x = torch.arange(24.0).reshape(4, 6).to(device)
        with torch.no_grad():
            x[1:3, ::2].mul_(2).add_(x[0, :3])
        with torch.inference_mode():
            y = (x.t() @ x).relu_()
            y[0].zero_()
            y.diagonal().fill_(-1)
        flat = x.view(-1)
        flat[3] = 9
        x.t()[2] += flat[:4]
        row = x[3]
        x.mul_(0.5)
        return [x, y.clone(), row, flat[::5]]

    check_everywhere(work)


def test_second_derivative() -> None:
    def work(device: str) -> list[Tensor]:
        x = torch.linspace(0.1, 1.0, 5).to(device).requires_grad_()
        y = (x.sin() * x.exp()).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        return [y, first, second]

    check_everywhere(work)


def test_autocast_and_grad_scaler() -> None:
    def work(device: str) -> list[Tensor]:
        model = mlp().to(device)
        x, y = (t.to(device) for t in labelled(5, 6))
        optimizer = SGD(model.parameters())
        scaler = torch.amp.GradScaler(device, init_scale=2.0**40, growth_interval=2)
        scales = []
        for _ in range(5):
            with torch.autocast(device, torch.float16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return [torch.tensor(scales), *model.parameters()]

    check_everywhere(work, tol=2e-3, cpu_tol=None)


def test_rnn_loop() -> None:
    def work(device: str) -> list[Tensor]:
        cell = nn.GRUCell(3, 4).to(device)
        x = torch.randn(7, 2, 3).to(device)
        state = torch.zeros(2, 4).to(device)
        for step in x:
            state = cell(step, state)
        state.sum().backward()
        return [state, *(p.grad for p in cell.parameters())]

    check_everywhere(work)


# One launch per step


class Step:
    """A training step that reads its loss, and what each one cost."""

    def __init__(self, make: Optimizer = ADAMW) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)).to("tpu")
        self.x, self.y = (t.to("tpu") for t in labelled(5, 7))
        self.optimizer = make(self.model.parameters())

    def __call__(self) -> float:
        loss = F.cross_entropy(self.model(self.x), self.y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def warm(self) -> Step:
        for _ in range(4):
            self()
            torch_tpu.fused.wait()
        return self


COSTS = ("fused_launches", "launches", "replays", "compiles")


def cost(work: Callable[[], object]) -> dict[str, Any]:
    before = torch_tpu.stats()
    work()
    torch_tpu.fused.wait()
    after = torch_tpu.stats()
    return {name: after[name] - before[name] for name in COSTS}


ONE_LAUNCH = {"fused_launches": 1, "launches": 1, "replays": 0, "compiles": 0}


@pytest.mark.parametrize("make", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_one_launch_per_step(make: Optimizer) -> None:
    step = Step(make).warm()
    known = {program["name"] for program in torch_tpu.fused.programs()}
    losses = []
    for rate in (1e-2, 1e-2, 3e-3, 0.7e-3):
        for group in step.optimizer.param_groups:
            group["lr"] = rate
        assert cost(lambda: losses.append(step())) == ONE_LAUNCH
    assert losses == sorted(losses, reverse=True)
    assert {program["name"] for program in torch_tpu.fused.programs()} == known


def test_the_step_gives_its_memory_back() -> None:
    step = Step().warm()
    before = {p["name"]: p["runs"] for p in torch_tpu.fused.programs()}
    step()
    (program,) = (p for p in torch_tpu.fused.programs() if p["runs"] > before.get(p["name"], 0))
    # 4 parameters and 2 moments of each are written in place; besides them the loss and the
    # gradients live on. Nothing else does: no activation leaves the program.
    assert program["donated"] >= 12
    assert program["outputs"] <= 12 + 4 + 1
    assert len(program["ops"]) > program["outputs"]


def test_dead_values_are_no_results() -> None:
    def work() -> float:
        x = torch.full((3, 5), 0.5, device="tpu")
        for _ in range(20):
            x = (x * 1.01).sin()
        return x.sum().item()

    before = {p["name"] for p in torch_tpu.fused.programs()}
    work()
    made = [p for p in torch_tpu.fused.programs() if p["name"] not in before]
    assert [p["outputs"] for p in made] == [2]  # the sum, and x, which has a name still
    assert len(made[0]["ops"]) >= 40


def test_a_read_in_the_middle_keeps_the_rest() -> None:
    x = torch.arange(6.0).to("tpu")
    y = x * 2
    z = y + 1
    before = torch_tpu.stats()
    assert y.sum().item() == 30.0
    after = torch_tpu.stats()
    assert after["host_reads"] == before["host_reads"] + 1
    # y and z are there now: reading them launches nothing.
    assert cost(lambda: z.tolist())["launches"] == 0
    assert cost(lambda: y.tolist())["launches"] == 0
    w = z * y
    assert cost(lambda: w.tolist())["launches"] == 1
    assert w.tolist() == [0.0, 6.0, 20.0, 42.0, 72.0, 110.0]


# Memory


def peak_of(work: Callable[[], object]) -> int:
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    work()
    torch.tpu.synchronize()
    return torch.tpu.max_memory_allocated()


def test_peak_memory_of_a_step() -> None:
    def step() -> Step:
        made = Step()
        made.model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 3)).to("tpu")
        made.x, made.y = (t.to("tpu") for t in labelled(256, 64))
        made.optimizer = ADAMW(made.model.parameters())
        return made.warm()

    with torch_tpu.mode("strict"):
        strict = step()
        strict_peak = peak_of(strict)
    del strict
    fused = step()
    assert cost(fused) == ONE_LAUNCH
    assert peak_of(fused) <= 1.05 * strict_peak
    with torch_tpu.fused.compile_when("never"):
        assert peak_of(fused) <= 1.05 * strict_peak


@pytest.mark.usefixtures("steady_memory")
@pytest.mark.parametrize("when", ["first", "never"])
def test_memory_is_freed(when: torch_tpu.fused.CompileWhen) -> None:
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    with torch_tpu.fused.compile_when(when):
        x = torch.zeros(64, 64, device="tpu")
        for _ in range(3):
            for _ in range(10):
                x = torch.cos(x) + 1
            torch_tpu.fused.flush()
            torch.tpu.synchronize()
            assert 0 <= torch.tpu.memory_allocated() - before - x.nbytes < 1024
        kept = [x * n for n in range(5)]
        del kept
        del x
        torch.tpu.synchronize()
    # Scalars given to a single op are kept for the next one.
    assert torch.tpu.memory_allocated() - before < 1024


def test_a_long_chain_does_not_grow() -> None:
    x = torch.ones(128, 128, device="tpu")
    x.sum().item()
    torch_tpu.fused.set_limits(min_nodes=16, max_nodes=64)

    def chain(length: int) -> None:
        nonlocal x
        for _ in range(length):
            x = x * 1.001 - 0.001

    with torch_tpu.fused.compile_when("first"):
        short = peak_of(lambda: chain(100))
        assert peak_of(lambda: chain(1000)) <= short + 4 * x.nbytes
    assert torch.allclose(x.cpu(), torch.ones(128, 128), atol=1e-3)
