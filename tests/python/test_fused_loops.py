"""Loops that never read, and sequences that grow: few programs, and none compiled for nothing."""

from __future__ import annotations

import os
import random

import pytest
import torch
from torch import Tensor

import torch_tpu

pytestmark = pytest.mark.usefixtures("fused_mode")


def body(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    y = (x * 0.5 + y).tanh()
    return x + y.sin() - 0.1, y


def known() -> set[str]:
    return {program["name"] for program in torch_tpu.fused.programs()}


def test_random_lengths() -> None:
    torch_tpu.fused.set_limits(min_nodes=32, max_nodes=128)
    chooser = random.Random(0)
    lengths = [chooser.randrange(40, 200) for _ in range(20)]
    start = torch.linspace(-1, 1, 7)

    def one_pass() -> list[Tensor]:
        results = []
        for length in lengths:
            x, y = start.to("tpu"), start.to("tpu")
            for _ in range(length):
                x, y = body(x, y)
            results.append(x.cpu())
            torch_tpu.fused.wait()
        return results

    before = known()
    one_pass()  # now all have been met once, and the loop's own program many times
    one_pass()
    programs = known()
    compiles = torch_tpu.stats()["compiles"]
    results = one_pass()
    assert torch_tpu.stats()["compiles"] == compiles
    assert known() == programs
    # The loop's turns are one program; a length adds at most its end and its start.
    assert len(programs - before) <= 16, len(programs - before)
    for length, actual in zip(lengths, results, strict=True):
        x, y = start, start
        for _ in range(length):
            x, y = body(x, y)
        torch.testing.assert_close(actual, x, rtol=1e-4, atol=1e-4)


def test_a_loop_falls_into_step() -> None:
    # Most turns run in a program that was compiled once, whatever came before the loop.
    torch_tpu.fused.set_limits(min_nodes=32, max_nodes=128)
    for lead in (1, 4, 9):
        x = torch.linspace(0, 1, 6).to("tpu")
        for _ in range(lead):
            x = x.exp() - 1
        y = x
        for _ in range(60):
            x, y = body(x, y)
        x.tolist()
        torch_tpu.fused.wait()
    runs = {p["name"]: p["runs"] for p in torch_tpu.fused.programs()}
    x = torch.linspace(0, 1, 6).to("tpu").sqrt()
    y = x
    for _ in range(200):
        x, y = body(x, y)
    x.tolist()
    ran = [(p["runs"] - runs.get(p["name"], 0)) * len(p["ops"]) for p in torch_tpu.fused.programs()]
    assert max(ran) >= 0.7 * 200 * 6, ran


@pytest.mark.parametrize("lengths", [(5, 5, 5), (5, 9, 17, 12, 20)])
def test_generation_compiles_nothing_for_nothing(lengths: tuple[int, ...]) -> None:
    """A program that is compiled runs again: that of the cache's many lengths, and that of the
    prompts, also when each has a length of its own."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    width = 8 * len(set(lengths))  # sizes of its own: no programs of the other case
    config = transformers.GPT2Config(
        vocab_size=40, n_positions=96, n_embd=width, n_layer=2, n_head=2, initializer_range=0.3
    )
    config.update({"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0})
    cpu = transformers.GPT2LMHeadModel(config).eval()
    tpu = transformers.GPT2LMHeadModel(config).eval()
    tpu.load_state_dict(cpu.state_dict())
    tpu.to("tpu")
    prompts = [torch.randint(40, (1, length)) for length in lengths]

    def generate(model: torch.nn.Module, prompt: Tensor) -> list[int]:
        mask = torch.ones_like(prompt)
        out = model.generate(
            prompt, attention_mask=mask, max_new_tokens=64, min_new_tokens=64, do_sample=False
        )
        return out[0].tolist()

    before = {p["name"] for p in torch_tpu.fused.programs()}
    for prompt in prompts:
        assert generate(tpu, prompt.to("tpu")) == generate(cpu, prompt)
        torch_tpu.fused.wait()
    new = [p for p in torch_tpu.fused.programs() if p["name"] not in before]
    compiled = {p.name for p in torch_tpu.explain().programs if p.origin == "compiled"}
    ready = [p for p in new if p["state"] == "ready"]
    assert ready
    # Not from disk; a bound that sizes were near to may be compiled before it is needed.
    wasted = [p for p in ready if p["name"] in compiled and p["runs"] == 0 and p["bound"] is None]
    assert [(p["name"], len(p["ops"]), p["sights"], p["runs"]) for p in wasted] == []
