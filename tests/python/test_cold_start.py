"""A process that has compiled nothing yet: what its first steps import and compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_tpu

ROOT = Path(__file__).resolve().parents[2]

MODELS = {
    "mlp": """
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to("tpu")
        x, y = torch.randn(4, 8).to("tpu"), torch.randn(4, 4).to("tpu")
        loss_of = lambda: F.mse_loss(model(x), y)
    """,
    "gpt": """
        from gpt import GPT, Config
        model = GPT(Config(context=8)).to("tpu")
        x, y = torch.randint(0, 50, (2, 8)).to("tpu"), torch.randint(0, 50, (16,)).to("tpu")
        loss_of = lambda: F.cross_entropy(model(x).flatten(0, 1), y)
    """,
    "convnet": """
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
            nn.MaxPool2d(2), nn.Dropout(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(4, 5),
        ).to("tpu")
        x, y = torch.randn(2, 3, 8, 8).to("tpu"), torch.tensor([1, 3]).to("tpu")
        loss_of = lambda: F.cross_entropy(model(x), y)
    """,
}


# The update is by hand: PyTorch's own optimizers import torch._dynamo themselves.
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_training_does_not_import_dynamo(
    name: str, mode: str, run_python: Callable[..., str], tmp_path: Path
) -> None:
    begin = f"""
        import sys
        sys.path.insert(0, {str(ROOT / "examples")!r})
        import torch
        import torch.nn.functional as F
        from torch import nn
        import torch_tpu
    """
    steps = """
        for _ in range(2):
            loss = loss_of()
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None
        assert loss.isfinite().item()
        assert torch_tpu.stats()["misses"] > 10  # programs built; Fused Eager compiles them as one
        assert torch_tpu.stats()["compiles"] > (10 if torch_tpu.get_mode() == "strict" else 0)
        assert "torch._dynamo" not in sys.modules
    """
    run_python(begin + MODELS[name] + steps, TORCH_TPU_CACHE_DIR=str(tmp_path), TORCH_TPU_MODE=mode)


@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_inference_does_not_import_sympy(
    mode: str, run_python: Callable[..., str], tmp_path: Path
) -> None:
    code = """
        import sys
        import torch
        from torch import nn
        layers = nn.Embedding(50, 8), nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)
        model = nn.Sequential(*layers).to("tpu").eval()
        with torch.no_grad():
            x = model(torch.arange(7)[None].to("tpu")) + 1
            mask = torch.ones(7, 7, dtype=torch.bool).triu(1).to("tpu")
            scores = (x @ x.mT * 0.5).masked_fill(mask, float("-inf"))
            (scores.softmax(-1) @ x)[:, -1].argmax(-1).cpu()
        assert "sympy" not in sys.modules
    """
    run_python(code, TORCH_TPU_CACHE_DIR=str(tmp_path), TORCH_TPU_MODE=mode)


def plain_calls() -> Iterator[tuple[Callable[..., Any], tuple[Tensor, ...]]]:
    """Ops whose shapes are not asked of PyTorch's Meta kernels in Python."""
    turned = torch.randn(3, 4, 5).permute(2, 0, 1)
    short, scalar = torch.randn(4), torch.tensor(2.0)
    halves = torch.randn(5, 3, 4).bfloat16()
    for f in (torch.add, torch.sub, torch.mul, torch.div):
        yield f, (turned, short)
        yield f, (turned, scalar)
        yield f, (halves, torch.arange(4))
    for f in (torch.cos, torch.exp, torch.neg, torch.sigmoid, torch.tanh, F.gelu, F.silu):
        yield f, (turned,)
        yield f, (halves[:, ::2],)
    for f in (torch.relu, torch.abs, torch.log, torch.tril, lambda x: x.clamp(-0.5, 1)):
        yield f, (turned.abs(),)
        yield f, (halves[:, ::2].abs(),)
        yield f, (turned.contiguous().abs(),)
    for f in (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge):
        yield f, (turned, short)
        yield f, (halves, scalar)
    for f in (torch.maximum, torch.minimum):
        yield f, (turned, short)
        yield f, (halves, torch.arange(4))
    yield lambda x: x.clamp(min=2), (torch.arange(6),)
    yield lambda x: x.triu(1), (turned,)
    yield lambda x: x.cumsum(1), (turned,)
    yield lambda x: x.cumsum(0, dtype=torch.float64), (halves,)
    yield lambda x, y: torch.cat([x, y], -1), (turned, turned.contiguous())
    yield lambda x, y: torch.cat([x, y.double(), x], 0), (turned, turned)
    yield F.mse_loss, (turned, turned.contiguous())
    yield lambda x: F.mse_loss(x, x * 2, reduction="none"), (halves,)
    for x in (turned, turned.contiguous(), halves):
        yield lambda x: torch.where(x > 0, x, -x), (x,)
        yield lambda x: torch.where(x[:1] > 0, x, 3.0), (x,)
    yield torch.sqrt, (torch.arange(6).view(2, 3),)
    yield torch.rsqrt, (torch.rand(2, 3).t() + 1,)
    yield lambda x: x**3, (turned,)
    yield lambda x: x.argmax(), (turned,)
    yield lambda x: x.argmax(1, keepdim=True), (turned,)
    yield lambda x: x.sum((0, -1)), (turned,)
    yield lambda x: x.sum(1, dtype=torch.float64), (halves,)
    yield lambda x: x.mean(0, keepdim=True), (turned,)
    yield lambda x: x.softmax(0), (turned,)
    yield lambda x: x.log_softmax(1), (halves,)
    yield torch.mm, (torch.randn(4, 3).t(), torch.randn(4, 2))
    yield torch.bmm, (turned, turned.mT)
    yield torch.addmm, (short, torch.randn(2, 3), torch.randn(3, 4))
    yield torch.baddbmm, (short[:3], turned, turned.mT)
    for indices in (torch.tensor(1), torch.tensor([[0, 2]], dtype=torch.int32).t()):
        yield F.embedding, (indices, torch.randn(3, 4))
    for x in (short, turned, turned.contiguous(), torch.randn(1, 2, 3, 4)):
        yield F.linear, (x, torch.randn(2, 4), torch.randn(2))
        yield F.linear, (x, torch.randn(4, 2).t())
    for x in (turned, turned.contiguous(), halves):
        yield lambda t, w: F.layer_norm(t, (4,), w), (x, torch.ones(4).to(x.dtype))
        yield lambda t: F.layer_norm(t, (3, 4)), (x,)
        yield lambda t, m: t.masked_fill(m, 7), (x, torch.ones(3, 1, dtype=torch.bool))
        yield lambda t, m: t.masked_fill(m, 7), (x[0], torch.ones(2, 3, 4, dtype=torch.bool))


