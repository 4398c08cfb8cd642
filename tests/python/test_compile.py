"""torch.compile(backend="tpu"): what it must leave as it is, and that a graph is one program."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from compile_check import close, compiled, fresh_graphs  # noqa: F401, used by each test
from conftest import RunPython
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.utils.checkpoint import checkpoint

import torch_tpu


def runs() -> dict[str, int]:
    """Of the compiled programs in memory."""
    programs = torch_tpu.explain().to_dict()["programs"]
    return {p["name"]: p["runs"] for p in programs if p["name"].startswith("compiled_")}


def programs_of(function: Callable[[], Any]) -> int:
    """How many compiled programs a call runs."""
    before = runs()
    function()
    return sum(count - before.get(name, 0) for name, count in runs().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products_of_any_dtype(dtype: torch.dtype) -> None:
    """PyTorch's Meta kernel has the checks of CUDA's: bfloat16, rows of multiples of 16 bytes."""
    x, w = torch.randn(9, 6).to(dtype), torch.randn(3, 6, 5).to(dtype)
    offs = torch.tensor([2, 2, 9], dtype=torch.int32)
    ours = [t.to("tpu").requires_grad_() for t in (x, w)]
    function = compiled(lambda a, b, ends: F.grouped_mm(a, b, offs=ends).float().square().sum())
    loss = function(*ours, offs.to("tpu"))
    loss.backward()
    groups = torch.tensor([0, 0, 2, 2, 2, 2, 2, 2, 2])
    theirs = [t.float().requires_grad_() for t in (x, w)]
    expected = torch.einsum("ij,ijk->ik", theirs[0], theirs[1][groups]).square().sum()
    expected.backward()
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    close(loss.cpu(), expected.detach(), rtol=tolerance, atol=tolerance)
    for a, b in zip(ours, theirs, strict=True):
        assert a.grad is not None
        close(a.grad.cpu().float(), b.grad, rtol=tolerance, atol=10 * tolerance)


def test_it_is_known_and_plain_compile_uses_it() -> None:
    assert "tpu" in torch._dynamo.list_backends()
    x = torch.randn(4, 8)
    expected = (x @ x.t()).relu().sum(-1)
    for compile_ in (compiled, torch.compile):
        function = compile_(lambda x: (x @ x.t()).relu().sum(-1))
        close(function(x.to("tpu")).cpu(), expected)
    counters = torch._dynamo.utils.counters
    assert counters["torch_tpu"]["graphs_inference"] >= 2
    assert not counters["inductor"]


def test_who_calls_inductor_himself_comes_here_too() -> None:
    from torch._inductor.compile_fx import compile_fx

    torch._dynamo.utils.counters.clear()
    x = torch.randn(6)

    def backend(graph: Any, inputs: Any) -> Any:
        return compile_fx(graph, inputs)

    for by in (torch.compile(backend=backend), torch._dynamo.optimize("inductor")):
        torch._dynamo.reset()
        close(by(lambda x: x.sin() + 1)(x.to("tpu")).cpu(), x.sin() + 1)
    assert torch._dynamo.utils.counters["torch_tpu"]["graphs_inference"] == 2
    assert not torch._dynamo.utils.counters["inductor"]


def test_autocast_after_a_graph_break_on_any_device() -> None:
    """Dynamo goes on after the break; what stands in the place of torch's code is not traced."""

    def function(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            y = x @ x
            torch._dynamo.graph_break()
            return y @ x

    for device in ("cpu", "tpu"):
        torch._dynamo.reset()
        x = torch.eye(4, device=device) * 3
        out = torch.compile(function, backend="eager")(x)
        assert out.dtype is torch.bfloat16
        close(out.float().cpu(), torch.eye(4) * 27)


def test_a_number_made_in_the_function() -> None:
    x = torch.rand(3)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tensor(0.25, device=x.device) + x, torch.tensor([2], device=x.device) * x

    for mine, theirs in zip(compiled(function)(x.to("tpu")), function(x), strict=True):
        close(mine.cpu(), theirs)


@pytest.mark.parametrize("target", [torch.tensor([2, 0, 1]), torch.tensor(2)])
def test_gradient_of_a_loss_without_a_batch(target: Tensor) -> None:
    x = torch.randn(3)

    def function(x: Tensor, target: Tensor) -> Tensor:
        one = torch.ones((), device=x.device)
        return torch.ops.aten.nll_loss_backward(one, x, target, None, 1, -100, one)

    close(compiled(function)(x.to("tpu"), target.to("tpu")).cpu(), function(x, target))


def test_compile_of_cpu_tensors_is_inductors() -> None:
    torch._dynamo.utils.counters.clear()
    x = torch.randn(8)
    close(torch.compile(lambda x: x.sin() + 1)(x), x.sin() + 1)
    assert torch._dynamo.utils.counters["inductor"]
    assert not torch._dynamo.utils.counters["torch_tpu"]


def test_one_function_serves_both_devices() -> None:
    function = torch.compile(lambda x: x.cos() * 2)
    x = torch.randn(5)
    close(function(x), x.cos() * 2)
    close(function(x.to("tpu")).cpu(), x.cos() * 2)
    assert function(x).device.type == "cpu"


def test_training_gives_the_cpus_losses() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    ours = copy.deepcopy(model).to("tpu")
    step = compiled(lambda x, y: F.mse_loss(ours(x), y))
    x, y = torch.randn(4, 8), torch.randn(4, 4)
    theirs_opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    ours_opt = torch.optim.AdamW(ours.parameters(), lr=0.01)
    for _ in range(4):
        expected = F.mse_loss(model(x), y)
        loss = step(x.to("tpu"), y.to("tpu"))
        close(loss.cpu(), expected)
        for each, optimizer in ((expected, theirs_opt), (loss, ours_opt)):
            each.backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.Adam, {"lr": 0.01}),
        (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
        (torch.optim.AdamW, {"lr": 0.01, "foreach": False}),
        (torch.optim.AdamW, {"lr": torch.tensor(0.01)}),
        (torch.optim.RMSprop, {"lr": 0.01}),
    ],
    ids=str,
)
def test_optimizer_steps(make: Callable[..., Any], options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    ours = copy.deepcopy(model).to("tpu")
    theirs_opt, ours_opt = (make(m.parameters(), **options) for m in (model, ours))
    step = torch.compile(ours_opt.step, backend="tpu")
    x = torch.randn(3, 4)
    for rate in (0.01, 0.01, 0.02, 0.03):
        if not isinstance(options["lr"], Tensor):
            for optimizer in (theirs_opt, ours_opt):
                optimizer.param_groups[0]["lr"] = rate
        model(x).square().mean().backward()
        ours(x.to("tpu")).square().mean().backward()
        theirs_opt.step()
        step()
        theirs_opt.zero_grad()
        ours_opt.zero_grad()
    for a, b in zip(ours.parameters(), model.parameters(), strict=True):
        close(a.cpu(), b)
    for a, b in zip(ours_opt.state.values(), theirs_opt.state.values(), strict=True):
        if "step" in b:
            assert a["step"].item() == b["step"].item()


def test_a_whole_training_step_is_one_program() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    ours = copy.deepcopy(model).to("tpu")

    def step(params: dict[str, Tensor], x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        def loss_of(params: dict[str, Tensor]) -> Tensor:
            return functional_call(ours, params, (x,)).square().mean()

        grads, loss = grad_and_value(loss_of)(params)
        return {name: p - 0.1 * grads[name] for name, p in params.items()}, loss

    run = compiled(step)
    params = {name: p.detach() for name, p in ours.named_parameters()}
    x = torch.randn(3, 4)
    device_x = x.to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        params, loss = run(params, device_x)
        expected = model(x).square().mean()
        close(loss.cpu(), expected)
        expected.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert programs_of(lambda: run(params, device_x)) == 1


def test_backward_inside_the_function_is_in_its_program() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    ours = copy.deepcopy(model).to("tpu")
    x = torch.randn(3, 4)

    def loss_and_grads(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        loss = model(x).square().mean()
        return (loss.detach(), *torch.autograd.grad(loss, tuple(model.parameters())))

    expected = loss_and_grads(model, x)
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        run = compiled(loss_and_grads)
        results = run(ours, x.to("tpu"))
        assert programs_of(lambda: run(ours, x.to("tpu"))) == 1
    for a, b in zip(results, expected, strict=True):
        close(a.cpu(), b)


def test_inputs_are_written_in_place() -> None:
    def add(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    x = torch.zeros(3, device="tpu")
    version = x._version
    run = compiled(add)
    close(run(x).cpu(), torch.full((3,), 2.0))
    close(x.cpu(), torch.ones(3))
    assert x._version > version
    held = x.detach().clone()
    run(x)
    close(held.cpu(), torch.ones(3))  # not the memory that was given away


def test_a_written_input_gives_its_memory() -> None:
    run = compiled(lambda x: x.mul_(2))
    x = torch.ones(1 << 16, device="tpu")
    run(x)
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.memory_allocated()
    run(x)
    torch.tpu.synchronize()
    assert torch.tpu.max_memory_allocated() < before + x.nbytes
    close(x.cpu(), torch.full((1 << 16,), 4.0))


def test_views_of_inputs_are_written() -> None:
    def scale(x: Tensor) -> Tensor:
        x[1:].mul_(3)
        return x.sum()

    x = torch.ones(4)
    device_x = x.to("tpu")
    close(compiled(scale)(device_x).cpu(), scale(x))
    close(device_x.cpu(), x)


def test_buffers_are_updated() -> None:
    model = nn.BatchNorm1d(4)
    ours = copy.deepcopy(model).to("tpu")
    run = compiled(ours)
    for _ in range(3):
        x = torch.randn(8, 4)
        close(run(x.to("tpu")).cpu(), model(x))
    for name, buffer in model.named_buffers():
        close(ours.get_buffer(name).cpu(), buffer)


def test_outputs_that_alias() -> None:
    run = compiled(lambda x: (x.view(-1), x, x + 1, (x * 2).t()))
    x = torch.randn(2, 3, device="tpu")
    flat, same, _, transposed = run(x)
    assert same is x
    assert flat.untyped_storage()._cdata == x.untyped_storage()._cdata
    assert transposed.stride() == (1, 3)
    close(transposed.cpu(), (x.cpu() * 2).t())


def test_inputs_that_are_views() -> None:
    x = torch.randn(4, 6)
    device_x = x.to("tpu")
    run = compiled(lambda a, b: a @ b)
    for part in (slice(2, None), slice(0, 4), slice(0, 6, 2)):
        a, b = x[:, part], x[:, part].t()
        close(run(device_x[:, part], device_x[:, part].t()).cpu(), a @ b)


def test_random_numbers_differ_from_call_to_call_and_follow_the_seed() -> None:
    run = compiled(lambda x: F.dropout(x, 0.5))
    x = torch.ones(256, device="tpu")
    torch.manual_seed(3)
    first, second = run(x).cpu(), run(x).cpu()
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(run(x).cpu(), first)
    assert 0.3 < (first == 0).float().mean() < 0.7


def test_dropout_drops_the_same_in_backward() -> None:
    x = torch.ones(512, device="tpu", requires_grad=True)
    y = compiled(lambda x: F.dropout(x, 0.5) * 3)(x)
    y.sum().backward()
    close(x.grad.cpu(), y.detach().cpu())


def test_autocast_inside_and_around() -> None:
    model = nn.Linear(8, 8)
    ours = copy.deepcopy(model).to("tpu")
    x = torch.randn(4, 8)

    def inside(x: Tensor) -> Tensor:
        with torch.autocast("tpu", torch.bfloat16):
            return ours(x).relu()

    y = compiled(inside)(x.to("tpu"))
    assert y.dtype == torch.bfloat16
    close(y.cpu().float(), model(x).relu(), atol=3e-2, rtol=3e-2)
    y.sum().backward()
    assert ours.weight.grad.dtype == torch.float32
    with torch.autocast("tpu", torch.bfloat16):
        assert compiled(ours)(x.to("tpu")).dtype == torch.bfloat16


def test_inference_mode() -> None:
    model = nn.Linear(8, 8).to("tpu")
    x = torch.randn(2, 8, device="tpu")
    with torch.inference_mode():
        y = compiled(model)(x)
    assert y.is_inference()
    close(y.cpu(), model(x).detach().cpu())


def test_activation_checkpointing() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    ours = [copy.deepcopy(m).to("tpu") for m in (first, second)]

    def run(first: nn.Module, second: nn.Module, x: Tensor) -> Tensor:
        return second(checkpoint(lambda x: F.gelu(first(x)), x, use_reentrant=False)).sum()

    x = torch.randn(4, 8)
    run(first, second, x).backward()
    compiled(run)(*ours, x.to("tpu")).backward()
    close(ours[0].weight.grad.cpu(), first.weight.grad)


def test_compiled_autograd() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).to("tpu")
    other = copy.deepcopy(model)
    x = torch.randn(3, 4, device="tpu")
    model(x).sum().backward()

    def train(x: Tensor) -> None:
        other(x).sum().backward()

    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(train, backend="tpu")(x)
    close(other[0].weight.grad.cpu(), model[0].weight.grad.cpu())


def test_module_hooks() -> None:
    model = nn.Linear(4, 4).to("tpu")
    model.register_forward_hook(lambda module, args, result: result * 2)
    x = torch.ones(1, 4, device="tpu")
    close(compiled(model)(x).cpu(), model(x).cpu())


def test_graph_breaks_are_reported_by_pytorch() -> None:
    def branch(x: Tensor) -> Tensor:
        y = x.sin()
        if y.sum() > 0:
            y = y + 1
        return y * 2

    x = torch.randn(5)
    close(torch.compile(branch, backend="tpu")(x.to("tpu")).cpu(), branch(x))
    explained = torch._dynamo.explain(branch)(x.to("tpu"))
    assert explained.graph_break_count == 1
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(branch)(x.to("tpu"))


def test_a_changed_number_does_not_make_a_program_each() -> None:
    torch._dynamo.utils.counters.clear()
    run = compiled(lambda x, s: x * s)
    x = torch.ones(2, device="tpu")
    for scale in (1.5, 2.5, 3.5, 4.5, 5.5):
        close(run(x, scale).cpu(), torch.full((2,), scale))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def test_cpu_tensors_in_the_graph() -> None:
    def mixed(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        t = s + 1
        return x * t, t * 3, (x.sum() * 2).cpu() + 1

    x, s = torch.randn(5), torch.tensor(2.0)
    results = compiled(mixed)(x.to("tpu"), s)
    for result, expected in zip(results, mixed(x, s), strict=True):
        close(result.cpu(), expected)
    assert [result.device.type for result in results] == ["tpu", "cpu", "cpu"]


def test_moving_and_making_tensors() -> None:
    close(compiled(lambda x: x.to("tpu") * 2)(torch.ones(3)).cpu(), torch.full((3,), 2.0))
    close(compiled(lambda: torch.arange(4, device="tpu") * 2)().cpu(), torch.arange(4) * 2)
    kept = torch.tensor([1.0, 2.0], device="tpu")
    run = compiled(lambda x: x * torch.tensor([3.0, 4.0], device="tpu") + kept)
    close(run(torch.ones(2, device="tpu")).cpu(), torch.tensor([4.0, 6.0]))


def test_a_bad_index_is_reported() -> None:
    run = compiled(lambda x, i: x[i])
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        run(torch.ones(3, device="tpu"), torch.tensor([5], device="tpu")).cpu()


def test_bad_shapes_are_reported_as_on_the_cpu() -> None:
    with pytest.raises(Exception, match=r"size|shape"):
        compiled(lambda a, b: a @ b)(torch.ones(2, 3, device="tpu"), torch.ones(2, 3, device="tpu"))


def test_options_and_modes() -> None:
    x = torch.ones(2, device="tpu")
    for mode in ("default", "reduce-overhead", "max-autotune"):
        close(compiled(lambda x: x + 1, mode=mode)(x).cpu(), torch.full((2,), 2.0))
    for options in ({"nonsense": 1}, {"fallback": 3}, {"fallback": "sometimes"}):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=r"nonsense|fallback"):
            compiled(lambda x: x + 1, options=options)(x)


def test_what_cannot_be_one_program_says_so_and_runs() -> None:
    x = torch.tensor([0.0, 1.0, 2.0], device="tpu")
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        pytest.warns(UserWarning, match=r"op by op.*nonzero"),
    ):
        close(compiled(lambda x: x.nonzero() * 2)(x).cpu(), torch.tensor([[2], [4]]))
    torch._dynamo.reset()
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        pytest.raises(RuntimeError, match="nonzero"),
    ):
        compiled(lambda x: x.nonzero(), options={"fallback": "error"})(x)


def test_explain_lists_compiled_programs() -> None:
    run = compiled(lambda x: (x.sin() + 1).sum())
    run(torch.ones(17, device="tpu"))
    found = [p for p in torch_tpu.explain().to_dict()["programs"] if "compiled_" in p["name"]]
    assert any("aten::sin" in str(p["ops"]) for p in found)
    assert any(p["name"].startswith("compiled_inference") for p in found)


@pytest.mark.parametrize("mode", ["debug", "strict", "fused"])
def test_every_mode(mode: Any) -> None:
    with torch_tpu.mode(mode):
        x = torch.randn(4, 4)
        y = x.to("tpu") * 2
        close((compiled(lambda x: x @ x)(y) + 1).cpu(), (x * 2) @ (x * 2) + 1)


def test_threads_share_a_compiled_function() -> None:
    from concurrent.futures import ThreadPoolExecutor

    run = torch.compile(lambda x: x.exp().sum(), backend="tpu")
    xs = [torch.randn(8) for _ in range(8)]
    run(xs[0].to("tpu"))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: run(x.to("tpu")).cpu(), xs))
    for x, result in zip(xs, results, strict=True):
        close(result, x.exp().sum())


