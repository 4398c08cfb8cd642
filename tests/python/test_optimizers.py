"""torch_tpu.optimizers against torch.optim on the CPU, by gradients and as a whole step."""

from __future__ import annotations

import copy
import pickle

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
    losses, trained, _ = by_gradients(ours, "tpu")
    assert losses == pytest.approx(expected, rel=1e-4)
    for mine, want in zip(trained, parameters, strict=True):
        torch.testing.assert_close(mine, want, atol=2e-5, rtol=1e-4)


def go_on(optimizer, model, device: str) -> list[torch.Tensor]:
    """Two steps more."""
    for x, y in batches(device)[:2]:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return [p.detach().cpu() for p in model.parameters()]


def close(trained, expected) -> None:
    for mine, want in zip(trained, expected, strict=True):
        torch.testing.assert_close(mine, want, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("how", ["ours", "torch's", "deepcopy", "pickle"])
@pytest.mark.parametrize("rule", RULES)
def test_another_one_goes_on(rule, how):
    """Its state is torch.optim's, and goes from one to the other."""
    theirs, ours = RULES[rule]
    plain = make_model("cpu")
    reference = theirs(plain.parameters())
    go_on(reference, plain, "cpu")
    model = make_model("tpu")
    optimizer = ours(model.parameters())
    go_on(optimizer, model, "tpu")
    if how == "deepcopy":
        model, optimizer = copy.deepcopy((model, optimizer))
    elif how == "pickle":
        model, optimizer = pickle.loads(pickle.dumps((model, optimizer)))
    else:
        state = (optimizer if how == "ours" else reference).state_dict()
        model.load_state_dict(copy.deepcopy(model.state_dict()))
        optimizer = ours(model.parameters())
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == reference.param_groups[0]["lr"]
    close(go_on(optimizer, model, "tpu"), go_on(reference, plain, "cpu"))
    again = theirs(model.parameters())  # and torch.optim's goes on with ours
    again.load_state_dict(optimizer.state_dict())
    close(go_on(again, model, "tpu"), go_on(reference, plain, "cpu"))


@pytest.mark.parametrize("rule", ["adamw", "sgd"])
def test_float64_is_exact(rule):
    def train(make, device: str) -> torch.Tensor:
        weight = torch.nn.Parameter(torch.linspace(1, 2, 5, dtype=torch.float64).to(device))
        optimizer = make([weight])
        for _ in range(3):
            weight.grad = weight.detach() / 3
            optimizer.step()
        return weight.detach().cpu()

    theirs, ours = RULES[rule]
    torch.testing.assert_close(train(ours, "tpu"), train(theirs, "cpu"), atol=1e-13, rtol=1e-13)


def test_the_default_dtype_changes_nothing():
    torch.set_default_dtype(torch.bfloat16)
    try:
        weight = torch.nn.Parameter(torch.ones(2, dtype=torch.float32, device="tpu"))
        weight.grad = torch.ones_like(weight)
        optimizer = optimizers.AdamW([weight], lr=1e-3, weight_decay=0.0)
        optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)
    assert optimizer.state[weight]["step"].dtype == torch.float32
    torch.testing.assert_close(weight.detach().cpu(), torch.full((2,), 0.999))


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


def test_each_of_many_groups_is_one_program():
    params = [torch.nn.Parameter(torch.ones(n, n, device="tpu")) for n in range(1, 13)]
    groups = [{"params": [p], "weight_decay": 0.01 * i} for i, p in enumerate(params)]
    optimizer = optimizers.AdamW(groups)
    for _ in range(2):
        for param in params:
            param.grad = torch.ones_like(param)
        torch.tpu.synchronize()
        before = torch_tpu.stats()["launches"]
        optimizer.step()
        torch.tpu.synchronize()
        launched = torch_tpu.stats()["launches"] - before
    assert launched <= 2 * len(params)


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


@pytest.mark.filterwarnings("error:Detected call of .lr_scheduler.step")
def test_a_model_that_is_compiled_itself():
    expected, parameters, _ = by_gradients(lambda p: torch.optim.SGD(p, lr=0.1), "cpu")
    model = make_model("tpu")
    optimizer = optimizers.Sgd(model.parameters(), lr=0.1)
    trainer = optimizers.SingleTraceTrainer(torch.compile(model), optimizer, loss_of)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    losses = []
    for x, y in batches("tpu"):
        losses.append(trainer.step(x, y).item())
        schedule.step()
    assert losses == pytest.approx(expected, rel=1e-4)
    close([p.detach().cpu() for p in model.parameters()], parameters)


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


