"""Fused optimizer steps and gradient scaling against CPU; foreach and plain steps beside them."""

import pytest
import torch

import torch_tpu

SHAPES = [(4, 3), (5,), ()]


def train(device, make, dtype=torch.float32, steps=4, scaler=None):
    """A few steps with fixed gradients; returns the parameters and the optimizer's state."""
    generator = torch.Generator().manual_seed(0)
    rand = lambda s: torch.randn(s, generator=generator)  # noqa: E731
    parameters = [torch.nn.Parameter(rand(s).to(dtype).to(device)) for s in SHAPES]
    optimizer = make(parameters)
    for step in range(steps):
        for p, s in zip(parameters, SHAPES, strict=True):
            p.grad = rand(s).to(dtype).to(device)
            if scaler is not None:
                p.grad *= 1024
                if step == 2:
                    p.grad.fill_(torch.inf)
        if scaler is not None:
            optimizer.grad_scale = torch.tensor(1024.0, device=device)
            optimizer.found_inf = torch.tensor(float(step == 2), device=device)
        optimizer.step()
    state = [v for p in parameters for v in optimizer.state[p].values() if torch.is_tensor(v)]
    return [x.detach().cpu() for x in [*parameters, *state]]


def check_same(make, **kwargs):
    before = set(torch_tpu.coverage())
    expected, actual = train("cpu", make, **kwargs), train("tpu", make, **kwargs)
    for a, e in zip(actual, expected, strict=True):
        half = e.dtype == torch.bfloat16
        torch.testing.assert_close(a, e, rtol=1.6e-2 if half else None, atol=1e-2 if half else None)
    assert set(torch_tpu.coverage()) == before


ADAM = [
    {},
    {"weight_decay": 0.1},
    {"amsgrad": True},
    {"maximize": True, "betas": (0.8, 0.95)},
    {"lr": torch.tensor(0.01)},
]
SGD = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1},
    {"momentum": 0.9, "nesterov": True, "maximize": True},
]


@pytest.mark.parametrize("options", ADAM, ids=str)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_fused_adam(kind, options):
    check_same(lambda p: kind(p, **{"lr": 0.01, "fused": True, **options}))


@pytest.mark.parametrize("options", SGD, ids=str)
def test_fused_sgd(options):
    check_same(lambda p: torch.optim.SGD(p, lr=0.1, fused=True, **options))


@pytest.mark.parametrize("options", [{}, {"lr_decay": 0.1, "weight_decay": 0.1}], ids=str)
def test_fused_adagrad(options):
    check_same(lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True, **options))


def test_fused_adam_bfloat16():
    check_same(lambda p: torch.optim.AdamW(p, lr=0.01, fused=True), dtype=torch.bfloat16)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_found_inf_skips_the_step(kind):
    check_same(lambda p: kind(p, lr=0.01, fused=True), scaler=True)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    "kind",
    [
        torch.optim.Adam,
        torch.optim.SGD,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        torch.optim.NAdam,
    ],
)
def test_not_fused(kind, foreach):
    check_same(lambda p: kind(p, lr=0.01, foreach=foreach))


def test_a_new_learning_rate_does_not_compile():
    parameters = [torch.nn.Parameter(torch.rand(3, device="tpu"))]
    optimizer = torch.optim.AdamW(parameters, lr=0.1, fused=True)
    parameters[0].grad = torch.rand(3, device="tpu")
    with torch_tpu.mode("strict"):
        optimizer.step()
        optimizer.step()
        parameters[0].cpu()
        before = torch_tpu.stats()["misses"]
        for group in optimizer.param_groups:
            group["lr"] = 0.05
        optimizer.step()
        parameters[0].cpu()
    assert torch_tpu.stats()["misses"] == before


@pytest.mark.parametrize("bad", [False, True])
def test_amp_unscale(bad):
    results = []
    for device in ("cpu", "tpu"):
        grads = [torch.ones(3, device=device) * 8, torch.ones((), device=device) * 4]
        if bad:
            grads[0][1] = torch.nan
        found = torch.zeros((), device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(
            grads, found, torch.tensor(0.25, device=device)
        )
        results.append([g.cpu() for g in grads] + [found.cpu()])
    for a, e in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(a, e, equal_nan=True)


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("tracker", [0, 1])
def test_amp_update_scale(found, tracker):
    results = []
    for device in ("cpu", "tpu"):
        scale = torch.tensor(1024.0, device=device)
        growth = torch.tensor(tracker, dtype=torch.int32, device=device)
        torch._amp_update_scale_(scale, growth, torch.tensor(found, device=device), 2.0, 0.5, 2)
        results.append((scale.cpu(), growth.cpu()))
    assert results[0] == results[1]


def test_grad_scaler():
    results = []
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.rand(4, 3).to(device))
        x = torch.rand(2, 4).to(device)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=256.0, growth_interval=2)
        for _ in range(4):
            optimizer.zero_grad()
            scaler.scale((x @ weight).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append((weight.detach().cpu(), scaler.get_scale()))
    torch.testing.assert_close(results[1][0], results[0][0])
    assert results[1][1] == results[0][1]
