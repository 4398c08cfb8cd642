"""Programs that serve every size up to a bound: results, gradients, numbers of programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_tpu
from torch_tpu import _C

sys.path.insert(0, str(Path(__file__).parents[1]))
LENGTHS = (17, 24, 31, 38, 45, 52, 59, 66, 73, 80, 87, 94, 101, 108, 115, 122)


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    torch_tpu.fused.flush()
    torch_tpu.fused.wait()  # for programs of other tests, which would be counted here
    _C._set_bounded_poison(True)
    yield
    _C._set_bounded_poison(False)
    torch._dynamo.reset()


def programs() -> int:
    """Programs made so far, here or on disk."""
    stats = torch_tpu.stats()
    return stats["compiles"] + stats["disk_hits"]


def strides_of(x: torch.Tensor) -> list[int]:
    """Where they say something."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


def check(function: Callable[..., Any], make: Callable[[int], Any], sizes: Any, most: int) -> None:
    """Values like CPU's for all sizes, with at most so many programs."""
    compiled = torch.compile(function, backend="tpu", dynamic=True)
    before = programs()
    for n in sizes:
        torch.manual_seed(n)
        args = make(n)
        expected = function(*args)
        actual = compiled(*(a.to("tpu") if isinstance(a, torch.Tensor) else a for a in args))
        expected, actual = (x if isinstance(x, tuple) else (x,) for x in (expected, actual))
        for x, y in zip(actual, expected, strict=True):
            assert x.shape == y.shape, n
            assert strides_of(x) == strides_of(y), n
            torch.testing.assert_close(
                x.cpu(), y, rtol=1e-4, atol=1e-5, msg=lambda m, n=n: f"{n}: {m}"
            )
    assert programs() - before <= most


SIZES = (17, 18, 25, 32, 33, 50, 64)  # two bounds

CASES: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "elementwise": (lambda x: (x * 2 + 1).relu(), lambda n: (torch.randn(n, 3),)),
    "reductions": (
        lambda x: (x.sum(0), x.mean(0), x.amax(0), x.var(0), x.mean(), x.prod(0), x.norm()),
        lambda n: (torch.rand(n, 3) + 0.5,),
    ),
    "inner": (
        lambda x: (x.sum(1), x.softmax(1), x.mean(1, keepdim=True), x.cumsum(1), x.logsumexp(1)),
        lambda n: (torch.randn(3, n, 2),),
    ),
    "matmul": (lambda x, w: (x @ w, x.t() @ x), lambda n: (torch.randn(n, 8), torch.randn(8, 5))),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda n: tuple(torch.randn(1, 2, n, 8) for _ in range(3)),
    ),
    "merged": (
        lambda x, w: (x.reshape(-1, 4) @ w).relu().reshape(x.shape[0], -1, 6).sum(1),
        lambda n: (torch.randn(3, n, 4), torch.randn(4, 6)),
    ),
    "merged result": (lambda x: x.reshape(-1, 4) * 2, lambda n: (torch.randn(3, n, 4),)),
    "ends": (
        lambda x: (x[:, -1], x[:, -3:], x[:, 1:], x[:, :-1], x[:, 2], x[:, 4:9]),
        lambda n: (torch.randn(2, n, 3),),
    ),
    "sorted": (
        lambda x: (x.sort(1)[0], x.argmax(1), x.topk(3, 1)[1], x.flip(1), x.max(1)[1]),
        lambda n: (torch.randn(2, n),),
    ),
    "created": (
        lambda x: x + torch.arange(x.shape[0], device=x.device) + torch.ones_like(x).sum(),
        lambda n: (torch.randn(n),),
    ),
    "numbers": (lambda x: x / x.shape[0] + 3 * x.shape[0], lambda n: (torch.randn(n, 2),)),
    "joined": (
        lambda x, y: (torch.cat([x, y, x]), F.pad(x, (1, 2, 3, 4))),
        lambda n: (torch.randn(n, 2), torch.randn(5, 2)),
    ),
    "indexed": (
        lambda x, i, w: (F.embedding(i, w), x[i], x.index_select(0, i)),
        lambda n: (torch.randn(n, 2), torch.randint(0, 16, (n,)), torch.randn(16, 3)),
    ),
    "norms": (
        lambda x: (
            F.layer_norm(x, (4,)),
            F.normalize(x, dim=0),
            F.layer_norm(x.t(), x.t().shape[1:]),
        ),
        lambda n: (torch.randn(n, 4),),
    ),
    "loss": (
        lambda x, y: (F.cross_entropy(x, y), F.mse_loss(x, x * 2), F.nll_loss(x, y)),
        lambda n: (torch.randn(n, 7), torch.randint(0, 7, (n,))),
    ),
    "image batch": (
        lambda x, w: F.max_pool2d(F.conv2d(x, w, padding=1), 2).mean((2, 3)),
        lambda n: (torch.randn(n, 3, 8, 8), torch.randn(4, 3, 3, 3)),
    ),
    "sound": (
        lambda x, w: F.conv1d(x, w, padding=2),
        lambda n: (torch.randn(2, 3, n), torch.randn(4, 3, 5)),
    ),
    "turned": (lambda x: (x * 2).transpose(0, 1), lambda n: (torch.randn(n, 3, 2),)),
    "deviation": (
        lambda x: (x.std(0), x.var(0) / (x.shape[0] - 1)),
        lambda n: (torch.randn(n, 3),),
    ),
    "square": (lambda x: x.tril().sum(1), lambda n: (torch.randn(n, n),)),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    function, make = CASES[name]
    check(function, make, SIZES, 2)