class Partly(torch.nn.Module):
    """One layer of it is used, one is not, one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.frozen, self.unused = (torch.nn.Linear(6, 6) for _ in range(3))
        self.frozen.requires_grad_(False)
        self.late = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.frozen(self.used(x))
        return self.unused(x) if self.late else x


@pytest.mark.parametrize("rule", ["adamw", "sgd"])
def test_a_trainer_leaves_what_torch_optim_leaves(rule):
    """Frozen and unused parameters stay, without a weight decay, until they are of use."""

    def mean(model, x):
        return model(x).square().mean()

    torch.manual_seed(0)
    theirs, ours = RULES[rule]
    plain = Partly()
    model = copy.deepcopy(plain).to("tpu")
    reference, optimizer = theirs(plain.parameters()), ours(model.parameters())
    trainer = optimizers.SingleTraceTrainer(model, optimizer, mean)
    x = torch.randn(5, 6)
    for step in range(4):
        for each in (plain, model):
            each.late = step == 2
            each.frozen.requires_grad_(step == 3)
        reference.zero_grad()
        expected = mean(plain, x)
        expected.backward()
        reference.step()
        loss = trainer.step(x.to("tpu"))
        assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
        close([p.detach().cpu() for p in model.parameters()], plain.parameters())


def test_a_trainer_refuses_parameters_that_it_cannot_reach():
    model = make_model("tpu")
    alone = torch.nn.Parameter(torch.ones(2, 3, device="tpu"))
    optimizer = optimizers.Sgd([*model.parameters(), alone], lr=0.1)
    lost = r"does not hold: number 2 of group 0 \[2, 3\]\. Make them attributes of the model"
    with pytest.raises(ValueError, match=lost):
        optimizers.SingleTraceTrainer(model, optimizer, loss_of)
    optimizer = optimizers.Sgd(model.parameters(), lr=0.1)
    trainer = optimizers.SingleTraceTrainer(model, optimizer, loss_of)
    optimizer.add_param_group({"params": [alone]})
    with pytest.raises(ValueError, match=r"does not hold: number 0 of group 1 \[2, 3\]"):
        trainer.step(*batches("tpu")[0])
    model.requires_grad_(False)
    trainer = optimizers.SingleTraceTrainer(
        model, optimizers.Sgd(model.parameters(), lr=0.1), loss_of
    )
    with pytest.raises(RuntimeError, match="the loss depends on no parameter that is trained"):
        trainer.step(*batches("tpu")[0])


class Counts(torch.nn.Module):
    """Puts other tensors in place of its buffers."""

    def __init__(self, grows: bool = False) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)
        self.grows = grows
        self.register_buffer("n", torch.zeros((1,), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.layer(x)
        self.n = torch.cat([self.n, self.n]) if self.grows else self.n + 1
        self.average = 0.5 * self.average + 0.5 * out.mean(0).detach()
        return out + self.average


def test_buffers_that_a_forward_puts_in_place():
    torch.manual_seed(0)
    plain = Counts()
    model = copy.deepcopy(plain).to("tpu")
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    trainer = optimizers.SingleTraceTrainer(
        model, optimizers.Sgd(model.parameters(), lr=0.1), loss_of
    )
    for x, y in batches("cpu")[:3]:
        reference.zero_grad()
        loss_of(plain, x, y).backward()
        reference.step()
        trainer.step(x.to("tpu"), y.to("tpu"))
    assert model.n.tolist() == [3]
    for each, device in ((plain, "cpu"), (model, "tpu")):
        each(batches(device)[3][0])  # puts others in place outside of the trainer
    x, y = batches("cpu")[3]
    reference.zero_grad()
    loss_of(plain, x, y).backward()
    reference.step()
    trainer.step(x.to("tpu"), y.to("tpu"))
    assert model.n.tolist() == [5]
    close([t.cpu() for t in model.state_dict().values()], plain.state_dict().values())

    grows = Counts(grows=True).to("tpu")
    trainer = optimizers.SingleTraceTrainer(
        grows, optimizers.Sgd(grows.parameters(), lr=0.1), loss_of
    )
    with pytest.raises(RuntimeError, match=r"made buffer 'model\.n' \[2\] .*; it was \[1\]"):
        trainer.step(*batches("tpu")[0])


def test_options_that_are_not_here():
    params = list(make_model("tpu").parameters())
    for make, name, value in (
        (optimizers.AdamW, "amsgrad", True),
        (optimizers.AdamW, "maximize", True),
        (optimizers.Sgd, "dampening", 0.5),
        (optimizers.Sgd, "differentiable", True),
        (optimizers.Muon, "adjust_lr_fn", "match_rms_adamw"),
    ):
        refused = rf"\[{make.__name__}\] {name}={value!r} is not in torch_tpu.optimizers"
        with pytest.raises(NotImplementedError, match=refused):
            make(params, **{name: value})
        with pytest.raises(NotImplementedError, match=refused):
            make([{"params": params, name: value}])
    state = torch.optim.AdamW(params, maximize=True).state_dict()
    with pytest.raises(NotImplementedError, match=r"\[AdamW\] maximize=True"):
        optimizers.AdamW(params).load_state_dict(state)
    optimizers.AdamW(params, fused=True, foreach=False, capturable=True)
    group = optimizers.Sgd(params, 0.1, 0.9, 0, 0.01, True).param_groups[0]  # torch.optim's order
    assert (group["weight_decay"], group["nesterov"]) == (0.01, True)


def test_what_is_refused():
    model = make_model("tpu")
    with pytest.raises(ValueError, match="Invalid learning rate: -1"):
        optimizers.AdamW(model.parameters(), lr=-1)
    with pytest.raises(ValueError, match="Muon only supports 2D parameters"):
        optimizers.Muon([torch.nn.Parameter(torch.ones(3, device="tpu"))])
    with pytest.raises(TypeError, match=r"expected an optimizer of torch_tpu\.optimizers, got SGD"):
        optimizers.SingleTraceTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of)
