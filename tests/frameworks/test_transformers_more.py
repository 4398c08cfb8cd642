"""transformers beyond one model on one device: pipelines, placement, offloaded caches, experts
under torch.compile, tensor parallel, quantized weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import frameworks.tiny as tiny
import pytest
import torch
from transformers import AutoModelForCausalLM, pipeline

QUESTION = {"max_new_tokens": 6, "do_sample": False}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    tiny.llama().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return str(folder)


def answer(model: Any, **options: Any) -> list[list[int]]:
    x = tiny.tokens(2, 5).to(model.device)
    mask = torch.ones_like(x)
    return model.generate(x, attention_mask=mask, **QUESTION, **options).tolist()


# Where a model goes


@pytest.mark.parametrize(
    ("device", "expected"),
    [(None, "tpu:0"), (0, "tpu:0"), ("tpu", "tpu"), ("cpu", "cpu"), (-1, "cpu")],
)
def test_pipelines_take_the_device(device: Any, expected: str, saved: str) -> None:
    pipe = pipeline("text-generation", model=saved, device=device)
    assert str(pipe.device) == expected
    assert pipe.model.device.type == pipe.device.type
    if device is None:
        on_cpu = pipeline("text-generation", model=saved, device="cpu")
        texts = ["the cat sits", "a dog runs"]
        assert pipe(texts, **QUESTION) == on_cpu(texts, **QUESTION)


@pytest.mark.parametrize("place", ["tpu", "auto", 0, {"": 0}])
def test_placement(place: Any, saved: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(saved, device_map=place)
    assert {p.device for p in model.parameters()} == {torch.device("tpu:0")}
    pipe = pipeline("text-generation", model=model, tokenizer=tiny.tokenizer())
    assert str(pipe.device) == "tpu:0"
    if place == "auto":
        assert answer(model) == answer(tiny.llama())


@pytest.mark.parametrize(("host", "kind"), [("1GB", "cpu"), ("20KB", "disk")])
def test_placement_beyond_the_device(host: str, kind: str, saved: str, tmp_path: Path) -> None:
    memory = {0: "60KB", "cpu": host}
    model = AutoModelForCausalLM.from_pretrained(
        saved, device_map="auto", max_memory=memory, offload_folder=str(tmp_path)
    )
    assert set(model.hf_device_map.values()) == {0, kind}
    assert answer(model) == answer(tiny.llama())


# Caches


@pytest.mark.parametrize("kind", ["offloaded", "offloaded_static"])
@pytest.mark.parametrize("layers", [1, 3])
def test_offloaded_cache(kind: str, layers: int) -> None:
    model = tiny.llama(num_hidden_layers=layers)
    expected = answer(model)
    model = model.to("tpu")
    assert answer(model, cache_implementation=kind, disable_compile=True) == expected


def test_offloaded_layers_rest_on_the_host() -> None:
    from transformers import DynamicCache

    model = tiny.llama(num_hidden_layers=4).to("tpu")
    cache = DynamicCache(config=model.config, offloading=True)
    with torch.no_grad():
        model(tiny.tokens(1).to("tpu"), past_key_values=cache)
    assert [layer.keys.device.type for layer in cache.layers] == ["tpu", "cpu", "cpu", "cpu"]


# Experts


def test_experts_compiled_in_float32() -> None:
    model, x = tiny.mixtral(), tiny.tokens(2)
    reference = model(x, labels=x)
    reference.loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model, x = model.to("tpu"), x.to("tpu")
    result = torch.compile(model, fullgraph=True)(x, labels=x)
    result.loss.backward()
    torch.testing.assert_close(result.logits.cpu(), reference.logits, atol=1e-5, rtol=1e-5)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad.cpu(), expected[name], atol=1e-5, rtol=1e-4, msg=name)


# Tensor parallel


def rank_shares(folder: str) -> tuple[float, float, bool, tuple[int, ...]]:
    """How far logits and gradients are from those of one process; the same tokens; one share."""
    tiny.as_launched()
    shared = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto")
    alone = AutoModelForCausalLM.from_pretrained(folder)
    x = tiny.tokens(2)
    ours = shared(x.to(shared.device), labels=x.to(shared.device))
    theirs = alone(x, labels=x)
    ours.loss.backward()
    theirs.loss.backward()
    weight = shared.model.layers[0].self_attn.q_proj.weight
    wanted = alone.model.layers[0].self_attn.q_proj.weight.grad
    logits = (whole(ours.logits).cpu() - theirs.logits).abs().max().item()
    gradient = (whole(weight.grad).cpu() - wanted).abs().max().item()
    same = answer(shared) == answer(alone)
    return logits, gradient, same, tuple(weight.to_local().shape)


def whole(x: Any) -> torch.Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_tensor_parallel_equals_one_process(kind: str, tmp_path: Path, two: Any) -> None:
    getattr(tiny, kind)().save_pretrained(tmp_path)
    for logits, gradient, same, share in two.run(rank_shares, str(tmp_path), timeout=250):
        assert logits < 1e-5
        assert gradient < 1e-6
        assert same
        assert share == (16, 32)


def rank_asks_by_name() -> str:
    import torch.distributed as dist

    group = dist.new_group(backend="tpu_dist")
    x = torch.ones(3, device="tpu")
    dist.all_reduce(x, group=group)
    return str(x.tolist())


def test_the_backend_has_the_name_that_transformers_asks_for(two: Any) -> None:
    assert two.run(rank_asks_by_name, timeout=250) == [str([2.0] * 3)] * 2


# Quantized weights


@pytest.mark.parametrize("kind", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_quantized_while_loading(kind: str, saved: str) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    from transformers import TorchAoConfig

    config = TorchAoConfig(getattr(quantization, kind)())
    model = AutoModelForCausalLM.from_pretrained(
        saved, device_map="tpu", quantization_config=config
    )
    weight = model.model.layers[0].mlp.up_proj.weight
    assert weight.device.type == "tpu"
    assert weight.qdata.dtype in (torch.int8, torch.float8_e4m3fn)
    x = tiny.tokens(2)
    with torch.no_grad():
        found, exact = model(x.to("tpu")).logits.cpu(), tiny.llama().eval()(x).logits
    assert 0 < (found - exact).abs().max() < 0.1 * exact.abs().max()