def test_two_sizes() -> None:
    sizes = ((17, 20), (30, 19), (32, 32), (18, 40))

    def make(i: int) -> Any:
        n, m = sizes[i]
        return torch.randn(n, 4), torch.randn(m, 4)

    check(lambda x, y: ((x @ y.t()).softmax(1), (x @ y.t()).sum(0)), make, range(4), 2)


def test_what_is_not_proven_gets_a_program_per_size() -> None:
    check(lambda x: x.median(0)[0] + x.roll(1, 0), lambda n: (torch.randn(n, 3),), (17, 18, 19), 3)


def test_random_numbers_do_not_depend_on_the_bound() -> None:
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend="tpu", dynamic=True)
    static = torch.compile(lambda x: F.dropout(x, 0.5), backend="tpu", dynamic=False)
    x = torch.ones(21, device="tpu")
    results = []
    for function in (compiled, static):
        torch.manual_seed(3)
        results.append(function(x).cpu())
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_marked() -> None:
    compiled = torch.compile(lambda x: x.sum(0), backend="tpu")
    before = programs()
    for n in (40, 50, 70, 90):
        x = torch.randn(n, 3)
        y = x.to("tpu")
        torch_tpu.mark_dynamic(y, 0, min=33, max=100)
        torch.testing.assert_close(compiled(y).cpu(), x.sum(0), rtol=1e-4, atol=1e-5)
    assert programs() - before == 2  # 64 and 100


def test_automatic() -> None:
    compiled = torch.compile(lambda x: x.cumsum(0), backend="tpu")
    before = programs()
    for n in (20, 21, 25, 30, 32):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x.to("tpu")).cpu(), x.cumsum(0), rtol=1e-4, atol=1e-5)
    assert programs() - before == 2  # the first size alone, then all up to 32


# What PyTorch's samples do not show: their batches are of one, or their sizes fixed.
R = torch.randn
GRADIENTS: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "rms_norm": (lambda x, w: F.rms_norm(x, (6,), w), lambda n: (R(n, 6), R(6))),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (6,), w, b),
        lambda n: (R(n, 6), R(6), R(6)),
    ),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        lambda n: (R(n, 3, 4), R(3), R(3)),
    ),
    "linear": (lambda x, w, b: F.linear(x, w, b), lambda n: (R(2, n, 3), R(5, 3), R(5))),
    "bce": (F.binary_cross_entropy_with_logits, lambda n: (R(n, 3), torch.rand(n, 3))),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), lambda n: (R(n, 2, 6, 6),)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), lambda n: (R(n, 2, 4, 4, 4),)),
    "adaptive_max_pool3d": (
        lambda x: F.adaptive_max_pool3d(x, 2),
        lambda n: (R(n, 2, 4, 4, 4),),
    ),
    "grid_sample": (
        lambda x, y: F.grid_sample(x, y, align_corners=False),
        lambda n: (R(n, 2, 5, 5), torch.rand(n, 4, 4, 2) * 2 - 1),
    ),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), lambda n: (R(n, 8, 3, 3),)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), lambda n: (R(n, 2, 4, 4),)),
    **{
        f"{mode}{rank}": (
            lambda x, rank=rank, mode=mode: F.pad(x, (1, 2) * rank, mode=mode),
            lambda n, rank=rank: (R(n, 2, *[5] * rank),),
        )
        for mode in ("reflect", "replicate")
        for rank in (1, 2, 3)
    },
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    function, make = GRADIENTS[name]
    compiled = torch.compile(function, backend="tpu")
    counters = torch._dynamo.utils.counters["torch_tpu"]
    refused = counters["unbounded_graphs"]
    for n in (17, 30):
        torch.manual_seed(n)
        given = make(n)
        on_cpu = [x.clone().requires_grad_() for x in given]
        on_device = [x.to("tpu").requires_grad_() for x in given]
        for x in on_device:
            for dim, size in enumerate(x.shape):
                if size == n:
                    torch_tpu.mark_dynamic(x, dim)
        expected, actual = function(*on_cpu), compiled(*on_device)
        torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
        tangent = torch.randn(expected.shape)
        expected.backward(tangent)
        actual.backward(tangent.to("tpu"))
        for x, y in zip(on_device, on_cpu, strict=True):
            torch.testing.assert_close(x.grad.cpu(), y.grad, rtol=1e-4, atol=1e-4)
    # The gradients of padding are not proven: programs per size.
    assert counters["unbounded_graphs"] - refused == name.startswith(("reflect", "replicate"))