_WARM = """
    import json, torch, torch_tpu
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model = model.to("tpu")
    loss = torch.compile(lambda x: model(x).square().mean(), backend="tpu")(
        torch.ones(2, 4, device="tpu"))
    loss.backward()
    value = loss.item()
    print(json.dumps([value, torch_tpu.stats()["compiles"], torch_tpu.stats()["loads"]
        if "loads" in torch_tpu.stats() else torch_tpu.stats()["disk"]["loads"]]))
"""


def test_warm_start_from_disk(run_python: RunPython, tmp_path: Any) -> None:
    cold = json.loads(run_python(_WARM, TORCH_TPU_CACHE_DIR=str(tmp_path)).splitlines()[-1])
    warm = json.loads(run_python(_WARM, TORCH_TPU_CACHE_DIR=str(tmp_path)).splitlines()[-1])
    assert warm[0] == cold[0]
    assert cold[1] > 0
    assert warm[1] == 0


def test_importing_starts_nothing_of_dynamo() -> None:
    code = "import sys, torch; assert 'torch._dynamo' not in sys.modules; print('ok')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "ok"


def test_a_target_out_of_bounds_is_named() -> None:
    compiled = torch.compile(F.cross_entropy, backend="tpu")
    logits = torch.randn(3, 7, device="tpu")
    with pytest.raises(IndexError, match=r"Target 9 is out of bounds\."):
        compiled(logits, torch.tensor([1, 9, 2], device="tpu")).item()


@pytest.mark.parametrize("dynamic", [False, True])
def test_fake_arguments_have_results_and_leave_the_program(dynamic):
    """A segmentation fault once: they say they are on the device, and have no memory there."""
    compiled = torch.compile(lambda x: torch.relu(x) + 1, backend="tpu", dynamic=dynamic)
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    for _ in range(2):
        with torch._subclasses.FakeTensorMode():
            fake = compiled(torch.empty(3, 4, device="tpu"))
        assert (fake.shape, fake.device.type) == ((3, 4), "tpu")
        torch.testing.assert_close(compiled(x.to("tpu")).cpu(), torch.relu(x) + 1)
