"""Mixed precision: the dtype autocast computes each op in, and training with it and GradScaler."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_tpu

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def x(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    values = torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1
    return values.to("tpu", dtype)


def each(**fns: Callable[[torch.dtype], torch.Tensor]) -> Any:
    return pytest.mark.parametrize("fn", [pytest.param(f, id=name) for name, f in fns.items()])


@each(
    mm=lambda t: x(3, 4, dtype=t) @ x(4, 5, dtype=t),
    bmm=lambda t: torch.bmm(x(2, 3, 4, dtype=t), x(2, 4, 5, dtype=t)),
    addmm=lambda t: torch.addmm(x(5, dtype=t), x(3, 4, dtype=t), x(4, 5, dtype=t)),
    baddbmm=lambda t: torch.baddbmm(x(2, 3, 5, dtype=t), x(2, 3, 4, dtype=t), x(2, 4, 5, dtype=t)),
    mv=lambda t: torch.mv(x(3, 4, dtype=t), x(4, dtype=t)),
    einsum=lambda t: torch.einsum("ij,jk->ik", x(3, 4, dtype=t), x(4, 5, dtype=t)),
    linear=lambda t: F.linear(x(3, 4, dtype=t), x(5, 4, dtype=t), x(5, dtype=t)),
    conv2d=lambda t: F.conv2d(x(1, 2, 5, 5, dtype=t), x(3, 2, 3, 3, dtype=t)),
    conv_transpose2d=lambda t: F.conv_transpose2d(x(1, 2, 5, 5, dtype=t), x(2, 3, 3, 3, dtype=t)),
    prelu=lambda t: F.prelu(x(3, 4, dtype=t), x(1, dtype=t)),
    attention=lambda t: F.scaled_dot_product_attention(*(x(1, 2, 4, 8, dtype=t),) * 3),
    gru_cell=lambda t: torch.gru_cell(
        x(2, 3, dtype=t), x(2, 4, dtype=t), x(12, 3, dtype=t), x(12, 4, dtype=t)
    ),
    lstm_cell=lambda t: torch.lstm_cell(
        x(2, 3, dtype=t), (x(2, 4, dtype=t),) * 2, x(16, 3, dtype=t), x(16, 4, dtype=t)
    )[0],
)
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_runs_in_the_lower_precision(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    with torch.autocast("tpu", dtype=dtype):
        got = fn(F32)
        assert got.dtype == dtype
    exact = fn(F32)
    assert exact.dtype == F32
    torch.testing.assert_close(got.float(), exact, rtol=2e-2, atol=2e-2)


@each(
    softmax=lambda t: torch.softmax(x(3, 4, dtype=t), 1),
    log_softmax=lambda t: torch.log_softmax(x(3, 4, dtype=t), 1),
    exp=lambda t: torch.exp(x(3, dtype=t)),
    log=lambda t: torch.log(x(3, dtype=t)),
    pow=lambda t: x(3, dtype=t) ** 3,
    rsqrt=lambda t: torch.rsqrt(x(3, dtype=t)),
    sum=lambda t: torch.sum(x(3, dtype=t)),
    cumsum=lambda t: torch.cumsum(x(3, dtype=t), 0),
    prod=lambda t: torch.prod(x(3, dtype=t)),
    norm=lambda t: torch.norm(x(3, dtype=t)),
    layer_norm=lambda t: F.layer_norm(x(3, 4, dtype=t), (4,)),
    group_norm=lambda t: F.group_norm(x(2, 4, 3, dtype=t), 2),
    mse_loss=lambda t: F.mse_loss(x(3, dtype=t), x(3, dtype=t)),
    l1_loss=lambda t: F.l1_loss(x(3, dtype=t), x(3, dtype=t)),
    nll_loss=lambda t: F.nll_loss(x(3, 4, dtype=t), torch.tensor([0, 1, 2], device="tpu")),
    cross_entropy=lambda t: F.cross_entropy(
        x(3, 4, dtype=t), torch.tensor([0, 1, 2], device="tpu")
    ),
    kl_div=lambda t: F.kl_div(x(3, dtype=t), x(3, dtype=t), reduction="sum"),
    bce_with_logits=lambda t: F.binary_cross_entropy_with_logits(x(3, dtype=t), x(3, dtype=t)),
)
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_runs_in_float32(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    with torch.autocast("tpu", dtype=dtype):
        assert fn(dtype).dtype == F32


@each(
    cat=lambda a, b: torch.cat([a, b]),
    stack=lambda a, b: torch.stack([a, b]),
    addcmul=lambda a, b: torch.addcmul(a, b, b),
    addcdiv=lambda a, b: torch.addcdiv(a, b, b),
    atan2=torch.atan2,
    dot=torch.dot,
    tensordot=lambda a, b: torch.tensordot(a, b, 1),
    scatter_add=lambda a, b: torch.scatter_add(a, 0, torch.tensor([0, 1, 0, 1], device="tpu"), b),
)
def test_promotes_to_the_widest(fn: Callable[..., Any]) -> None:
    wide, narrow = x(4), x(4, dtype=BF16)
    with torch.autocast("tpu"):
        assert fn(wide, narrow).dtype == F32
        assert fn(narrow, wide).dtype == F32
        assert fn(narrow, narrow).dtype == BF16


def test_lists_are_those_of_cuda_for_every_device() -> None:
    """Everything autocast touches on a CUDA device, it touches here."""
    key = torch._C._dispatch_has_kernel_for_dispatch_key
    missing = [
        op
        for op in torch._C._dispatch_get_all_op_names()
        if op.startswith("aten::")
        and key(op, "AutocastCUDA")
        and not key(op, "AutocastPrivateUse1")
    ]
    # Names of one vendor's library, which no other device calls.
    assert [op for op in missing if "cudnn" not in op] == []


def test_binary_cross_entropy_is_refused() -> None:
    p = x(3)
    with torch.autocast("tpu"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(p, p)
    with torch.autocast("tpu"), torch.autocast("tpu", enabled=False):
        assert F.binary_cross_entropy(p, p).dtype == F32


def test_nesting() -> None:
    a = x(3, 3)
    with torch.autocast("tpu"):
        assert (a @ a).dtype == BF16
        with torch.autocast("tpu", enabled=False):
            assert (a @ a).dtype == F32
            with torch.autocast("tpu", dtype=F16):
                assert (a @ a).dtype == F16
            assert (a @ a).dtype == F32
        assert (a @ a).dtype == BF16
        with torch.autocast("cpu"):
            assert (a @ a).dtype == BF16
            assert (a.cpu() @ a.cpu()).dtype == BF16
        assert (a.cpu() @ a.cpu()).dtype == F32
    assert (a @ a).dtype == F32
    assert not torch.is_autocast_enabled("tpu")


def test_only_floats_are_cast() -> None:
    with torch.autocast("tpu"):
        assert (x(3, 3, dtype=torch.float64) @ x(3, 3, dtype=torch.float64)).dtype == torch.float64
        whole = torch.ones(3, 3, dtype=torch.int64, device="tpu")
        assert (whole @ whole).dtype == torch.int64


def test_the_cache_casts_a_weight_once() -> None:
    layer = torch.nn.Linear(4, 4, bias=False, device="tpu")
    a = x(2, 4)

    def programs() -> int:
        stats = torch_tpu._C._program_stats()
        return stats["hits"] + stats["misses"]

    def calls(cache: bool) -> int:
        with torch.autocast("tpu", cache_enabled=cache):
            layer(a)
            before = programs()
            layer(a).sum()
            return programs() - before

    assert calls(True) == calls(False) - 1
    with torch.autocast("tpu"):
        first = layer(a)
        with torch.no_grad():
            layer.weight.zero_()
        torch.clear_autocast_cache()
        assert layer(a).abs().sum() == 0
        assert first.abs().sum() > 0


def test_custom_function() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tpu", cast_inputs=F32)
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            assert not torch.is_autocast_enabled("tpu")
            assert a.dtype == F32
            ctx.save_for_backward(a)
            return a @ a

        @staticmethod
        @torch.amp.custom_bwd(device_type="tpu")
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (a,) = ctx.saved_tensors
            assert not torch.is_autocast_enabled("tpu")
            return grad @ a.t() + a.t() @ grad

    a = x(3, 3, dtype=BF16).requires_grad_()
    with torch.autocast("tpu"):
        y = Square.apply(a)
        assert y.dtype == F32
    y.sum().backward()
    assert a.grad.dtype == BF16


# --- training -------------------------------------------------------------------------------------


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.GELU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 32),
        torch.nn.LayerNorm(32),
        torch.nn.Linear(32, 5),
    )


def batch(step: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(8, 3, 8, 8, generator=generator)
    return images.to(device), torch.randint(0, 5, (8,), generator=generator).to(device)


def test_losses_follow_those_of_the_cpu() -> None:
    def train(device: str) -> list[float]:
        net = copy.deepcopy(model()).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
        losses = []
        for step in range(6):
            images, labels = batch(step % 2, device)
            optimizer.zero_grad()
            with torch.autocast(device, dtype=BF16):
                loss = F.cross_entropy(net(images), labels)
            loss.backward()
            assert all(p.grad.dtype == F32 for p in net.parameters())
            optimizer.step()
            losses.append(loss.item())
        return losses

    got, expected = train("tpu"), train("cpu")
    torch.testing.assert_close(got, expected, rtol=3e-2, atol=3e-2)
    assert got[-1] < got[0]


OPTIMIZERS = {
    "sgd-foreach": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=True),
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "adam-foreach": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "adam-fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "sgd-loop": lambda p: torch.optim.SGD(p, lr=0.05, foreach=False),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_grad_scaler(name: str) -> None:
    """Steps with an inf gradient are skipped and halve the scale; the others double it in time."""

    def train(device: str) -> tuple[list[float], list[float], list[torch.Tensor]]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        ).to(device)
        optimizer = OPTIMIZERS[name](net.parameters())
        scaler = torch.amp.GradScaler(device, init_scale=256.0, growth_interval=2)
        scales, losses = [], []
        for step in range(6):
            inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(step)).to(device)
            optimizer.zero_grad()
            with torch.autocast(device, dtype=F16):
                loss = net(inputs).square().mean()
            scaler.scale(loss).backward()
            if step == 2:
                net[0].weight.grad[0, 0] = float("inf")
            if step == 4:
                net[2].bias.grad[0] = float("nan")
            if step % 2:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            before = [p.detach().clone() for p in net.parameters()]
            scaler.step(optimizer)
            scaler.update()
            moved = any((a != b).any() for a, b in zip(before, net.parameters(), strict=True))
            assert moved == (step not in (2, 4))
            scales.append(scaler.get_scale())
            losses.append(loss.item())
        return scales, losses, [p.detach().cpu() for p in net.parameters()]

    scales, losses, weights = train("tpu")
    expected_scales, expected_losses, expected_weights = train("cpu")
    assert scales == expected_scales == [256.0, 512.0, 256.0, 256.0, 128.0, 128.0]
    torch.testing.assert_close(losses, expected_losses, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(weights, expected_weights, rtol=2e-2, atol=2e-2)


def test_grad_scaler_state_and_disabled() -> None:
    scaler = torch.amp.GradScaler("tpu", init_scale=8.0)
    loss = x(3).requires_grad_().sum()
    assert scaler.scale(loss).item() == pytest.approx(8 * loss.item(), rel=1e-6)
    other = torch.amp.GradScaler("tpu")
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 8.0
    off = torch.amp.GradScaler("tpu", enabled=False)
    assert off.scale(loss) is loss
