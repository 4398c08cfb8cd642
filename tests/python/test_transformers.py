"""Models of the transformers library, with random weights: training gives the CPU's losses and
gradients with nothing on the CPU, generation gives the CPU's tokens.

All configurations share width, heads, vocabulary and batch, so that models share programs.
"""

from __future__ import annotations

import copy
import importlib.util
import io
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_tpu

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed (requirements/dev.txt pins it)"
)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

Batch = dict[str, Tensor]

VOCABULARY, WIDTH, HEADS, BATCH, LENGTH = 96, 32, 4, 2, 8


def integers(*shape: int, low: int = 3, high: int = VOCABULARY, seed: int = 1) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def text() -> Batch:
    tokens = integers(BATCH, LENGTH)
    return {"input_ids": tokens, "labels": tokens}


def masked_text() -> Batch:
    """The second row is shorter."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, LENGTH - 3 :] = 0
    return {**text(), "attention_mask": mask}


def translation() -> Batch:
    return {"input_ids": integers(BATCH, LENGTH), "labels": integers(BATCH, 5, seed=2)}


def images() -> Batch:
    pixels = torch.randn(BATCH, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return {"pixel_values": pixels, "labels": torch.arange(BATCH)}


# Weights larger than the library's own, so that greedy decoding does not repeat one token.
SCALE = {"initializer_range": 0.2}
DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS // 2,
    "max_position_embeddings": 64,
    **SCALE,
}
ENCODER = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def gpt2() -> nn.Module:
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=64,
        n_embd=WIDTH,
        n_layer=2,
        n_head=HEADS,
        bos_token_id=1,
        eos_token_id=2,
        **dropout,
        **SCALE,
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    """Two query heads share each key and value head."""
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER))


def bert() -> nn.Module:
    config = transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=64, **ENCODER)
    return transformers.BertForMaskedLM(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=2 * WIDTH,
        num_layers=2,
        num_heads=HEADS,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(image_size=16, patch_size=4, num_labels=5, **ENCODER)
    return transformers.ViTForImageClassification(config)


def resnet() -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=5
    )
    return transformers.ResNetForImageClassification(config)


def mixtral(**settings: Any) -> nn.Module:
    """Four experts of which each token uses two."""
    config = transformers.MixtralConfig(
        num_local_experts=4, num_experts_per_tok=2, sliding_window=None, **DECODER, **settings
    )
    return transformers.MixtralForCausalLM(config)


def mamba() -> nn.Module:
    config = transformers.MambaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        state_size=8,
        tie_word_embeddings=False,
        **SCALE,
    )
    return transformers.MambaForCausalLM(config)


Make = Callable[[], nn.Module]


def build(make: Make) -> nn.Module:
    torch.manual_seed(0)
    return make()


def on_tpu(batch: Batch) -> Batch:
    return {name: tensor.to("tpu") for name, tensor in batch.items()}


def train(model: nn.Module, batch: Batch, steps: int) -> list[float]:
    """The loss of each step; the gradients are those of the last."""
    model.train()
    # A gradient that is zero but for rounding would become a full step with a smaller eps.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def assert_same_gradients(actual: nn.Module, expected: nn.Module) -> None:
    for (name, a), e in zip(actual.named_parameters(), expected.parameters(), strict=True):
        assert (a.grad is None) == (e.grad is None), name
        if e.grad is not None:
            torch.testing.assert_close(
                a.grad.cpu(), e.grad, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize(
    ("make", "batch"),
    [
        (gpt2, text),
        (llama, text),
        (bert, masked_text),
        (t5, translation),
        (vit, images),
        (resnet, images),
        (mixtral, text),
        (mamba, text),
    ],
)
def test_training(make: Make, batch: Callable[[], Batch]) -> None:
    host = build(make)
    model = copy.deepcopy(host).to("tpu")
    expected = train(host, batch(), 2)
    torch_tpu._C._reset_fallback_counts()
    actual = train(model, on_tpu(batch()), 2)
    assert torch_tpu.coverage() == {}
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), rtol=2e-5, atol=0)
    assert_same_gradients(model, host)


def test_mixtral_balancing_loss() -> None:
    """The router's own loss, which counts the tokens of each expert."""
    host = build(lambda: mixtral(output_router_logits=True))
    model = copy.deepcopy(host).to("tpu")
    torch_tpu._C._reset_fallback_counts()
    expected, actual = host(**text()), model(**on_tpu(text()))
    assert torch_tpu.coverage() == {}
    torch.testing.assert_close(actual.aux_loss.cpu(), expected.aux_loss)
    torch.testing.assert_close(actual.loss.cpu(), expected.loss, rtol=2e-5, atol=0)


@pytest.mark.parametrize("make", [gpt2, llama])
def test_training_in_bfloat16(make: Make) -> None:
    host = build(make).bfloat16()
    model = copy.deepcopy(host).to("tpu")
    expected = train(host, text(), 4)
    actual = train(model, on_tpu(text()), 4)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert all(later < earlier for earlier, later in itertools.pairwise(actual))
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), rtol=1e-2, atol=0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant: bool) -> None:
    host = build(llama)
    model = copy.deepcopy(host).to("tpu").train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    host(**text(), use_cache=False).loss.backward()
    torch_tpu._C._reset_fallback_counts()
    model(**on_tpu(text()), use_cache=False).loss.backward()
    assert torch_tpu.coverage() == {}
    assert_same_gradients(model, host)


