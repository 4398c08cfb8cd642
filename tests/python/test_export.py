"""Export: the module gives what PyTorch gives on the CPU, here and in a process that never saw the
model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from export_models import (
    MLP,
    Calls,
    ConvNet,
    Counter,
    Lookup,
    Noise,
    Point,
    Points,
    Scaled,
    check,
    export_mlp,
    manifest_of,
    randn,
    to_tpu,
)
from torch import Tensor, nn

import torch_tpu
from torch_tpu import safetensors

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    return export_mlp(tmp_path / "mlp")


# Models


def test_mlp(tmp_path):
    loaded = check(MLP().eval(), (randn(5, 6),), tmp_path / "mlp")
    assert repr(loaded).endswith("mlp', MLP(x: float32[5,6]) on tpu:0)")
    assert set(loaded.state_dict()) == {"up.weight", "up.bias", "down.weight", "down.bias"}


def test_convnet_with_batch_norm(tmp_path):
    model = ConvNet()
    model(randn(8, 3, 8, 8))  # so that the running statistics say something
    check(model.eval(), (randn(2, 3, 8, 8),), tmp_path / "conv")
    # A call in eval mode does not count batches.
    assert "norm.num_batches_tracked" not in safetensors.load_file(
        tmp_path / "conv" / "model.safetensors", "cpu"
    )


def test_channels_last(tmp_path):
    model = ConvNet().eval().to(memory_format=torch.channels_last)
    x = randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    loaded = check(model, (x,), tmp_path / "conv")
    plain = loaded(x.contiguous().to("tpu"))
    torch.testing.assert_close(plain.cpu(), model(x), rtol=1e-4, atol=1e-5)


def test_gpt_with_tied_weights(tmp_path):
    import gpt

    torch.manual_seed(0)
    model = gpt.GPT(gpt.Config(vocab=64, context=16, layers=2, width=32, heads=2)).eval()
    tokens = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(1))
    loaded = check(model, (tokens,), tmp_path / "gpt")
    names = [n for n in loaded.state_dict() if n in ("tokens.weight", "head.weight")]
    assert len(names) == 1
    size = (tmp_path / "gpt" / "model.safetensors").stat().st_size
    assert size < 4 * sum(p.numel() for p in model.parameters()) + 8192


@pytest.mark.slow
def test_transformers_model(tmp_path, run_python):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.randint(0, 96, (2, 8), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(input_ids=tokens, use_cache=False)
    folder = tmp_path / "llama"
    torch_tpu.export(model, (), {"input_ids": tokens, "use_cache": False}, path=folder)
    loaded = torch_tpu.load(folder)
    actual = loaded(input_ids=tokens.to("tpu"), use_cache=False)
    assert type(actual) is type(expected)
    torch.testing.assert_close(actual.logits.cpu(), expected.logits, rtol=1e-4, atol=1e-5)
    # Without the library, its class of results is a dict.
    torch.save((tokens, expected.logits), tmp_path / "call.pt")
    run_python(
        f"""
        import sys, torch, torch_tpu
        tokens, expected = torch.load({str(tmp_path / "call.pt")!r})
        out = torch_tpu.load({str(folder)!r})(input_ids=tokens.to("tpu"), use_cache=False)
        torch.testing.assert_close(out["logits"].cpu(), expected, rtol=1e-4, atol=1e-5)
        assert "transformers" not in sys.modules
        """
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(tmp_path, dtype):
    model = MLP().eval().to(dtype)
    x = randn(2, 6).to(dtype)
    torch_tpu.export(model, (x,), path=tmp_path / "model")
    actual = torch_tpu.load(tmp_path / "model")(x.to("tpu"))
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.cpu(), model(x))


def test_model_on_the_device(tmp_path):
    model = MLP().eval().to("tpu")
    x = randn(2, 6).to("tpu")
    torch_tpu.export(model, (x,), path=tmp_path / "model")
    torch.testing.assert_close(torch_tpu.load(tmp_path / "model")(x), model(x))
    assert all(p.device.type == "tpu" and p.requires_grad for p in model.parameters())


def test_model_is_not_changed(tmp_path):
    model = Counter()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch_tpu.export(model, (randn(2, 3),), path=tmp_path / "model")
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(tensor.device.type == "cpu" for tensor in after.values())


def test_exported_program_of_torch(tmp_path):
    model = MLP().eval()
    x = randn(2, 6)
    program = torch.export.export(model, (x,))
    torch_tpu.export(program, path=tmp_path / "model")
    loaded = torch_tpu.load(tmp_path / "model")
    torch.testing.assert_close(loaded(x=x.to("tpu")).cpu(), model(x))
    torch.testing.assert_close(program.module()(x), model(x))  # and still works


def test_several_sizes_share_the_weights(tmp_path):
    model = MLP().eval()
    folder = tmp_path / "model"
    torch_tpu.export(
        model,
        (randn(2, 6),),
        path=folder,
        dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1, max=64)}},
        more_args=[(torch.empty(8, 6, device="meta"),), (randn(64, 6),), (randn(1, 6),)],
    )
    loaded = torch_tpu.load(folder)
    for size in (1, 2, 8, 64):
        x = randn(size, 6)
        torch.testing.assert_close(loaded(x.to("tpu")).cpu(), model(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match=r"\[1, 6\] or \[2, 6\] or \[8, 6\] or \[64, 6\]"):
        loaded(randn(3, 6).to("tpu"))
    with pytest.raises(RuntimeError, match=r"<= 64"):
        torch_tpu.export(
            model,
            (randn(2, 6),),
            path=folder,
            dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1, max=64)}},
            more_args=[(randn(65, 6),)],
        )


def test_module_for_one_target(tmp_path):
    folder = tmp_path / "model"
    torch_tpu.export(nn.MaxPool1d(2), (randn(1, 4),), path=folder, target="tpu")
    assert manifest_of(folder)["target"] == "tpu"
    with pytest.raises(RuntimeError, match="target='any'"):
        torch_tpu.load(folder)
    with pytest.raises(ValueError, match="expected target"):
        torch_tpu.export(nn.ReLU(), (randn(1),), path=folder, target="gpu")


# Calls


def test_nested_arguments_and_results(tmp_path):
    args = (randn(3), (randn(3, seed=2), randn(3, seed=3)), False)
    loaded = check(Calls(), args, tmp_path / "calls", scale={"in": randn(3, seed=4)})
    x, pair, flag = to_tpu(args)
    result = loaded(x, flag=flag, scale={"in": x}, pair=list(pair))  # by keyword, as the model
    torch.testing.assert_close(result["sum"], x * x + pair[0] - pair[1])
    assert list(result) == ["sum", "parts", "flag", "none"]
    assert type(result["parts"]) is tuple
    assert type(result["parts"][1]) is list
    for match, call in [
        (r"was exported as Calls\(x, pair, flag, scale=\); got 1 positional", {}),
        ("missing: scale", {"pair": pair, "flag": flag}),
        ("not exported: other", {"pair": pair, "flag": flag, "scale": {"in": x}, "other": 1}),
        ("flag: exported with False, called with True", {**call_of(pair, x), "flag": True}),
        (r"pair: expected 2 items, got 1", {**call_of(pair, x), "pair": [x]}),
        (r"pair\[0\]: expected a tensor, got int", {**call_of(pair, x), "pair": [1, x]}),
        (r"scale has no 'in'", {**call_of(pair, x), "scale": {}}),
        (r"scale: expected a dict, got Tensor", {**call_of(pair, x), "scale": x}),
    ]:
        with pytest.raises(TypeError, match=match):
            loaded(x, **call)


def call_of(pair: Any, x: Tensor) -> dict[str, Any]:
    return {"pair": pair, "flag": False, "scale": {"in": x}}


def test_namedtuples(tmp_path, run_python):
    check(Points(), (Point(randn(2), randn(2, seed=2)),), tmp_path / "points")
    loaded = torch_tpu.load(tmp_path / "points")
    assert type(loaded(to_tpu(Point(randn(2), randn(2))))) is Point
    out = run_python(
        f"""
        import torch, torch_tpu
        one = torch.ones(2, device="tpu")
        print(torch_tpu.load({str(tmp_path / "points")!r})((one, 3 * one)))
        """
    )
    assert out.startswith("Point(x=tensor([3., 3.]")


def test_views_as_arguments(mlp):
    loaded = torch_tpu.load(mlp)
    x = randn(2, 6).to("tpu")
    expected = loaded(x)
    wide = torch.zeros(2, 12, device="tpu")
    wide[:, ::2] = x
    for same in (wide[:, ::2], x.t().contiguous().t(), x.reshape(12).view(2, 6), x.clone()):
        torch.testing.assert_close(loaded(same), expected)


def test_wrong_tensors(mlp):
    loaded = torch_tpu.load(mlp)
    x = randn(2, 6).to("tpu")
    with pytest.raises(RuntimeError, match=r"'x' is on cpu.*\.to\('tpu:0'\)"):
        loaded(x.cpu())
    with pytest.raises(RuntimeError, match=r"'x' is torch.float64; exported with torch.float32"):
        loaded(x.double())
    with pytest.raises(RuntimeError, match=r"'x' has shape \[3, 6\]; exported with \[2, 6\]"):
        loaded(torch.zeros(3, 6, device="tpu"))
    with pytest.raises(TypeError, match=r"exported as MLP\(x\); got 2 positional arguments"):
        loaded(x, x)
    with pytest.raises(TypeError, match="got 0 positional arguments"):
        loaded()


def test_results_need_no_grad(mlp):
    assert not torch_tpu.load(mlp)(randn(2, 6).to("tpu").requires_grad_()).requires_grad


def test_index_out_of_range(tmp_path):
    loaded = check(Lookup(), (torch.tensor([0, 4]),), tmp_path / "lookup")
    with pytest.raises(IndexError, match="index out of range"):
        loaded(torch.tensor([0, 5], device="tpu")).cpu()


@pytest.mark.parametrize("function", ["inv", "solve", "cholesky", "lu_factor"])
def test_singular_matrix(tmp_path, function):
    class Algebra(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return getattr(torch.linalg, function)(*[x] * (2 if function == "solve" else 1))

    a = randn(3, 3)
    loaded = check(Algebra(), (a @ a.t() + torch.eye(3),), tmp_path / "algebra")
    with pytest.raises(RuntimeError) as expected:
        Algebra()(torch.zeros(3, 3))
    with pytest.raises(expected.type):
        loaded(torch.zeros(3, 3, device="tpu"))


def test_second_device(tmp_path, run_python):
    torch_tpu.export(nn.ReLU(), (randn(3),), path=tmp_path / "relu")
    out = run_python(
        f"""
        import torch, torch_tpu
        relu = torch_tpu.load({str(tmp_path / "relu")!r}, device="tpu:1")
        print(relu(torch.ones(3, device="tpu:1")).device)
        """,
        TORCH_TPU_CPU_DEVICES="2",
    )
    assert out == "tpu:1\n"


# What calls change


def test_buffers_that_calls_update(tmp_path):
    model = Counter()
    torch_tpu.export(model, (randn(2, 3),), path=tmp_path / "counter")
    loaded = torch_tpu.load(tmp_path / "counter")
    held = loaded.state_dict()["count"]
    assert set(loaded.state_dict()) == {"count"}
    for seed in range(3):
        x = randn(2, 3, seed=seed)
        torch.testing.assert_close(loaded(x.to("tpu")).cpu(), model(x))
    torch.testing.assert_close(held.cpu(), model.count)
    for start in (torch.ones(6).view(2, 3), torch.ones(3, 2).t()):  # written by somebody else
        model.count.copy_(start)
        held.copy_(start.to("tpu"))
        for _ in range(2):
            torch.testing.assert_close(loaded(x.to("tpu")).cpu(), model(x))
        torch.testing.assert_close(held.cpu(), model.count)
    stored = safetensors.load_file(tmp_path / "counter" / "model.safetensors", "cpu")
    assert torch.equal(stored["count"], torch.zeros(2, 3))  # the file is not written to
    again = torch_tpu.load(tmp_path / "counter")
    assert torch.equal(again(x.to("tpu")).cpu(), torch.ones(3, 2))


def test_batch_norm_in_training(tmp_path):
    model = nn.BatchNorm1d(4).train()
    torch_tpu.export(model, (randn(8, 4),), path=tmp_path / "norm")
    loaded = torch_tpu.load(tmp_path / "norm")
    for seed in range(2):
        x = randn(8, 4, seed=seed)
        torch.testing.assert_close(loaded(x.to("tpu")).cpu(), model(x), rtol=1e-4, atol=1e-5)
    for name, tensor in loaded.state_dict().items():
        torch.testing.assert_close(tensor.cpu(), model.state_dict()[name])


def test_arguments_that_the_model_writes(tmp_path):
    torch_tpu.export(Scaled(), (randn(4),), path=tmp_path / "scaled")
    x = randn(4).to("tpu")
    result = torch_tpu.load(tmp_path / "scaled")(x)
    torch.testing.assert_close(x.cpu(), randn(4) * 2)
    torch.testing.assert_close(result, x + 1)


def test_random_numbers_follow_the_generator(tmp_path):
    torch_tpu.export(Noise(), (torch.zeros(64),), path=tmp_path / "noise")
    loaded = torch_tpu.load(tmp_path / "noise")
    x = torch.zeros(64, device="tpu")
    torch.manual_seed(5)
    first, second = loaded(x), loaded(x)
    torch.manual_seed(5)
    assert torch.equal(loaded(x), first)
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    torch.testing.assert_close(first, torch.rand_like(x))


@pytest.mark.parametrize("model", [Counter(), Noise(), Lookup()])
def test_second_process_compiles_nothing(model, run_python, tmp_path):
    x = torch.zeros(2, 3, dtype=torch.int64 if isinstance(model, Lookup) else torch.float32)
    torch_tpu.export(model, (x,), path=tmp_path / "model")
    code = f"""
        import torch, torch_tpu
        loaded = torch_tpu.load({str(tmp_path / "model")!r})
        x = torch.zeros(2, 3, dtype={x.dtype}, device="tpu")
        loaded(x)
        print(torch_tpu.stats()["compiles"], torch_tpu.stats()["disk"]["damaged"])
        """
    cache = {"TORCH_TPU_CACHE_DIR": str(tmp_path / "cache")}
    assert run_python(code, **cache) != "0 0\n"
    assert run_python(code, **cache) == "0 0\n"


# Another process, another language


def test_process_that_never_saw_the_model(mlp, tmp_path, run_python):
    torch.manual_seed(0)
    expected = MLP().eval()(randn(2, 6)).detach()
    torch.save((randn(2, 6), expected), tmp_path / "call.pt")
    run_python(
        f"""
        import sys, torch, torch_tpu
        x, expected = torch.load({str(tmp_path / "call.pt")!r})
        loaded = torch_tpu.load({str(mlp)!r})
        torch.testing.assert_close(loaded(x.to("tpu")).cpu(), expected)
        assert "torch._dynamo" not in sys.modules
        """
    )