@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_shapes_are_those_of_the_cpu(mode: str) -> None:
    with torch_tpu.mode(mode):
        for f, args in plain_calls():
            expected = f(*args)
            # A number may stay on the CPU.
            got = f(*(a if a.dim() == 0 and a.is_floating_point() else a.to("tpu") for a in args))
            assert (got.stride(), got.dtype) == (expected.stride(), expected.dtype)
            torch.testing.assert_close(got.cpu(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (torch.add, [(2, 3), (4,)]),
        (torch.maximum, [(2, 3), (4,)]),
        (torch.lt, [(2, 3), (4,)]),
        (lambda x, y: torch.cat([x, y]), [(2, 3), (2, 4)]),
        (lambda x, y: torch.where(x > 0, x, y), [(2, 3), (2, 4)]),
        (lambda x: x.cumsum(4), [(2, 3)]),
        (lambda x: x.tril(), [(3,)]),
        (lambda x: x.clamp(), [(3,)]),
        (torch.bmm, [(2, 3, 4), (2, 3, 4)]),
        (torch.mm, [(2, 3), (2, 3)]),
        (F.linear, [(2, 3), (2, 4)]),
        (F.linear, [(2, 3), (4, 3), (5,)]),
        (lambda x: x.argmax(5), [(2, 3)]),
        (lambda x: x.softmax(3), [(2, 3)]),
        (lambda x, w: F.layer_norm(x, (4,), w), [(2, 3), (4,)]),
        (lambda x, w: F.embedding(x, w), [(2, 3), (4, 3)]),
        (lambda x, m: x.masked_fill(m > 0, 1), [(2, 3), (4,)]),
    ],
)
def test_errors_are_those_of_the_cpu(f: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises((RuntimeError, IndexError)) as expected:
        f(*map(torch.ones, shapes))
    with pytest.raises(type(expected.value)) as got:
        f(*(torch.ones(shape).to("tpu") for shape in shapes))
    assert str(got.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_dynamo_is_as_ever_once_imported(run_python: Callable[..., str], tmp_path: Path) -> None:
    code = """
        import sys
        import torch
        from torch_tpu import _meta_kernels
        x = torch.ones(3, device="tpu")
        (x + 1).cpu()
        assert "torch._dynamo" not in sys.modules
        functions = [
            _meta_kernels._closure(f)["fn"] for f in _meta_kernels._guarded_functions()
        ]
        own = {f: getattr(f, _meta_kernels._SLOT) for f in functions}
        assert len(own) > 50

        f = torch.compile(lambda t: torch._refs.add(t, 1).relu() * 2, backend="eager")
        assert f(torch.ones(3)).tolist() == [4.0, 4.0, 4.0]
        assert torch._refs.mul(torch.ones(2), 3).tolist() == [3.0, 3.0]
        replaced = [f.__name__ for f in own if getattr(f, _meta_kernels._SLOT) is not own[f]]
        assert "add" in replaced and len(replaced) > 2, replaced  # by PyTorch's own
        assert (x * 2).tolist() == [2.0, 2.0, 2.0]
    """
    run_python(code, TORCH_TPU_CACHE_DIR=str(tmp_path))


@pytest.fixture
def _cold_fused() -> Iterator[None]:
    with torch_tpu.mode("fused"), torch_tpu.fused.compile_when("second"):
        torch_tpu.clear_programs()
        yield
        torch_tpu.fused.wait()


def chains() -> list[dict]:
    """Programs of nothing but foreach ops."""
    found = []
    for program in torch_tpu.fused.programs():
        if all("_foreach_" in name for name in program["ops"]):
            found.append(program)
    return found


def adam(device: str, shapes: list[tuple[int, ...]], steps: int) -> list[Tensor]:
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(shape).to(device)) for shape in shapes]
    optimizer = torch.optim.AdamW(params, lr=0.01, foreach=True)
    for step in range(steps):
        optimizer.zero_grad()
        sum((p * p * (step + 1.5)).sum() for p in params).backward()
        optimizer.step()
        params[0].sum().item()
    return [p.detach().cpu() for p in params]


