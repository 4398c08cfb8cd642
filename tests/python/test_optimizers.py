"""torch_tpu.optimizers against torch.optim on the CPU, by gradients and as a whole step."""

from __future__ import annotations

import pytest
import torch

import torch_tpu
from torch_tpu import optimizers

RULES = {
    "adamw": (
        lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
        lambda p: optimizers.AdamW(p, lr=1e-2, weight_decay=0.1),
    ),
    "sgd": (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda p: optimizers.Sgd(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "muon": (lambda p: torch.optim.Muon(p, lr=1e-2), lambda p: optimizers.Muon(p, lr=1e-2)),
}


def make_model(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(6, 8, bias=False), torch.nn.Tanh(), torch.nn.Linear(8, 3, bias=False))
    return torch.nn.Sequential(*layers).to(device)


def loss_of(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x) - y).square().mean()


def batches(device: str):
    torch.manual_seed(1)
    return [
        (x.to(device), y.to(device))
        for x, y in zip(torch.randn(4, 5, 6), torch.randn(4, 5, 3), strict=True)
    ]


def by_gradients(make, device: str):
    model = make_model(device)
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    losses = []
    for x, y in batches(device):
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()], optimizer


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule):
    theirs, ours = RULES[rule]
    expected, parameters, _ = by_gradients(theirs, "cpu")
    losses, trained, optimizer = by_gradients(ours, "tpu")
    assert losses == pytest.approx(expected, rel=1e-4)
    for mine, want in zip(trained, parameters, strict=True):
        torch.testing.assert_close(mine, want, atol=2e-5, rtol=1e-4)
    # Its state is torch.optim's: another one goes on with it.
    model = make_model("tpu")
    again = ours(model.parameters())
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


def test_a_step_is_one_program():
    model = make_model("tpu")
    optimizer = optimizers.AdamW(model.parameters())
    for step in range(3):
        loss_of(model, *batches("tpu")[step]).backward()
        torch.tpu.synchronize()
        before = torch_tpu.stats()["launches"]
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)  # compiles nothing
        optimizer.step()
        torch.tpu.synchronize()
        launched = torch_tpu.stats()["launches"] - before
    assert launched <= 2  # and the one that makes the learning rate


def test_the_whole_step_in_one_program():
    expected, parameters, _ = by_gradients(lambda p: torch.optim.SGD(p, lr=0.1), "cpu")
    model = make_model("tpu")
    optimizer = optimizers.Sgd(model.parameters(), lr=0.1)
    trainer = optimizers.SingleTraceTrainer(model, optimizer, loss_of)
    losses, launches = [], []
    for step, (x, y) in enumerate(batches("tpu")):
        torch.tpu.synchronize()
        before = torch_tpu.stats()["launches"]
        optimizer.param_groups[0]["lr"] = 0.1 * 0.5**step
        loss = trainer.step(x, y)
        torch.tpu.synchronize()
        launches.append(torch_tpu.stats()["launches"] - before)
        losses.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-4)
    assert launches[-1] <= 2
    assert all(p.grad is None for p in model.parameters())
    for mine, want in zip(model.parameters(), parameters, strict=True):
        torch.testing.assert_close(mine.detach().cpu(), want, atol=2e-5, rtol=1e-4)


def test_buffers_and_frozen_parameters():
    def make(device):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(6, 8, bias=False), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)]
        model = torch.nn.Sequential(*layers).to(device)
        model[0].requires_grad_(False)
        return model

    x, y = batches("cpu")[0]
    plain = make("cpu")
    reference = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.1)
    loss_of(plain, x, y).backward()
    reference.step()
    model = make("tpu")
    rule = optimizers.Sgd([p for p in model.parameters() if p.requires_grad], lr=0.1)
    optimizers.SingleTraceTrainer(model, rule, loss_of)(x.to("tpu"), y.to("tpu"))
    for (name, mine), want in zip(
        model.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(mine.cpu(), want, atol=1e-5, rtol=1e-4, msg=name)


def test_what_is_refused():
    model = make_model("tpu")
    with pytest.raises(ValueError, match="Invalid learning rate: -1"):
        optimizers.AdamW(model.parameters(), lr=-1)
    with pytest.raises(ValueError, match="Muon only supports 2D parameters"):
        optimizers.Muon([torch.nn.Parameter(torch.ones(3, device="tpu"))])
    with pytest.raises(TypeError, match=r"expected an optimizer of torch_tpu\.optimizers, got SGD"):
        optimizers.SingleTraceTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of)