def test_batch_norm_module() -> None:
    modules = [torch.nn.BatchNorm1d(3) for _ in range(2)]
    cpu, device = modules[0], modules[1].to("tpu")
    compiled = torch.compile(device, backend="tpu", dynamic=True)
    counters = torch._dynamo.utils.counters["torch_tpu"]
    refused = counters["unbounded_graphs"]
    for training in (True, False):
        for module in (cpu, device):
            module.train(training)
        for n in (17, 25, 30):
            x = torch.randn(n, 3, 4)
            expected, actual = cpu(x), compiled(x.to("tpu"))
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(device.running_var.cpu(), cpu.running_var, rtol=1e-4, atol=1e-5)
    assert counters["unbounded_graphs"] == refused


class Gpt(torch.nn.Module):
    def __init__(self, width: int = 32, heads: int = 2, vocab: int = 50) -> None:
        super().__init__()
        self.heads = heads
        self.tokens = torch.nn.Embedding(vocab, width)
        self.places = torch.nn.Parameter(torch.randn(128, width) * 0.02)
        self.blocks = torch.nn.ModuleList()
        for _ in range(2):
            block = torch.nn.ModuleDict(
                {
                    "norm1": torch.nn.LayerNorm(width),
                    "qkv": torch.nn.Linear(width, 3 * width),
                    "out": torch.nn.Linear(width, width),
                    "norm2": torch.nn.LayerNorm(width),
                    "up": torch.nn.Linear(width, 4 * width),
                    "down": torch.nn.Linear(4 * width, width),
                }
            )
            self.blocks.append(block)
        self.head = torch.nn.Linear(width, vocab)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        batch, length = ids.shape
        x = self.tokens(ids) + self.places[:length]
        for block in self.blocks:
            qkv = block["qkv"](block["norm1"](x)).view(batch, length, 3, self.heads, -1)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + block["out"](mixed.transpose(1, 2).reshape(batch, length, -1))
            x = x + block["down"](F.gelu(block["up"](block["norm2"](x))))
        return self.head(x)


def models() -> tuple[Gpt, Gpt]:
    torch.manual_seed(0)
    cpu = Gpt()
    device = Gpt().to("tpu")
    device.load_state_dict(cpu.state_dict())
    return cpu, device


def test_sixteen_lengths() -> None:
    cpu, device = models()
    ids = torch.randint(0, 50, (1, 128))
    on_device = ids.to("tpu")

    @torch.compile(backend="tpu", dynamic=True)
    def next_token(ids: torch.Tensor) -> torch.Tensor:
        return device(ids)[:, -1].argmax(-1)

    before = programs()
    with torch.no_grad():
        for n in LENGTHS:
            expected = cpu(ids[:, :n])[:, -1].argmax(-1)
            assert next_token(on_device[:, :n]).cpu().tolist() == expected.tolist()
    assert programs() - before <= 5


def test_training_over_changing_lengths() -> None:
    cpu, device = models()

    def loss_of(model: Gpt, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())

    compiled = torch.compile(lambda x, y: loss_of(device, x, y), backend="tpu", dynamic=True)
    steps = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (cpu, device)]
    graphs = torch._dynamo.utils.counters["torch_tpu"]
    refused = graphs["unbounded_graphs"]
    for n in (17, 24, 31, 38, 45, 59):
        ids, targets = torch.randint(0, 50, (2, n)), torch.randint(0, 50, (2, n))
        for step in steps:
            step.zero_grad()
        expected = loss_of(cpu, ids, targets)
        expected.backward()
        actual = compiled(ids.to("tpu"), targets.to("tpu"))
        actual.backward()
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
        for (name, x), y in zip(device.named_parameters(), cpu.parameters(), strict=True):
            torch.testing.assert_close(
                x.grad.cpu(), y.grad, rtol=1e-3, atol=1e-5, msg=lambda m, at=(n, name): f"{at}: {m}"
            )
        for step in steps:
            step.step()
    assert graphs["unbounded_graphs"] == refused


# Some of what `python -m conformance.bounded` runs in full.
OPINFO = (
    "add,mul,exp,sum,mean,var,softmax,log_softmax,cumsum,sort,topk,cat,flip,matmul,bmm,addmm,"
    "nn.functional.layer_norm,nn.functional.cross_entropy,nn.functional.mse_loss,index_select,"
    "where,tril,amax,argmax,nn.functional.gelu,nn.functional.embedding"
)


@pytest.mark.parametrize("name", OPINFO.split(","))
def test_opinfo(name: str) -> None:
    from conformance.bounded import check as check_op

    answers = list(check_op(name, "float32", 2))
    assert [a for a in answers if a["status"] == "wrong"] == []