@pytest.mark.usefixtures("_cold_fused")
def test_ops_over_many_tensors_compile_together() -> None:
    # Shapes no other test has: on disk there may be programs from an earlier run.
    shapes = [(3, 41 + i) for i in range(9)]
    torch.testing.assert_close(adam("tpu", shapes, 1), adam("cpu", shapes, 1))
    (chain,) = chains()
    assert len(chain["ops"]) > 5
    assert chain["runs"] == 1
    # The second step runs the same program again.
    torch.testing.assert_close(adam("tpu", shapes, 2), adam("cpu", shapes, 2))
    assert [c["runs"] for c in chains()] == [3]


@pytest.mark.usefixtures("_cold_fused")
def test_never_means_never_for_a_chain_too() -> None:
    with torch_tpu.fused.compile_when("never"):
        shapes = [(3, 61 + i) for i in range(9)]
        torch.testing.assert_close(adam("tpu", shapes, 2), adam("cpu", shapes, 2))
    assert all(c["runs"] == 0 for c in chains())


def test_two_chains_and_what_lies_around_them(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    code = """
        import torch
        import torch_tpu

        def work(device):
            a = [torch.full((2, 31 + i), float(i)).to(device) for i in range(8)]
            scale = (a[1] * 3).sum()
            torch._foreach_add_(a, 1.5)
            torch._foreach_mul_(a, 2.5)
            b = [t.exp() for t in a[:2]] + [scale]
            c = torch._foreach_neg(a)
            torch._foreach_add_(c, a, alpha=0.5)
            return [*a, *b, *c]

        expected = work("cpu")
        for _ in range(4):
            torch.testing.assert_close([t.cpu() for t in work("tpu")], expected)
            torch_tpu.fused.wait()
        programs = [p["ops"] for p in torch_tpu.fused.programs()]
        chains = [ops for ops in programs if all("_foreach_" in name for name in ops)]
        print(len(programs), len(chains))
    """
    assert run_python(code, TORCH_TPU_CACHE_DIR=str(tmp_path)).split() == [
        "6",
        "2",
    ]  # and three parts around them
    # The whole is on disk now, and runs at once.
    assert run_python(code, TORCH_TPU_CACHE_DIR=str(tmp_path)).split() == ["1", "0"]
