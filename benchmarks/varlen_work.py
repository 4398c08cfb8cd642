"""A model over many sequence lengths, forward and training. A call is a pass over all of them, so
the first call of a process has everything to compile, and later ones have nothing.

The GPT-2 of the transformers library is as it is written there; an interpreter without the library
does not take part.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
import torch_work
from spec import SHORT_GPT, VARLEN, Gpt, learning_rate
from torch import Tensor, nn
from torch_work import GptModel, Work, compiled, with_weights
from weights import integers

RATE = 1e-3
Logits = Callable[[Tensor], Tensor]


def tokens_of(spec: Gpt, device: str) -> Tensor:
    """The longest sequence; shorter ones are its beginnings."""
    tokens = integers("tokens", spec.vocab, (spec.batch, spec.length))
    return torch.from_numpy(tokens).long().to(device)


def forward_pass(logits: Logits, tokens: Tensor, lengths: Sequence[int]) -> Work:
    """Each length once."""

    def last(tokens: Tensor) -> Tensor:
        return logits(tokens)[:, -1].argmax(-1).sum()

    last = compiled(last)

    def work() -> float:
        with torch.no_grad():
            return float(sum(int(last(tokens[:, :n]).item()) for n in lengths))

    return work


def training_pass(
    model: nn.Module, logits: Logits, tokens: Tensor, lengths: Sequence[int], vocab: int
) -> Work:
    """A step with each length."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    passes = itertools.count()

    def loss_of(tokens: Tensor) -> Tensor:
        out = logits(tokens)[:, :-1]
        return F.cross_entropy(out.reshape(-1, vocab), tokens[:, 1:].reshape(-1))

    loss_of = compiled(loss_of)

    def work() -> float:
        total = 0.0
        optimizer.param_groups[0]["lr"] = learning_rate(4 * next(passes), RATE)
        for n in lengths:
            loss = loss_of(tokens[:, :n])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        return total

    return work


def own_gpt(device: str) -> tuple[nn.Module, Logits, Gpt]:
    """The GPT of the other workloads."""
    model = with_weights(GptModel(SHORT_GPT), device)
    return model, model, SHORT_GPT


def hf_gpt2(device: str) -> tuple[nn.Module, Logits, Gpt]:
    """GPT-2 of transformers, without dropout: contestants shall agree."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    transformers.logging.set_verbosity_error()
    spec = SHORT_GPT
    config = transformers.GPT2Config(
        vocab_size=spec.vocab,
        n_positions=spec.length,
        n_embd=spec.width,
        n_layer=spec.layers,
        n_head=spec.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="sdpa" if torch_work.OWN_ATTENTION else "eager",
    )
    made: Any = transformers.GPT2LMHeadModel(config)
    model: Any = with_weights(made, device)

    def logits(tokens: Tensor) -> Tensor:
        out: Tensor = model(input_ids=tokens, use_cache=False).logits
        return out

    return model, logits, spec


def _forward(make: Any, count: int) -> Callable[[str], Work]:
    def made(device: str) -> Work:
        model, logits, spec = make(device)
        model.eval()
        return forward_pass(logits, tokens_of(spec, device), VARLEN[count])

    return made


def _train(make: Any, count: int) -> Callable[[str], Work]:
    def made(device: str) -> Work:
        model, logits, spec = make(device)
        tokens = tokens_of(spec, device)
        return training_pass(model, logits, tokens, VARLEN[count], spec.vocab)

    return made


_MODELS: dict[str, Any] = {"": own_gpt}
if importlib.util.find_spec("transformers"):
    _MODELS["hf_"] = hf_gpt2
WORK: dict[str, Callable[[str], Work]] = {
    f"varlen_{name}{kind}{count}": work(make, count)
    for name, make in _MODELS.items()
    for kind, work in (("forward", _forward), ("train", _train))
    for count in VARLEN
}
