"""Workloads whose shapes or lengths change from call to call, where every new one may be compiled.

generate64 needs the transformers library; an interpreter without it does not take part.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from spec import GENERATION, LENGTHS, LOOPS, SHORT_GPT, SMALL_MLP
from torch import Tensor
from torch_work import GptModel, Work, compiled, mlp_model, with_weights
from weights import integers, normal


def lengths16(device: str) -> Work:
    """Every length is another shape; the last position's argmax is read each time."""
    model = with_weights(GptModel(SHORT_GPT), device).eval()
    tokens = torch.from_numpy(integers("tokens", SHORT_GPT.vocab, (1, SHORT_GPT.length)))
    tokens = tokens.long().to(device)

    def last(tokens: Tensor) -> Tensor:
        return model(tokens)[:, -1].argmax(-1)

    last = compiled(last, dynamic=True)

    def work() -> float:
        with torch.no_grad():
            return float(sum(int(last(tokens[:, :n]).item()) for n in LENGTHS))

    return work


def loops20(device: str) -> Work:
    """Training loops of 20 lengths; the loss is read only after the last step of each."""
    model = with_weights(mlp_model(SMALL_MLP), device)
    shape = (SMALL_MLP.batch, SMALL_MLP.width)
    x, y = (torch.from_numpy(normal(name, shape)).to(device) for name in "xy")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def work() -> float:
        total = 0.0
        for length in LOOPS:
            loss = torch.zeros(())
            for _ in range(length):
                loss = F.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item()
        return total

    return work


def generate64(device: str) -> Work:
    """Greedy generate() for prompts of several lengths; the key/value cache grows by each token."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    transformers.logging.set_verbosity_error()
    spec = GENERATION
    config = transformers.GPT2Config(
        vocab_size=spec.vocab,
        n_positions=128,
        n_embd=spec.width,
        n_layer=spec.layers,
        n_head=spec.heads,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    made: Any = transformers.GPT2LMHeadModel(config)
    model: Any = with_weights(made, device).eval()
    prompts = [
        torch.from_numpy(integers(f"prompt{n}", spec.vocab, (1, n))).long().to(device)
        for n in spec.prompts
    ]

    def work() -> float:
        total = 0
        for prompt in prompts:
            tokens = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=spec.new_tokens,
                do_sample=False,
            )
            total += int(tokens.cpu().sum().item())
        return float(total)

    return work


WORK: dict[str, Callable[[str], Work]] = {"lengths16": lengths16, "loops20": loops20}
if importlib.util.find_spec("transformers"):
    WORK["generate64"] = generate64
