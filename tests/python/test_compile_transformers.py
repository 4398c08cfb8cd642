"""Models of the transformers library under torch.compile: the whole forward is one graph, one
program runs it and one its backward, and training gives the CPU's losses."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")
from test_compile import runs
from test_transformers import (
    Batch,
    Make,
    assert_same_gradients,
    bert,
    build,
    gpt2,
    images,
    llama,
    mamba,
    masked_text,
    mixtral,
    on_tpu,
    resnet,
    t5,
    text,
    train,
    translation,
    vit,
)

import torch_tpu


def gpt2_with_loss() -> nn.Module:
    """Without a loss type in the configuration the library logs a warning, which breaks graphs."""
    model = gpt2()
    model.loss_type = "ForCausalLM"
    return model


def single_label(make: Make) -> Make:
    """The library sets this in the first call, which makes another graph of the second."""

    def made() -> nn.Module:
        model = make()
        model.config.problem_type = "single_label_classification"
        return model

    made.__name__ = make.__name__
    return made


def batched_mixtral() -> nn.Module:
    """PyTorch traces grouped products of bfloat16 only."""
    return mixtral(experts_implementation="batched_mm")


MODELS = [
    (gpt2_with_loss, text),
    (llama, text),
    (bert, masked_text),
    (t5, translation),
    (single_label(vit), images),
    (single_label(resnet), images),
    (batched_mixtral, text),
    (mamba, text),
]


@pytest.mark.parametrize(("make", "batch"), MODELS)
def test_training(make: Make, batch: Callable[[], Batch]) -> None:
    torch._dynamo.reset()
    host = build(make)
    model = copy.deepcopy(host).to("tpu")
    expected = train(host, batch(), 3)
    known = runs()
    torch_tpu._C._reset_fallback_counts()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*op by op.*")
        compiled = torch.compile(model, backend="tpu", fullgraph=True)
        actual = train(compiled, on_tpu(batch()), 3)
    assert torch_tpu.coverage() == {}
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), rtol=2e-5, atol=0)
    assert_same_gradients(model, host)
    made = {name: count for name, count in runs().items() if name not in known}
    assert sorted(name.split("_")[1] for name in made) == ["backward", "forward"]
    assert set(made.values()) == {3}