def prompt() -> Batch:
    """The second prompt is shorter, so it is padded on the left."""
    mask = torch.ones(BATCH, 4, dtype=torch.long)
    mask[1, :2] = 0
    return {"input_ids": integers(BATCH, 4), "attention_mask": mask}


def generate(model: nn.Module, inputs: Batch, tokens: int = 12, **settings: Any) -> Tensor:
    with torch.inference_mode():
        return model.eval().generate(
            **inputs,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
            **settings,
        )


@pytest.mark.parametrize(
    ("make", "settings"),
    [(gpt2, {}), (llama, {}), (t5, {"repetition_penalty": 5.0}), (mixtral, {}), (mamba, {})],
)
def test_generate(make: Make, settings: dict[str, Any]) -> None:
    host = build(make)
    model = copy.deepcopy(host).to("tpu")
    expected = generate(host, prompt(), **settings)
    assert len(expected[:, -12:].unique()) > 4
    torch_tpu._C._reset_fallback_counts()
    actual = generate(model, on_tpu(prompt()), **settings)
    assert actual.device.type == "tpu"
    assert torch.equal(actual.cpu(), expected)
    assert torch_tpu.coverage() == {}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"use_cache": False}, id="no-cache"),
        pytest.param(
            {"cache_implementation": "static", "disable_compile": True}, id="static-cache"
        ),
        pytest.param({"num_beams": 2}, id="beams"),
    ],
)
def test_other_ways_to_generate(settings: dict[str, Any]) -> None:
    host = build(llama)
    model = copy.deepcopy(host).to("tpu")
    asked = {k: v for k, v in settings.items() if k == "num_beams"}
    expected = generate(host, prompt(), 3, **asked)
    torch_tpu._C._reset_fallback_counts()
    actual = generate(model, on_tpu(prompt()), 3, **settings)
    assert torch.equal(actual.cpu(), expected)
    assert torch_tpu.coverage() == {}


def test_sampling_follows_the_seed() -> None:
    model = build(gpt2).to("tpu").eval()
    inputs = on_tpu({"input_ids": integers(1, 4), "attention_mask": torch.ones(1, 4).long()})

    def sample(seed: int) -> list[int]:
        torch.manual_seed(seed)
        out = model.generate(
            **inputs, do_sample=True, top_k=20, top_p=0.9, max_new_tokens=4, pad_token_id=0
        )
        return out[0].tolist()

    first = sample(0)
    assert sample(0) == first
    assert any(sample(seed) != first for seed in (1, 2, 3))


def assert_same_weights(actual: nn.Module, expected: nn.Module) -> None:
    a, e = actual.state_dict(), expected.state_dict()
    assert a.keys() == e.keys()
    for name in e:
        assert torch.equal(a[name].cpu(), e[name].cpu()), name


def test_tied_weights_stay_tied() -> None:
    model = build(gpt2).to("tpu")
    assert model.lm_head.weight is model.transformer.wte.weight
    assert model.lm_head.weight.device.type == "tpu"
    model = build(t5).to("tpu")
    assert model.encoder.embed_tokens.weight is model.shared.weight
    assert model.decoder.embed_tokens.weight is model.shared.weight


def test_save_and_load(tmp_path: Path) -> None:
    model = build(gpt2).to("tpu")
    model.save_pretrained(tmp_path)
    kind = type(model)
    host = kind.from_pretrained(tmp_path)
    assert_same_weights(host, model)
    loaded = kind.from_pretrained(tmp_path).to("tpu")
    assert_same_weights(loaded, model)
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    half = kind.from_pretrained(tmp_path, dtype=torch.bfloat16).to("tpu")
    assert {(p.device.type, p.dtype) for p in half.parameters()} == {("tpu", torch.bfloat16)}


@pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="device_map needs accelerate"
)
@pytest.mark.parametrize("device_map", ["tpu", {"": "tpu"}, {"": "tpu:0"}, {"": 0}])
def test_load_onto_the_device(tmp_path: Path, device_map: Any) -> None:
    model = build(gpt2)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, device_map=device_map)
    assert {p.device.type for p in loaded.parameters()} == {"tpu"}
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    assert_same_weights(loaded, model)


def test_state_dict_round_trip() -> None:
    host = build(llama)
    model = copy.deepcopy(host).to("tpu")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    for target, map_location in (("tpu", None), ("tpu", "cpu"), ("cpu", None)):
        file.seek(0)
        state = torch.load(file, map_location=map_location, weights_only=True)
        assert {t.device.type for t in state.values()} == {map_location or "tpu"}
        other = build(llama).to(target)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        other.load_state_dict(state)
        assert_same_weights(other, host)


def test_made_on_the_device() -> None:
    with torch.device("tpu"):
        model = build(gpt2)
    assert {p.device.type for p in model.parameters()} == {"tpu"}
    assert 0.15 < model.transformer.wte.weight.std().item() < 0.25
    assert model(**on_tpu(text())).loss.isfinite()
